// Plans of clusters: what options and budgets make of them, and what is refused.
#include <gtest/gtest.h>

#include <string>

#include "platform/base/units.h"
#include "runtime/kv/plan/kv_plan.h"
#include "runtime/kv/planner/describe_plan.h"
#include "runtime/kv/planner/kv_options.h"
#include "runtime/kv/planner/plan_kv.h"
#include "tests/support/kv_plan_cases.h"
#include "tests/support/or_die.h"

namespace kvrun::testing {
namespace {

Result<KvPlan> PlanOf(const std::string& options, uint32_t n_ctx = 8192, uint32_t n_sequences = 1) {
  KvSettings settings;
  const Status parsed = ParseKvOptions("--kv-method dynakv " + options, &settings);
  if (!parsed.ok()) return parsed;
  return PlanKv(settings.kv, kSmolLm2, n_ctx, n_sequences, 4096);
}

KvPlan Must(const std::string& options, uint32_t n_ctx = 8192) {
  const Result<KvPlan> plan = PlanOf(options, n_ctx);
  EXPECT_TRUE(plan.ok()) << options << ": " << plan.status().message();
  return plan.ok() ? *plan : KvPlan();
}

TEST(ClusterPlan, EntriesAreOfOneKvHeadAndSlotsHoldSeveral) {
  const KvPlan plan = Must("--kv-type fp8 --kv-select 760");
  EXPECT_EQ(plan.n_streams, 3U);
  EXPECT_EQ(plan.record.group_tokens, 1U);
  EXPECT_EQ(plan.slots.record.group_tokens, 4U);
  EXPECT_TRUE(plan.slots.record.has_positions);
  EXPECT_EQ(plan.of_clusters().mean_entries, 16U);
  EXPECT_EQ(plan.of_clusters().max_entries, 64U);
  EXPECT_EQ(plan.records_per_extent(), 16U);
  // 190 slots, if the last one of each cluster were full.
  EXPECT_EQ(plan.choice.n_chosen, 207U);
  EXPECT_EQ(plan.EntriesOfSlots(plan.choice.n_chosen), 757U);
  EXPECT_EQ(plan.index.rank, 68U);
  EXPECT_EQ(plan.index.n_sequences, 3U);
}

TEST(ClusterPlan, AllEntriesFitWhateverClustersAre) {
  for (const char* options : {"--kv-cluster 1", "--kv-cluster 16 --kv-group 3", "--kv-cluster 900"}) {
    const KvPlan plan = Must(std::string("--kv-select 100000 ") + options, 1000);
    // Each cluster leaves one slot filled in part.
    const uint64_t slot_tokens = plan.slots.record.group_tokens;
    const uint64_t most = 1000 / slot_tokens + plan.of_clusters().n_clusters;
    EXPECT_EQ(plan.choice.n_chosen, plan.n_choosable());
    EXPECT_LE(plan.choice.n_chosen, most);
    EXPECT_GE(plan.choice.n_chosen * slot_tokens, 1000U);
    EXPECT_EQ(plan.EntriesOfSlots(plan.choice.n_chosen), 1000U);
  }
}

// A selection ends before a cluster that does not fit.
TEST(ClusterPlan, AnyClusterFitsIntoASelection) {
  EXPECT_EQ(Must("--kv-select 20").of_clusters().max_entries, 20U);
  EXPECT_EQ(Must("--kv-select 20 --kv-cluster-max 12").of_clusters().max_entries, 12U);
  const Result<KvPlan> refused = PlanOf("--kv-select 20 --kv-cluster-max 64");
  EXPECT_NE(refused.status().message().find("raise --kv-select, or lower --kv-cluster-max"),
            std::string::npos)
      << refused.status().message();
}

// Two thirds of 90 lists, or as many as are asked for.
TEST(ClusterPlan, UpkeepIsBounded) {
  EXPECT_EQ(Must("").of_clusters().upkeep_clusters, 60U);
  EXPECT_EQ(Must("--kv-upkeep 7").of_clusters().upkeep_clusters, 7U);
  EXPECT_NE(PlanOf("--kv-upkeep 0").status().message().find("upkeep"), std::string::npos);
}

// Whatever clusters are like at first.
TEST(ClusterPlan, TheIndexHasTheRoomThatIsAskedFor) {
  EXPECT_EQ(Must("").of_clusters().n_clusters, 648U);  // 1.25 * 8192 / 16, and 8
  const KvPlan some = Must("--kv-cluster-room 500");
  EXPECT_EQ(some.of_clusters().n_clusters, 500U);
  EXPECT_EQ(some.index.n_groups, 500U);
  const KvPlan small = Must("--kv-cluster-room 500 --kv-cluster 6 --kv-cluster-max 64");
  EXPECT_EQ(small.index.n_groups, 500U);
  EXPECT_EQ(small.of_clusters().mean_entries, 6U);
  const std::string message = PlanOf("--kv-cluster-room 127").status().message();
  EXPECT_NE(message.find("room for 127 clusters of up to 64 entries, and the context has 8192: raise"),
            std::string::npos)
      << message;
}

TEST(ClusterPlan, SmallBudgetsHaveLargerClusters) {
  EXPECT_EQ(Must("--kv-budget 1/4").of_clusters().mean_entries, 16U);
  EXPECT_EQ(Must("--kv-budget 1/13").of_clusters().mean_entries, 24U);
  EXPECT_EQ(Must("--kv-budget 1/26").of_clusters().mean_entries, 24U);
  EXPECT_EQ(Must("--kv-budget 1/34").of_clusters().mean_entries, 48U);
  EXPECT_EQ(Must("--kv-budget 1/34 --kv-cluster 64").of_clusters().mean_entries, 64U);
  for (const char* options :
       {"--kv-budget 1/4", "--kv-budget 1/13", "--kv-budget 1/34", "--kv-budget 1/13 --kv-cluster 8",
        "--kv-budget 1/13 --kv-select 2000", "--kv-budget 20M --kv-policy cluster --kv-pending 64"}) {
    ExpectSound(Must(options), kSmolLm2);
  }
}

// 400 entries, as without a budget, though the slots of each layer would hold fewer.
TEST(ClusterPlan, SmallBudgetsSelectThroughThePool) {
  for (const char* options : {"--kv-budget 1/20", "--kv-budget 1/26", "--kv-budget 1/34"}) {
    const KvPlan plan = Must(options);
    EXPECT_NEAR(plan.EntriesOfSlots(plan.choice.n_chosen), 400, 4) << options;
    EXPECT_EQ(plan.slots.n_pool_slots, plan.choice.n_chosen - plan.slots.n_cache_slots);
    EXPECT_GT(plan.slots.n_pool_slots, 0U) << options;
    EXPECT_GT(plan.slots.n_cache_slots, 0U) << options;
    ExpectSound(plan, kSmolLm2);
  }
  EXPECT_EQ(Must("--kv-budget 1/13").slots.n_pool_slots, 0U);
}

// Rows of three layers, what they are read through, and what has changed of the others.
TEST(ClusterPlan, AnIndexOnFlashLeavesMoreForSlots) {
  const std::string options = "--kv-type fp8 --kv-select 760 --kv-reuse 100 ";
  const KvPlan in_memory = Must(options);
  const KvPlan on_flash = Must(options + "--kv-representatives flash");
  EXPECT_FALSE(in_memory.of_clusters().rows_on_flash);
  EXPECT_EQ(on_flash.choice.n_chosen, in_memory.choice.n_chosen);
  EXPECT_EQ(on_flash.slots.n_cache_slots, in_memory.slots.n_cache_slots);
  const uint64_t rows = in_memory.index.size_bytes();
  const uint64_t list = RoundUp<uint64_t>(rows / 3, 4096);
  EXPECT_EQ(on_flash.of_clusters().row_staging_bytes, 3 * list + 2 * list);
  EXPECT_EQ(Part(on_flash, "checksums"), Part(in_memory, "checksums") + uint64_t{30} * 3 * 8);
  const uint64_t saved = Part(in_memory, "index") - Part(on_flash, "index");
  EXPECT_LT(saved, 27 * rows);
  EXPECT_GT(saved, 27 * rows - uint64_t{30} * 3 * 20 * 76);
  EXPECT_EQ(in_memory.decode_bytes() - on_flash.decode_bytes(),
            saved - on_flash.of_clusters().row_staging_bytes - uint64_t{30} * 3 * 8);
  EXPECT_NE(DescribePlan(on_flash).find("index 68 x int8 on flash"), std::string::npos)
      << DescribePlan(on_flash);
  for (const std::string budget : {"--kv-budget 1/4", "--kv-budget 1/13", "--kv-budget 1/34"}) {
    ExpectSound(Must(budget + " --kv-representatives flash"), kSmolLm2);
    // Or for what the budget would not hold otherwise.
    const std::string same = budget + " --kv-type int4 --kv-window 16 --kv-cluster 48 ";
    EXPECT_GT(Must(same + "--kv-representatives flash").slots.n_cache_slots, Must(same).slots.n_cache_slots)
        << budget;
  }
}

TEST(ClusterPlan, WhatMakesNoSenseIsRefused) {
  const auto message = [](const std::string& options, uint32_t n_sequences = 1) {
    return PlanOf(options, 8192, n_sequences).status().message();
  };
  const auto has = [](const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
  };
  EXPECT_TRUE(has(message("--kv-heads softmax"), "--kv-heads softmax does not go with the KV method dynakv"));
  EXPECT_TRUE(has(message("--kv-mass 0.9"), "--kv-mass does not go with the KV method dynakv"));
  EXPECT_TRUE(has(message("--kv-rank 8"), "--kv-rank does not go with the KV method dynakv"));
  EXPECT_TRUE(has(message("--kv-cluster 2000"), "they can have 1 to 1024"));
  EXPECT_TRUE(has(message("--kv-pending 2000"), "that can be 1 to 1024"));
  EXPECT_TRUE(has(message("--kv-select 0"), "nothing would be selected"));
  EXPECT_TRUE(has(message("", 200), "at most 170 sequences"));
  EXPECT_TRUE(
      has(message("--kv-update local --kv-pending 100 --kv-cluster-max 50"), "raise --kv-cluster-max"));
  KvSettings settings;
  EXPECT_FALSE(ParseKvOptions("--kv-split 0", &settings).ok());
  EXPECT_FALSE(ParseKvOptions("--kv-split nan", &settings).ok());
  EXPECT_FALSE(ParseKvOptions("--kv-cluster-max 1", &settings).ok());
  KvSettings kvswap;
  RunOrDie(ParseKvOptions("--kv-method kvswap --kv-representatives flash", &kvswap));
  EXPECT_TRUE(has(PlanKv(kvswap.kv, kSmolLm2, 8192, 1, 4096).status().message(),
                  "--kv-representatives does not go with the KV method kvswap, which has no clusters"));
  RunOrDie(ParseKvOptions("--kv-method kvswap --kv-cluster 8", &settings));
  EXPECT_TRUE(has(PlanKv(settings.kv, kSmolLm2, 8192, 1, 4096).status().message(), "which has no clusters"));
}

TEST(ClusterPlan, ThePlansLineSaysWhatClustersAre) {
  const std::string line = DescribePlan(Must("--kv-type fp8 --kv-select 760"));
  EXPECT_NE(
      line.find(
          "757 of 8192 entries in clusters of 16 on average, 64 at most (4 sinks, up to 16 pending), and "
          "a window of 64"),
      std::string::npos)
      << line;
}

}  // namespace
}  // namespace kvrun::testing
