// Plans of kvswap: groups, slots, streams, sinks and the window, at any context and any option.
#include "runtime/kv/plan/kv_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>

#include "runtime/kv/plan/kv_plan_input.h"
#include "runtime/kv/planner/describe_plan.h"
#include "runtime/kv/planner/plan_kv.h"
#include "tests/support/kv_plan_cases.h"

namespace kvrun::testing {
namespace {

// Each KV head gets as many columns, where columns are of heads.
TEST(KvPlan, RanksOfHeadsAreMultiples) {
  KvModelShape model = kSmolLm2;  // 3 KV heads
  model.head_dim = 80;
  KvOptions options = Swap(1.0 / 13);
  EXPECT_EQ(Plan(options, model).index.rank, 32U);
  options.adapter_kind = AdapterKind::kHeads;
  EXPECT_EQ(Plan(options, model).index.rank, 30U);
}

TEST(KvPlan, ABatchHasItsOwnOfEverythingButScratch) {
  const KvPlan one = Plan(Swap(1.0 / 13));
  const KvPlan four = Plan(Swap(1.0 / 13), kSmolLm2, 8192, 4);
  ExpectSound(four, kSmolLm2);
  EXPECT_EQ(four.budget.full_bytes, 4 * one.budget.full_bytes);
  EXPECT_EQ(four.n_streams, 4U);
  EXPECT_EQ(Part(four, "index"), 4 * Part(one, "index"));
  EXPECT_EQ(Part(four, "staging"), Part(one, "staging"));
  EXPECT_GE(four.selected_entries(), one.selected_entries());  // sequences are prefilled one after another
}

TEST(KvPlan, HeadsThatSelectAloneAreStreams) {
  KvOptions options = Swap(1.0 / 13);
  options.heads = HeadReduction::kPerKvHead;
  const KvPlan plan = Plan(options, kSmolLm2, 8192, 2);
  ExpectSound(plan, kSmolLm2);
  EXPECT_EQ(plan.n_streams, 6U);
  EXPECT_EQ(plan.record.n_heads, 1U);
  EXPECT_EQ(plan.index.n_sequences, 2U);
}

TEST(KvPlan, EverythingMayBeSelected) {
  KvOptions options = Unlimited("kvswap");
  options.select_entries = 8192;
  options.k_type = options.v_type = KvType::kF32;
  const KvPlan plan = Plan(options, kSmolLm2, 8191);
  ExpectSound(plan, kSmolLm2);
  EXPECT_EQ(plan.n_groups(), 2048U);
  EXPECT_EQ(plan.choice.n_chosen, plan.n_groups());
  EXPECT_EQ(plan.prefill.tile_tokens, 8191U);
  EXPECT_FALSE(plan.prefill.spills_hidden);
  EXPECT_EQ(plan.record.k_type, KvType::kF32);
}

TEST(KvPlan, ReuseBufferAndSelectionGoTogether) {
  KvOptions options = Unlimited("kvswap");
  options.reuse_groups = 150;
  EXPECT_EQ(Plan(options).choice.n_chosen, 101U);
  options.select_entries = 402;  // 100 groups and the pinned one
  const KvPlan plan = Plan(options);
  EXPECT_EQ(plan.choice.n_chosen, 101U);
  EXPECT_EQ(plan.slots.n_cache_slots, 150U);
  options.policy = "non-hit";
  ExpectMessage(Refusal(options), StatusCode::kInvalidArgument, "as many slots as groups are selected, 101");
  options.reuse_groups.reset();
  options.policy = "non-hit";
  EXPECT_EQ(Plan(options).slots.n_cache_slots, 101U);
  options.select_entries = 0;  // sinks and window alone
  EXPECT_EQ(Plan(options).choice.n_chosen, 1U);
  options.sink_entries = 0;
  ExpectMessage(Refusal(options), StatusCode::kInvalidArgument, "nothing would be selected");
}

TEST(KvPlan, ASmallReuseBufferDoesNotShrinkTheSelectionSilently) {
  KvOptions options = Unlimited("kvswap");
  options.reuse_groups = 50;
  EXPECT_EQ(Plan(options).choice.n_chosen, 101U);
  EXPECT_EQ(Plan(options, kSmolLm2, 200).choice.n_chosen, 50U) << "all that there are";

  options = Swap(1.0 / 13);
  EXPECT_EQ(DescribePlan(Plan(options)).find("reuse buffer"), std::string::npos);
  options.reuse_groups = 1;
  EXPECT_EQ(Plan(options).choice.n_chosen, 2U) << "one beside the pinned one";
  options.reuse_groups = 50;
  const KvPlan plan = Plan(options);
  EXPECT_EQ(plan.choice.n_chosen, 50U);
  EXPECT_NE(
      DescribePlan(plan).find("; 200 of 8192 entries (no more, as the reuse buffer was given 50 groups) in"),
      std::string::npos)
      << DescribePlan(plan);
}

TEST(KvPlan, NoMoreEntriesAreNamedThanThereAre) {
  KvOptions options = Unlimited("kvswap");
  options.select_entries = 604;
  const std::string all = DescribePlan(Plan(options, kSmolLm2, 603));
  EXPECT_NE(all.find("; all 603 entries in groups of 4 "), std::string::npos) << all;
  EXPECT_NE(all.find(", all in the cache (lru)"), std::string::npos) << all;
  const std::string pinned = DescribePlan(Plan(Unlimited("kvswap"), kSmolLm2, 3));
  EXPECT_NE(pinned.find("all 3 entries in groups of 4 (3 pinned)"), std::string::npos) << pinned;
  const std::string flexgen = DescribePlan(Plan(Unlimited("flexgen"), kSmolLm2, 603));
  EXPECT_NE(flexgen.find("; all 603 entries in groups of 16 "), std::string::npos) << flexgen;
}

TEST(KvPlan, CentringNeedsSinks) {
  KvOptions options = Swap(1.0 / 13);
  options.sink_entries = 0;
  EXPECT_EQ(Plan(options).adapter.kind, AdapterKind::kQuery);
  EXPECT_EQ(Plan(options).choice.n_pinned, 0U);
  options.sink_entries = 9;
  EXPECT_EQ(Plan(options).choice.n_pinned, 3U);
}

// What must be in the ring at once, counted for every position of the newest entry.
TEST(KvPlan, TheWindowHoldsEveryEntryThatCannotBeSelected) {
  for (const uint32_t group : {1U, 2U, 4U, 16U}) {
    for (const uint32_t window : {0U, 1U, 3U, 4U, 5U, 16U, 31U, 32U, 33U, 64U}) {
      KvOptions options = Unlimited("kvswap");
      options.group_tokens = group;
      options.window_entries = window;
      const KvPlan plan = Plan(options);
      uint32_t most = 0;
      for (uint32_t n = std::max(window, 1U); n < 500; ++n) {
        const uint32_t old = std::min((n - window) / group * group, n - 1);
        most = std::max(most, (n - 1) / group - old / group + 1);
      }
      EXPECT_EQ(plan.window.n_slots, most + 1) << "G " << group << ", W " << window;
    }
  }
  EXPECT_EQ(Plan(Unlimited("kvswap"), kSmolLm2, 10).window.n_slots, 3U) << "no more than there are groups";
}

TEST(KvPlan, SmallContextsAreFine) {
  constexpr KvModelShape kTiny = {2, 4, 2, 8, 32};
  for (const uint32_t n_ctx : {1U, 3U, 4U, 5U, 63U, 64U, 255U, 257U, 511U, 513U}) {
    for (const char* method : {"kvswap", "flexgen", "full"}) {
      const KvPlan plan = Plan(Unlimited(method), kTiny, n_ctx, 3, 512);
      EXPECT_LE(plan.choice.n_chosen, plan.n_groups()) << method << " " << n_ctx;
      if (plan.method.is_on_flash()) ExpectSound(plan, kTiny);
    }
  }
}

// Numbers that no machine has: a plan or a clear refusal, never a wrapped sum.
TEST(KvPlan, HugeValuesDoNotOverflow) {
  constexpr uint32_t kHuge = UINT32_MAX;
  for (const char* method : {"kvswap", "flexgen", "full"}) {
    ExpectMessage(Refusal(Unlimited(method), kSmolLm2, kHuge), StatusCode::kInvalidArgument, "4294967295");
    ExpectMessage(Refusal(Unlimited(method), kSmolLm2, 8192, kHuge), StatusCode::kInvalidArgument,
                  "4294967295");
    ExpectMessage(Refusal(Unlimited(method), {kHuge, kHuge, kHuge, kHuge, kHuge}),
                  StatusCode::kInvalidArgument, "more than kvrun can plan for");
    const KvPlan plan = Plan(Unlimited(method), kLlama8b, 1U << 30, 16, 4096);
    EXPECT_GE(plan.budget.full_bytes, uint64_t{1} << 50);
    EXPECT_GE(plan.prefill_bytes(), (uint64_t{1} << 30) * 4096);
  }
  KvOptions options = Unlimited("kvswap");
  options.select_entries = options.window_entries = options.sink_entries = options.reuse_groups = kHuge;
  options.rank = 192;
  options.group_tokens = 256;
  const KvPlan plan = Plan(options, kSmolLm2, 8192, 4096);
  ExpectSound(plan, kSmolLm2);
  EXPECT_EQ(plan.slots.n_cache_slots, 32U);
  options.budget_bytes = UINT64_MAX - 1;
  ExpectSound(Plan(options, kSmolLm2, 8192, 4096), kSmolLm2);
  EXPECT_EQ(Plan(Swap(1e300)).choice.n_chosen, 101U) << "as without a budget";
}

TEST(KvPlan, TheDefaultGroupIsGivenAndForKvswapAlone) {
  KvOptions options = Swap(1.0 / 13);
  EXPECT_EQ(Plan(options).record.group_tokens, 4U);
  for (const uint32_t group_tokens : {8U, 16U}) {
    options.default_group_tokens = group_tokens;
    const KvPlan plan = Plan(options);
    ExpectSound(plan, kSmolLm2);
    EXPECT_EQ(plan.record.group_tokens, group_tokens);
    EXPECT_EQ(plan.index.group_tokens, group_tokens);
    EXPECT_NE(DescribePlan(plan).find("in groups of " + std::to_string(group_tokens)), std::string::npos);
    EXPECT_TRUE(plan.notes.for_people.empty());
  }
  options.group_tokens = 2;
  EXPECT_EQ(Plan(options).record.group_tokens, 2U) << "given";
  for (const char* method : {"flexgen", "full"}) {
    KvOptions other = Unlimited(method);
    const uint32_t usual = Plan(other).record.group_tokens;
    other.default_group_tokens = 8;
    EXPECT_EQ(Plan(other).record.group_tokens, usual) << method;
  }
}

TEST(KvPlan, KvswapGoesByMassWhereThereIsOne) {
  KvOptions options = Swap(1.0 / 13);
  for (const HeadReduction heads :
       {HeadReduction::kSoftmax, HeadReduction::kGqa, HeadReduction::kPerKvHead}) {
    options.heads = heads;
    EXPECT_EQ(Plan(options).choice.group_score, GroupScore::kMass);
  }
  options.heads = HeadReduction::kSum;
  EXPECT_EQ(Plan(options).choice.group_score, GroupScore::kLargest);
}

TEST(KvPlan, AMassEndsASelectionThatHasOne) {
  KvOptions options = Swap(1.0 / 13);
  EXPECT_EQ(Plan(options).choice.mass_share, 0.0F);
  options.mass_share = 0.9;
  EXPECT_EQ(Plan(options).choice.group_score, GroupScore::kMass);
  EXPECT_EQ(Plan(options).choice.mass_share, 0.9F);
  EXPECT_EQ(Plan(options).choice.n_chosen, Plan(Swap(1.0 / 13)).choice.n_chosen) << "the most";
  options.heads = HeadReduction::kSum;
  EXPECT_NE(PlanKv(options, kSmolLm2, 8192, 1, 4096).status().message().find("--kv-heads sum"),
            std::string::npos);
  for (const char* method : {"full", "flexgen", "streaming", "random"}) {
    KvOptions other = Unlimited(method);
    other.mass_share = 0.9;
    EXPECT_NE(PlanKv(other, kSmolLm2, 8192, 1, 4096).status().message().find("--kv-mass"), std::string::npos)
        << method;
  }
}

}  // namespace
}  // namespace kvrun::testing
