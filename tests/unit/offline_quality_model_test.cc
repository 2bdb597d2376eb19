// Guesses of a candidate's KL.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "offline/quality_model.h"
#include "tests/support/tune_cases.h"

namespace kvrun::offline {
namespace {

using testing::SettingFor;
using testing::SmolLm2Setting;

double LinearLaw(const SizedCandidate& sized) {
  const Candidate& c = sized.candidate;
  return -2.5 - 0.8 * std::log2(sized.plan.selected_entries() / 256.0) +
         0.35 * std::log2(c.group_tokens / 4.0) - 0.25 * std::log2(c.rank / 16.0) -
         (c.heads == HeadReduction::kPerKvHead ? 0.4 : 0.0) + (c.k_type == KvType::kInt4 ? 0.5 : 0.0) +
         (c.v_type == KvType::kInt4 ? 0.1 : 0.0);
}

TEST(OfflineQualityModel, LearnsALinearLaw) {
  const std::vector<SizedCandidate> all = AllCandidates(SmolLm2Setting(13));
  QualityModel model;
  for (size_t i = 0; i < 60; ++i) {
    const SizedCandidate& sized = all[i * 7919 % all.size()];
    model.Add(sized, std::exp(LinearLaw(sized)));
  }
  double worst = 0.0;
  for (size_t i = 0; i < 500; ++i) {
    const SizedCandidate& sized = all[(i * 6007 + 3) % all.size()];
    worst = std::max(worst, std::abs(model.Guess(sized).log_mean - LinearLaw(sized)));
  }
  EXPECT_LT(worst, 0.2);
}

TEST(OfflineQualityModel, WhatWasMeasuredIsSurer) {
  const SearchSetting setting = SmolLm2Setting(13);
  const SizedCandidate own = BudgetsOwnChoice(setting).value();
  QualityModel model;
  const GuessedKl before = model.Guess(own);
  model.Add(own, 0.5);
  const GuessedKl once = model.Guess(own);
  model.Add(own, 0.5);
  const GuessedKl twice = model.Guess(own);
  EXPECT_NEAR(once.log_mean, std::log(0.5), 0.05);
  EXPECT_LT(once.log_deviation, before.log_deviation);
  EXPECT_LT(twice.log_deviation, once.log_deviation);
  Candidate other = own.candidate;
  other.heads = HeadReduction::kPerKvHead;
  const Result<SizedCandidate> unlike = SizeCandidate(other, setting);
  ASSERT_TRUE(unlike.ok());
  EXPECT_GT(model.Guess(*unlike).log_deviation, twice.log_deviation) << "of heads nothing was measured";
}

TEST(OfflineQualityModel, ThePriorAloneIsFinite) {
  const KvModelShape one_head = {.n_layers = 2, .n_heads = 4, .n_kv_heads = 1, .head_dim = 8, .n_embd = 32};
  SearchSetting small = SettingFor(one_head, 256, 1);
  small.budget_bytes *= 32;
  for (const SearchSetting& setting : {SmolLm2Setting(34), small}) {
    for (const SizedCandidate& sized : AllCandidates(setting)) {
      const GuessedKl guess = QualityModel().Guess(sized);
      ASSERT_TRUE(std::isfinite(guess.log_mean)) << OptionLine(sized.options);
      ASSERT_GT(guess.log_deviation, 0.0);
    }
  }
}

TEST(OfflineQualityModel, AKlOfNothingIsTaken) {
  const SizedCandidate own = BudgetsOwnChoice(SmolLm2Setting(1)).value();
  QualityModel model;
  for (const double kl : {0.0, -1e-12}) model.Add(own, kl);
  EXPECT_TRUE(std::isfinite(model.Guess(own).log_mean));
}

}  // namespace
}  // namespace kvrun::offline
