// Reads that are limited (--kv-reads): where slots hold everything nothing changes; a run repeats, alone or
// in a batch; fewer groups are read, and what is told as attended to is what lies in the slots.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "runtime/kv/serve/record_cache.h"
#include "tests/support/engine_fixture.h"
#include "tests/support/or_die.h"
#include "tests/support/small_models.h"

namespace kvrun::testing {
namespace {

constexpr uint32_t kContext = 800;
constexpr uint32_t kPrompt = 700;
constexpr size_t kSteps = 24;

class ReadLimitTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (SharedDevice() == nullptr) GTEST_SKIP() << "no device";
    loaded_ = LoadSmallModel({"SelfMade", ""}, folder_);
    ids_ = SomeIds(kContext, 3, loaded_.model->config.n_vocab);
  }

  std::unique_ptr<ForwardPass> NewPass(const std::string& options, uint32_t n_sequences = 1) const {
    return loaded_.NewPass({.n_sequences = n_sequences,
                            .n_ctx = kContext,
                            .offloaded = OffloadedOptionsOrDie(
                                loaded_, folder_, "--kv-method kvswap " + options, kContext, n_sequences)});
  }
  std::vector<std::vector<float>> Say(ForwardPass& pass) const {
    Feed(pass, ids_, 0, kPrompt, kPrompt);
    std::vector<std::vector<float>> all;
    for (size_t i = 0; i < kSteps; ++i) {
      all.push_back(Feed(pass, ids_, kPrompt + i, kPrompt + i + 1, 1));
    }
    return all;
  }
  std::vector<std::vector<float>> Say(const std::string& options) const { return Say(*NewPass(options)); }

  TemporaryFolder folder_;
  LoadedModel loaded_;
  std::vector<int> ids_;
};

// Free slots are filled whatever the limit is.
TEST_F(ReadLimitTest, WhereSlotsHoldEverythingNothingChanges) {
  for (const std::string heads : {"softmax", "gqa", "per-kv-head"}) {
    const std::string options = "--kv-type f32 --kv-select 800 --kv-heads " + heads;
    const auto everything = Say(options);
    const auto limited = Say(options + " --kv-reads 0.01");
    for (size_t i = 0; i < kSteps; ++i) EXPECT_EQ(limited[i], everything[i]) << heads << ": step " << i;
  }
}

TEST_F(ReadLimitTest, FewerAreReadAndOthersStandIn) {
  const std::string options = "--kv-type int8,int4 --kv-select 200 ";
  const auto reads = [&](const std::string& more) {
    const std::unique_ptr<ForwardPass> pass = NewPass(options + more);
    Say(*pass);
    return *pass->kv_report();
  };
  const KvReport all = reads("");
  const KvReport some = reads("--kv-reads 2");
  EXPECT_EQ(all.stats.stand_in_groups, 0U);
  EXPECT_GT(some.stats.stand_in_groups, 0U);
  EXPECT_EQ(some.stats.chosen_groups, all.stats.chosen_groups);
  EXPECT_LT(some.store.records_read * 2, all.store.records_read);
  EXPECT_LE(some.stats.hit_groups + some.stats.stand_in_groups, some.stats.chosen_groups);
  // With slots to spare, too; then no more are attended to than are selected.
  const KvReport spare = reads("--kv-reads 2 --kv-reuse 90");
  EXPECT_LT(spare.stats.stand_in_groups, some.stats.stand_in_groups);
}

TEST_F(ReadLimitTest, ARunRepeatsAloneAndInABatch) {
  const std::string options = "--kv-type f32 --kv-select 160 --kv-reads 3";
  const auto expected = Say(options);
  EXPECT_EQ(Say(options), expected);
  EXPECT_NE(Say("--kv-type f32 --kv-select 160"), expected);
  const auto pass = NewPass(options, 2);
  Feed(*pass, ids_, 0, kPrompt, kPrompt, 1);  // the first makes the adapters
  Feed(*pass, ids_, 0, 300, 300, 0);
  for (uint32_t i = 0; i < kSteps; ++i) {
    ForwardStep rows;
    rows.Add(SpanKind::kDecode, {ids_[300 + i], 300 + i, 0});
    rows.Add(SpanKind::kDecode, {ids_[kPrompt + i], kPrompt + i, 1});
    const std::vector<uint32_t> outputs = {1};
    std::vector<float> found(pass->n_vocab());
    RunOrDie(pass->Run(rows, outputs, found));
    const float largest = *std::max_element(expected[i].begin(), expected[i].end());
    for (size_t k = 0; k < found.size(); ++k) {
      ASSERT_NEAR(found[k], expected[i][k], 2e-3F * largest) << "step " << i;
    }
  }
}

// What the slots hold goes on being attended to after a sequence was cut short, but nothing twice.
TEST_F(ReadLimitTest, AfterTruncationNothingIsAttendedToTwice) {
  const auto pass = NewPass("--kv-type f32 --kv-select 400 --kv-reads 1");
  Say(*pass);
  for (const uint32_t length : {kPrompt - 3, kPrompt - 60, kPrompt - 130}) {
    Feed(*pass, ids_, length, length + 1, 1);
    RecordCache& cache = *pass->record_cache();
    const KvPlan& plan = cache.plan();
    for (uint32_t layer = 0; layer < loaded_.model->config.n_layers; ++layer) {
      for (const std::vector<uint32_t>& groups : cache.reports().BeforeWindow(layer, 0, length)) {
        EXPECT_TRUE(std::is_sorted(groups.begin(), groups.end()));
        EXPECT_TRUE(std::adjacent_find(groups.begin(), groups.end()) == groups.end());
        ASSERT_FALSE(groups.empty());
        EXPECT_LT(groups.back(), plan.FirstWindowGroup(length + 1));
        EXPECT_LE(groups.size(), plan.choice.n_chosen);
      }
    }
  }
}

}  // namespace
}  // namespace kvrun::testing
