// The search over candidates, under a law of times and KL that is known; fronts, and points to sample.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "offline/solver.h"
#include "offline/step_sampler.h"
#include "tests/support/tune_cases.h"

namespace kvrun::offline {
namespace {

using testing::SmolLm2Setting;

double LawMs(const SizedCandidate& sized) {
  const Candidate& c = sized.candidate;
  const double misses =
      0.25 * std::pow(static_cast<double>(sized.plan.slots.n_cache_slots) / sized.plan.choice.n_chosen, -0.8);
  double loads =
      30.0 * sized.plan.n_streams * (sized.plan.choice.n_chosen - sized.plan.choice.n_pinned) * misses;
  if (sized.plan.limits_reads()) {
    loads = std::min(loads, 30.0 * sized.plan.n_streams * sized.plan.slots.reads_per_layer);
  }
  return 3.0 + 1.5e-3 * sized.plan.selected_entries() + 0.02 * c.rank + loads * 2e-3 +
         (c.k_type == KvType::kInt4 ? 0.2 : 0.0) + (c.heads == HeadReduction::kPerKvHead ? 0.8 : 0.0);
}

// Not what the model of quality believes: stronger, curved in the rank, with a little noise of its own.
double LawKl(const SizedCandidate& sized) {
  const Candidate& c = sized.candidate;
  const double noise =
      0.04 * std::sin(13.0 * sized.plan.selected_entries() + 7.0 * c.rank + c.window_entries);
  const double log_kl = -3.2 - 0.9 * std::log2(sized.plan.selected_entries() / 256.0) +
                        0.3 * std::log2(c.group_tokens / 4.0) + 3.0 / c.rank +
                        (c.k_type == KvType::kInt4 ? 0.4 : 0.0) + (c.v_type == KvType::kInt4 ? 0.15 : 0.0) -
                        (c.heads == HeadReduction::kPerKvHead ? 0.2 : 0.0) +
                        (c.reads_percent < 100 ? 0.05 * std::log2(25.0 / c.reads_percent) : 0.0) + noise;
  return std::exp(log_kl);
}

class OfflineSolver : public ::testing::Test {
 protected:
  SolverInput Input(uint32_t divisor = 13) {
    SolverInput input;
    input.setting = SmolLm2Setting(divisor);
    input.all = SomeOf(input.setting);
    input.own = BudgetsOwnChoice(input.setting).value();
    input.predict_ms = [](const SizedCandidate& sized, const Quality*) { return LawMs(sized); };
    input.measure = [this](const SizedCandidate& sized) -> Result<Quality> {
      ++n_measured_;
      return Quality{.kl = LawKl(sized), .top1 = 0.9, .hit_rate = 0.8};
    };
    return input;
  }

  // Enough, and six times as fast.
  std::span<const SizedCandidate> SomeOf(const SearchSetting& setting) {
    const std::vector<SizedCandidate> all = AllCandidates(setting);
    some_.clear();
    for (size_t i = 0; i < all.size(); i += 6) some_.push_back(all[i]);
    return some_;
  }

  std::vector<SizedCandidate> some_;
  size_t n_measured_ = 0;
};

double FastestMs(const SolverInput& input, double kl_limit) {
  double best = std::numeric_limits<double>::infinity();
  for (const SizedCandidate& sized : input.all) {
    if (LawKl(sized) <= kl_limit) best = std::min(best, LawMs(sized));
  }
  return best;
}

TEST_F(OfflineSolver, FindsTheFastestThatIsGoodEnough) {
  for (const uint32_t divisor : {13U, 34U}) {
    const SolverInput input = Input(divisor);
    const Result<SolverAnswer> answer = Solve(input);
    ASSERT_TRUE(answer.ok()) << answer.status().message();
    EXPECT_NEAR(answer->kl_limit, kOwnShare * LawKl(input.own), 1e-12);
    ASSERT_FALSE(answer->accepted.empty());
    EXPECT_LE(answer->accepted.front().predicted_ms, 1.02 * FastestMs(input, answer->kl_limit)) << divisor;
    for (size_t i = 0; i < answer->accepted.size(); ++i) {
      const bool is_own = answer->accepted[i].sized.candidate == input.own.candidate;
      EXPECT_TRUE(is_own || answer->accepted[i].quality.kl <= answer->kl_limit);
      EXPECT_LE(answer->accepted[i == 0 ? 0 : i - 1].predicted_ms, answer->accepted[i].predicted_ms);
    }
    EXPECT_EQ(answer->measured.front().sized.candidate, input.own.candidate);
    EXPECT_LE(answer->measured.size(), input.max_measurements);
  }
}

TEST_F(OfflineSolver, AGivenLimitIsKept) {
  SolverInput input = Input();
  input.kl_limit = 2 * LawKl(input.own);
  const SolverAnswer answer = Solve(input).value();
  EXPECT_EQ(answer.kl_limit, input.kl_limit);
  ASSERT_FALSE(answer.accepted.empty());
  EXPECT_LE(answer.accepted.front().predicted_ms, 1.02 * FastestMs(input, input.kl_limit));
  EXPECT_LE(answer.accepted.front().predicted_ms, LawMs(input.own)) << "kvrun's choice is within the limit";
}

// It is as good as itself on every text; a given limit holds for it too.
TEST_F(OfflineSolver, WhereNothingIsFasterTheOwnChoiceIsTaken) {
  SolverInput input = Input();
  input.predict_ms = [&](const SizedCandidate& sized, const Quality*) {
    return LawMs(sized) + (sized.candidate == input.own.candidate ? 0.0 : 100.0);
  };
  const SolverAnswer answer = Solve(input).value();
  ASSERT_FALSE(answer.accepted.empty());
  EXPECT_EQ(answer.accepted.front().sized.candidate, input.own.candidate);
  EXPECT_GT(answer.accepted.front().quality.kl, answer.kl_limit);
  input.kl_limit = 0.5 * LawKl(input.own);
  const SolverAnswer strict = Solve(input).value();
  for (const Measured& measured : strict.accepted) EXPECT_NE(measured.sized.candidate, input.own.candidate);
}

TEST_F(OfflineSolver, WhatWasMeasuredOfACandidateIsToldWhoPredicts) {
  SolverInput input = Input();
  input.kl_limit = 50.0;
  size_t n_told = 0;
  input.predict_ms = [&](const SizedCandidate& sized, const Quality* quality) {
    if (quality == nullptr) return LawMs(sized);
    ++n_told;
    EXPECT_EQ(quality->kl, LawKl(sized));
    return 2 * LawMs(sized);
  };
  const SolverAnswer answer = Solve(input).value();
  EXPECT_GE(n_told, answer.measured.size());
  for (const Measured& measured : answer.accepted)
    EXPECT_EQ(measured.predicted_ms, 2 * LawMs(measured.sized));
}

TEST_F(OfflineSolver, NothingIsMeasuredTwice) {
  const SolverAnswer answer = Solve(Input()).value();
  std::set<std::string> seen;
  for (const Measured& measured : answer.measured)
    EXPECT_TRUE(seen.insert(OptionLine(measured.sized.options)).second) << OptionLine(measured.sized.options);
  EXPECT_EQ(answer.measured.size(), n_measured_);
}

TEST_F(OfflineSolver, MeasurementsAreCounted) {
  for (const uint32_t most : {1U, 3U, 40U}) {
    n_measured_ = 0;
    SolverInput input = Input();
    input.max_measurements = most;
    const SolverAnswer answer = Solve(input).value();
    EXPECT_LE(n_measured_, most);
    EXPECT_EQ(answer.ended_early, n_measured_ == most);
    EXPECT_TRUE(most == 40 || n_measured_ == most);
    EXPECT_EQ(answer.own.sized.candidate, input.own.candidate);
  }
}

TEST_F(OfflineSolver, ItEndsWhenItIsEnough) {
  SolverInput input = Input();
  input.is_enough = [this](const Measured& measured) {
    EXPECT_GT(measured.quality.kl, 0.0);
    return n_measured_ == 7;
  };
  const SolverAnswer answer = Solve(input).value();
  EXPECT_EQ(n_measured_, 7U);
  EXPECT_TRUE(answer.ended_early);
}

TEST_F(OfflineSolver, ALimitOutOfReachAcceptsNothing) {
  SolverInput input = Input();
  input.kl_limit = 1e-8;
  const SolverAnswer answer = Solve(input).value();
  EXPECT_TRUE(answer.accepted.empty());
  EXPECT_EQ(answer.own.quality.kl, LawKl(input.own));
  EXPECT_LE(n_measured_, input.max_measurements);
  double best = std::numeric_limits<double>::infinity();
  for (const Measured& measured : answer.measured) best = std::min(best, measured.quality.kl);
  EXPECT_LT(best, 0.8 * answer.own.quality.kl) << "it looked where the quality is";
}

TEST_F(OfflineSolver, FailuresEndIt) {
  SolverInput input = Input();
  const auto works = input.measure;
  input.measure = [&](const SizedCandidate& sized) -> Result<Quality> {
    if (n_measured_ == 4) return Status(StatusCode::kDevice, "the device was lost");
    return works(sized);
  };
  const Result<SolverAnswer> answer = Solve(input);
  EXPECT_EQ(answer.status().code(), StatusCode::kDevice);
  EXPECT_EQ(answer.status().message(), "the device was lost");
  EXPECT_EQ(n_measured_, 4U);
}

TEST_F(OfflineSolver, WhereTimeRunsOutWhatWasMeasuredIsTheAnswer) {
  SolverInput input = Input();
  const auto works = input.measure;
  size_t n_most = 4;
  input.measure = [&](const SizedCandidate& sized) -> Result<Quality> {
    if (n_measured_ == n_most) return Status(StatusCode::kCancelled, "time is up");
    return works(sized);
  };
  input.ran_out = [](const Status& status) { return status.code() == StatusCode::kCancelled; };
  const SolverAnswer answer = Solve(input).value();
  EXPECT_EQ(answer.measured.size(), 4U);
  EXPECT_TRUE(answer.ended_early);
  EXPECT_FALSE(answer.accepted.empty());
  n_measured_ = n_most = 0;
  EXPECT_EQ(Solve(input).status().code(), StatusCode::kCancelled) << "not even the own choice is known";
}

TEST_F(OfflineSolver, WhereNothingIsLostTheFastestIsTaken) {
  SolverInput input = Input(1);
  input.measure = [](const SizedCandidate&) -> Result<Quality> { return Quality{.kl = 0.0}; };
  const SolverAnswer answer = Solve(input).value();
  EXPECT_EQ(answer.kl_limit, kNegligibleKl);
  ASSERT_FALSE(answer.accepted.empty());
  EXPECT_LE(answer.accepted.front().predicted_ms, LawMs(input.own));
}

TEST_F(OfflineSolver, WithoutCandidatesTheOwnChoiceIsMeasured) {
  SolverInput input = Input();
  input.all = {};
  const SolverAnswer answer = Solve(input).value();
  EXPECT_EQ(answer.own.quality.kl, LawKl(input.own));
}

// As fast, and of better quality.
TEST_F(OfflineSolver, TheBetterAdaptersAreFoundWhereverTheyComeFrom) {
  for (const bool is_file_better : {false, true}) {
    SolverInput input = Input();
    input.setting.adapter_path = "/there/a.gguf";
    input.setting.max_rank = is_file_better ? 64 : 8;  // 8: fewer columns than kvrun would compute
    input.all = SomeOf(input.setting);
    ASSERT_GT(input.own.candidate.rank, 8U);
    const auto law_kl = [&](const SizedCandidate& sized) {
      return LawKl(sized) * (sized.candidate.adapter.empty() == is_file_better ? 1.0 : 0.7);
    };
    input.measure = [&](const SizedCandidate& sized) -> Result<Quality> {
      if (!sized.candidate.adapter.empty()) {
        EXPECT_LE(sized.candidate.rank, input.setting.max_rank) << OptionLine(sized.options);
      }
      return Quality{.kl = law_kl(sized)};
    };
    const Result<SolverAnswer> answer = Solve(input);
    ASSERT_TRUE(answer.ok()) << answer.status().message();
    ASSERT_FALSE(answer->accepted.empty());
    const Measured& best = answer->accepted.front();
    EXPECT_EQ(best.sized.candidate.adapter.empty(), !is_file_better) << OptionLine(best.sized.options);
    double fastest_ms = std::numeric_limits<double>::infinity();
    for (const SizedCandidate& sized : input.all) {
      if (law_kl(sized) <= answer->kl_limit) fastest_ms = std::min(fastest_ms, LawMs(sized));
    }
    EXPECT_LE(best.predicted_ms, 1.02 * fastest_ms) << OptionLine(best.sized.options);
  }
}

TEST_F(OfflineSolver, AKlThatIsNegligibleIsNotCompared) {
  SolverInput input = Input();
  input.measure = [&](const SizedCandidate& sized) -> Result<Quality> {
    return Quality{.kl = sized.candidate == input.own.candidate ? 1e-8 : 5e-5};
  };
  const SolverAnswer answer = Solve(input).value();
  EXPECT_EQ(answer.kl_limit, kNegligibleKl);
  EXPECT_GT(answer.accepted.size(), 2U);
  EXPECT_NE(answer.accepted.front().sized.candidate, input.own.candidate) << "others are faster";
}

TEST_F(OfflineSolver, OfTwoThatAreAsFastTheOneOfLessKlIsFirst) {
  SolverInput input = Input();
  input.kl_limit = 50.0;
  input.predict_ms = [](const SizedCandidate&, const Quality*) { return 5.0; };
  const SolverAnswer answer = Solve(input).value();
  ASSERT_GT(answer.accepted.size(), 2U);
  for (size_t i = 1; i < answer.accepted.size(); ++i)
    EXPECT_LE(answer.accepted[i - 1].quality.kl, answer.accepted[i].quality.kl);
}

TEST(OfflineParetoFront, HoldsWhatNoOtherBeats) {
  const std::vector<FrontPoint> front =
      ParetoFront({{3, 0.5}, {1, 0.9}, {2, 0.9}, {2, 0.4}, {4, 0.1}, {3, 0.4}, {5, 0.1}});
  ASSERT_EQ(front.size(), 3U);
  EXPECT_EQ(front[0].index, 1U);
  EXPECT_EQ(front[1].index, 3U);
  EXPECT_EQ(front[2].index, 4U);
  EXPECT_EQ(front[1].step_ms, 2.0);
  EXPECT_EQ(front[1].kl, 0.4);
  EXPECT_TRUE(ParetoFront({}).empty());
  EXPECT_EQ(ParetoFront({{1, 1}, {1, 1}}).size(), 1U) << "of equal ones one";
}

TEST(OfflineSpreadPoints, CoverAllSettingsAndAreTheSameAgain) {
  const std::vector<SearchSetting> settings = {SmolLm2Setting(13), SmolLm2Setting(34), SmolLm2Setting(34, 4)};
  std::vector<std::vector<SizedCandidate>> candidates;
  for (const SearchSetting& setting : settings) candidates.push_back(AllCandidates(setting));
  const auto points = SpreadPoints(settings, candidates, 64, 1);
  const auto again = SpreadPoints(settings, candidates, 64, 1);
  const auto other = SpreadPoints(settings, candidates, 64, 2);
  ASSERT_EQ(points.size(), again.size());
  EXPECT_GE(points.size(), 64U);
  size_t n_equal = 0;
  size_t n_pools = 0;
  std::vector<size_t> counts(settings.size());
  std::set<std::pair<size_t, double>> shares;
  for (size_t i = 0; i < points.size(); ++i) {
    EXPECT_EQ(points[i].sized.candidate, again[i].sized.candidate);
    EXPECT_EQ(points[i].repeated_share, again[i].repeated_share);
    if (points[i].sized.candidate == other[i].sized.candidate) ++n_equal;
    EXPECT_GE(points[i].repeated_share, 0.5);
    EXPECT_LE(points[i].repeated_share, 1.0);
    for (size_t k = 0; k < settings.size(); ++k) {
      if (points[i].setting.budget_bytes != settings[k].budget_bytes) continue;
      ++counts[k];
      shares.insert({k, points[i].repeated_share});
      EXPECT_LE(points[i].sized.plan.decode_bytes(), settings[k].budget_bytes);
      const KvPlan& plan = points[i].sized.plan;
      const bool has_pool = points[i].sized.candidate.pool_entries > 0;
      n_pools += has_pool ? 1 : 0;
      const double n_free = plan.choice.n_chosen - plan.choice.n_pinned + plan.choice.n_sampled;
      const double n_hits = points[i].repeated_share * std::min(n_free, 1.0 * plan.slots.n_cache_slots);
      EXPECT_LE(plan.n_streams * (n_free - n_hits), 100.0 * settings[k].batch + 1e-9);
    }
  }
  EXPECT_GE(n_pools, points.size() / 5);
  EXPECT_LT(n_pools, points.size() / 3);
  EXPECT_LT(n_equal, points.size() / 2) << "another seed, other points";
  for (const size_t count : counts) EXPECT_GE(count, 21U);
  EXPECT_GE(shares.size(), 3 * settings.size());
  EXPECT_EQ(SpreadPoints(settings, candidates, 1, 1).size(), 4 * settings.size()) << "four of each at least";
  EXPECT_TRUE(SpreadPoints({}, {}, 10, 1).empty());
  candidates[1].clear();
  EXPECT_EQ(SpreadPoints(settings, candidates, 1, 1).size(), 4 * (settings.size() - 1));
}

TEST(OfflineSpreadPoints, TakeTurns) {
  const auto of_batch = [](uint32_t batch, double share) {
    StepPoint point;
    point.setting.batch = batch;
    point.repeated_share = share;
    return point;
  };
  const std::vector<StepPoint> turns =
      InTurns({{of_batch(1, 0.1), of_batch(1, 0.2), of_batch(1, 0.3)}, {}, {of_batch(3, 0.4)}});
  std::vector<std::pair<uint32_t, double>> seen;
  for (const StepPoint& point : turns) seen.emplace_back(point.setting.batch, point.repeated_share);
  EXPECT_EQ(seen, (std::vector<std::pair<uint32_t, double>>{{1, 0.1}, {3, 0.4}, {1, 0.2}, {1, 0.3}}));
  EXPECT_TRUE(InTurns({}).empty());
}

TEST(OfflineSettings, AreThoseOfTheOptions) {
  KvStorageOptions storage;
  storage.folder = "/there";
  const Result<KvSettings> settings = SettingsOf({{"group", "8"}, {"type", "fp8,int4"}}, storage);
  ASSERT_TRUE(settings.ok());
  EXPECT_EQ(settings->kv.method, "kvswap");
  EXPECT_EQ(settings->kv.group_tokens, 8U);
  EXPECT_EQ(settings->kv.v_type, KvType::kInt4);
  EXPECT_EQ(settings->storage.folder, "/there");
  EXPECT_EQ(SettingsOf({{"grouping", "8"}}, storage).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace kvrun::offline
