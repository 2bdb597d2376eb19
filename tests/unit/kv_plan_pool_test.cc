// Plans in which more is selected than each layer has slots for: what they hold, and what is counted.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "runtime/kv/planner/describe_plan.h"
#include "tests/support/kv_plan_cases.h"

namespace kvrun::testing {
namespace {

// Bytes of slots that are shared, counted from the plan's fields.
uint64_t PoolBytes(const KvPlan& plan) {
  return uint64_t{plan.pool_parts()} * plan.n_streams * plan.slots.n_pool_slots * plan.record.size_bytes();
}

// At 1/13 of the memory, three times the entries for which there are slots.
TEST(KvPlanPool, ALargeSelectionGetsAsManySlotsAsFitBesideThePool) {
  KvOptions options = Swap(1.0 / 13);
  options.select_entries = 2000;
  for (const uint32_t n_sequences : {1U, 3U}) {
    const KvPlan plan = Plan(options, kSmolLm2, 8192, n_sequences);
    ExpectSound(plan, kSmolLm2);
    EXPECT_EQ(plan.selected_entries(), 2000U);
    EXPECT_EQ(plan.record.k_type, KvType::kInt8) << "the types that suit the budget";
    EXPECT_EQ(plan.index.rank, 24U);
    EXPECT_EQ(plan.pool_parts(), 2U);
    EXPECT_EQ(Part(plan, "pool"), PoolBytes(plan));
    EXPECT_GT(plan.slots.n_cache_slots, 100U);
    EXPECT_GE(std::max(plan.decode_bytes(), plan.prefill_bytes()), plan.budget.bytes / 100 * 97);
    EXPECT_NE(DescribePlan(plan).find("in the cache (lru), a pool of 2 x "), std::string::npos)
        << DescribePlan(plan);
  }
}

// What fits has slots of its own, in the best types that leave room for them, as without a pool.
TEST(KvPlanPool, ASelectionThatFitsHasNone) {
  KvOptions options = Swap(1.0 / 13);
  options.select_entries = 400;
  const KvPlan plan = Plan(options);
  EXPECT_EQ(plan.slots.n_cache_slots, plan.choice.n_chosen);
  EXPECT_EQ(plan.slots.n_pool_slots, 0U);
  EXPECT_EQ(plan.pool_parts(), 0U);
  EXPECT_EQ(plan.slots.policy, "lru");
  EXPECT_EQ(Part(plan, "pool"), 0U);
}

TEST(KvPlanPool, AReuseBufferMayBeSmallerThanTheSelectionOrNone) {
  KvOptions options = Unlimited("kvswap");
  for (const uint32_t reuse : {0U, 1U, 50U, 100U}) {
    options.reuse_groups = reuse;
    const KvPlan plan = Plan(options);
    ExpectSound(plan, kSmolLm2);
    EXPECT_EQ(plan.choice.n_chosen, 101U);
    EXPECT_EQ(plan.slots.n_cache_slots, reuse);
    EXPECT_EQ(plan.slots.n_pool_slots, 101U - reuse);
  }
}

TEST(KvPlanPool, NonHitHasAsManySlotsAsItSelectsOrIsRefused) {
  KvOptions options = Unlimited("kvswap");
  options.policy = "non-hit";
  options.reuse_groups = 50;
  ExpectMessage(Refusal(options), StatusCode::kInvalidArgument,
                "as many slots as groups are selected, 101, not 50");
  options = Swap(1.0 / 13);
  options.policy = "non-hit";
  options.reuse_groups = 1;
  ExpectMessage(Refusal(options), StatusCode::kInvalidArgument,
                "as many slots as groups are selected, 2, not 1");
  options.reuse_groups.reset();
  options.select_entries = 2000;
  const KvPlan plan = Plan(options);
  EXPECT_EQ(plan.slots.n_cache_slots, plan.choice.n_chosen) << "in fewer bits";
  ExpectSound(plan, kSmolLm2);
}

// By the layer's own query: when its choice is known, the layer before is complete.
TEST(KvPlanPool, WithoutLookaheadThePoolHasOnePart) {
  for (const char* method : {"quest", "oracle", "loki"}) {
    KvOptions options = Unlimited(method);
    options.reuse_groups = 3;
    const KvPlan plan = Plan(options);
    ExpectSound(plan, kSmolLm2);
    EXPECT_EQ(plan.pool_parts(), 1U) << method;
    EXPECT_EQ(Part(plan, "pool"), PoolBytes(plan));
  }
  const KvPlan flexgen = Plan(Unlimited("flexgen"));
  EXPECT_EQ(flexgen.pool_parts(), 1U);
  EXPECT_EQ(flexgen.slots.n_pool_slots, flexgen.n_groups());
  EXPECT_EQ(flexgen.slots.n_cache_slots, 0U);
  EXPECT_EQ(Part(flexgen, "slots"), 0U);
  EXPECT_EQ(Part(flexgen, "pool"), PoolBytes(flexgen));
}

// The least budget for a selection is that of the pool without own slots.
TEST(KvPlanPool, ASmallBudgetIsAnsweredWithWhatThePoolNeeds) {
  KvOptions options = Unlimited("kvswap");
  options.select_entries = 4000;
  options.budget_bytes = 1 << 20;
  const Status refusal = Refusal(options);
  const uint64_t least = BytesAfter(refusal.message(), "needs at least ");
  options.budget_bytes = least;
  const KvPlan plan = Plan(options);
  ExpectSound(plan, kSmolLm2);
  EXPECT_EQ(plan.selected_entries(), 4000U);
  EXPECT_LT(least, uint64_t{30} * plan.choice.n_chosen * plan.record.size_bytes())
      << "less than slots for all of it";
}

}  // namespace
}  // namespace kvrun::testing
