// Groups that are drawn at random beside the selected ones (--kv-sample): what is drawn is the same whenever
// it is asked for, stands for what is left out, and leaves nothing out where there is no more.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "runtime/engine/measure/logits_comparison.h"
#include "runtime/kv/serve/record_cache.h"
#include "tests/support/engine_fixture.h"
#include "tests/support/or_die.h"
#include "tests/support/program_runner.h"
#include "tests/support/small_models.h"

namespace kvrun::testing {
namespace {

constexpr uint32_t kSampleContext = 800;
constexpr uint32_t kSamplePrompt = 700;

class SampleTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (SharedDevice() == nullptr) GTEST_SKIP() << "no device";
    loaded_ = LoadSmallModel({"SelfMade", ""}, folder_);
    ids_ = SomeIds(kSampleContext, 3, loaded_.model->config.n_vocab);
  }

  std::unique_ptr<ForwardPass> NewPass(const std::string& options, uint32_t n_sequences = 1) const {
    return loaded_.NewPass(
        {.n_sequences = n_sequences,
         .n_ctx = kSampleContext,
         .offloaded = OffloadedOptionsOrDie(loaded_, folder_, "--kv-method kvswap --kv-type f32 " + options,
                                            kSampleContext, n_sequences)});
  }

  // After a prompt, the logits of each of some tokens.
  std::vector<std::vector<float>> Say(ForwardPass& pass, size_t n_steps = 12) const {
    Feed(pass, ids_, 0, kSamplePrompt, kSamplePrompt);
    std::vector<std::vector<float>> all;
    for (size_t i = 0; i < n_steps; ++i) {
      all.push_back(Feed(pass, ids_, kSamplePrompt + i, kSamplePrompt + i + 1, 1));
    }
    return all;
  }
  std::vector<std::vector<float>> Say(const std::string& options) const { return Say(*NewPass(options)); }

  static double Distance(const std::vector<std::vector<float>>& a, const std::vector<std::vector<float>>& b) {
    double sum = 0.0;
    for (size_t i = 0; i < a.size(); ++i) {
      for (size_t k = 0; k < a[i].size(); ++k) sum += std::pow(double{a[i][k]} - double{b[i][k]}, 2);
    }
    return std::sqrt(sum);
  }

  TemporaryFolder folder_;
  LoadedModel loaded_;
  std::vector<int> ids_;
};

// All that is not selected is drawn, with a probability of one.
TEST_F(SampleTest, DrawingAllThatIsLeftAttendsToEverything) {
  const std::vector<std::vector<float>> everything = Say("--kv-select 800");
  for (const std::string heads : {"softmax", "per-kv-head"}) {
    for (const std::string rest : {"", "--kv-reuse 3", "--kv-reuse 0", "--kv-rotate on", "--kv-sinks 0"}) {
      const auto found = Say(fmt::format("--kv-select 40 --kv-sample 800 --kv-heads {} {}", heads, rest));
      for (size_t i = 0; i < found.size(); ++i) {
        const float largest = *std::max_element(everything[i].begin(), everything[i].end());
        for (size_t k = 0; k < found[i].size(); ++k) {
          ASSERT_NEAR(found[i][k], everything[i][k], 2e-3F * largest)
              << heads << " " << rest << ": step " << i;
        }
      }
    }
  }
}

TEST_F(SampleTest, TheSameSeedDrawsTheSame) {
  const std::string options = "--kv-select 40 --kv-sample 60 --kv-seed ";
  const auto first = Say(options + "7");
  EXPECT_EQ(Say(options + "7"), first);
  EXPECT_NE(Say(options + "8"), first);
}

// A sample does not depend on which slots hold what, nor on which sequences share a step.
TEST_F(SampleTest, SlotsAndBatchesDoNotChangeWhatIsDrawn) {
  const std::string options = "--kv-select 40 --kv-sample 60 ";
  const auto expected = Say(options);
  const auto expect_near = [&](const std::vector<float>& found, size_t step, const std::string& what) {
    const float largest = *std::max_element(expected[step].begin(), expected[step].end());
    for (size_t k = 0; k < found.size(); ++k)
      ASSERT_NEAR(found[k], expected[step][k], 2e-3F * largest) << what << ": step " << step;
  };
  for (const std::string reuse : {"--kv-reuse 0", "--kv-reuse 4", "--kv-reuse 40"}) {
    const auto found = Say(options + reuse);
    for (size_t i = 0; i < found.size(); ++i) expect_near(found[i], i, reuse);
  }
  const auto pass = NewPass(options, 2);
  Feed(*pass, ids_, 0, kSamplePrompt, kSamplePrompt, 1);  // the first makes the adapters
  Feed(*pass, ids_, 0, 300, 300, 0);
  for (uint32_t i = 0; i < expected.size(); ++i) {
    ForwardStep rows(SpanKind::kDecode, {ids_[300 + i], 300 + i, 0});
    rows.Add(SpanKind::kDecode, {ids_[kSamplePrompt + i], kSamplePrompt + i, 1});
    const std::vector<uint32_t> outputs = {1};
    std::vector<float> found(pass->n_vocab());
    RunOrDie(pass->Run(rows, outputs, found));
    expect_near(found, i, "in a batch");
  }
}

// Fewer entries than the selection alone has, on average nearer to all of them.
TEST_F(SampleTest, WhatIsDrawnStandsForWhatIsLeftOut) {
  const auto everything = Say("--kv-select 800");
  const double without = Distance(Say("--kv-select 48"), everything);
  std::vector<std::vector<float>> mean;
  constexpr int kSeeds = 6;
  for (int seed = 0; seed < kSeeds; ++seed) {
    const auto found = Say(fmt::format("--kv-select 48 --kv-sample 160 --kv-seed {}", seed));
    if (mean.empty()) mean.assign(found.size(), std::vector<float>(found[0].size()));
    for (size_t i = 0; i < found.size(); ++i) {
      for (size_t k = 0; k < found[i].size(); ++k) mean[i][k] += found[i][k] / kSeeds;
    }
  }
  EXPECT_LT(Distance(mean, everything), 0.5 * without);
}

TEST_F(SampleTest, StatisticsTellWhatWasDrawn) {
  const auto pass = NewPass("--kv-select 40 --kv-sample 60");
  EXPECT_EQ(pass->record_cache()->plan().choice.n_sampled, 15U);
  Say(*pass, 4);
  const KvStats stats = pass->kv_report()->stats;
  const uint64_t lists = 4 * loaded_.model->config.n_layers;
  EXPECT_GE(stats.drawn_groups, 14 * lists);
  EXPECT_LE(stats.drawn_groups, 16 * lists);
  EXPECT_EQ(stats.chosen_groups, 10 * lists + stats.drawn_groups);
}

// Forgets into what was drawn from, and goes on.
TEST_F(SampleTest, DrawsAfterForgetting) {
  const auto pass = NewPass("--kv-select 40 --kv-sample 60");
  const auto first = Say(*pass, 6);
  const std::vector<float> again = Feed(*pass, ids_, kSamplePrompt, kSamplePrompt + 1, 1);
  const float largest = *std::max_element(first[0].begin(), first[0].end());
  for (size_t k = 0; k < again.size(); ++k) ASSERT_NEAR(again[k], first[0][k], 2e-3F * largest);
}

}  // namespace
}  // namespace kvrun::testing
