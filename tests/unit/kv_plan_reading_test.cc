// Plans that select as much as flash has time for (--kv-hide), and that draw more at random (--kv-sample).
#include "runtime/kv/planner/kv_plan_reading.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "runtime/kv/planner/describe_plan.h"
#include "runtime/kv/planner/kv_options.h"
#include "runtime/kv/planner/plan_kv.h"
#include "tests/support/kv_plan_cases.h"

namespace kvrun::testing {
namespace {

KvOptions WithTimes(double share, double reads_per_s, double layer_us = 600.0) {
  KvOptions options = Swap(share);
  options.flash_times = FlashTimes{.reads_per_s = reads_per_s, .layer_us = layer_us};
  return options;
}

KvOptions Parsed(const std::string& line) {
  KvSettings settings;
  const Status status = ParseKvOptions(line, &settings);
  EXPECT_TRUE(status.ok()) << status.message();
  return settings.kv;
}

TEST(KvPlanReading, WhereNothingIsKnownOfTheFlashAsMuchIsSelectedAsHasSlots) {
  const KvPlan plan = Plan(Swap(1.0 / 13));
  EXPECT_EQ(plan.reading(), nullptr);
  EXPECT_EQ(plan.slots.n_pool_slots, 0U);
  EXPECT_TRUE(plan.has_statics());
}

// 32 groups of a layer are missed, and a slow disk reads six while it computes.
TEST(KvPlanReading, WhereSlotsAloneReadTooLongReadsAreLimited) {
  const KvPlan slots = Plan(Swap(1.0 / 13));
  const KvPlan plan = Plan(WithTimes(1.0 / 13, 20000.0, 600.0));
  ExpectSound(plan, kSmolLm2);
  EXPECT_EQ(plan.slots.n_pool_slots, 0U);
  EXPECT_GE(plan.selected_entries() * 1.02, slots.selected_entries());
  ASSERT_NE(plan.reading(), nullptr);
  EXPECT_DOUBLE_EQ(plan.slots.reads_per_layer, 13.3) << "600 us / 50 us / 0.9, in tenths";
  EXPECT_NEAR(plan.reading()->read_us * 0.9, 600.0, 2.5);
  EXPECT_TRUE(plan.choice_list(0).tells_scores);
  EXPECT_NE(DescribePlan(plan).find("reads 13.3 groups"), std::string::npos) << DescribePlan(plan);
  // As options it is the same.
  KvSettings same;
  ASSERT_TRUE(ParseKvOptions("--kv-method kvswap --kv-budget 1/13 " + SameAgain(plan), &same).ok());
  const KvPlan again = Plan(same.kv);
  EXPECT_NEAR(again.slots.reads_per_layer, plan.slots.reads_per_layer, 1e-3);
  EXPECT_EQ(again.choice.n_chosen, plan.choice.n_chosen);
  EXPECT_EQ(again.slots.n_cache_slots, plan.slots.n_cache_slots);
}

TEST(KvPlanReading, AShareOfTheSelectionIsReadHoweverSlowFlashIs) {
  const KvPlan plan = Plan(WithTimes(1.0 / 13, 10.0));
  EXPECT_GE(plan.slots.reads_per_layer, 0.04 * (plan.choice.n_chosen - plan.choice.n_pinned));
  EXPECT_LE(plan.slots.reads_per_layer, 0.06 * (plan.choice.n_chosen - plan.choice.n_pinned));
}

TEST(KvPlanReading, ReadsAreLimitedOnlyWhereThatHelps) {
  EXPECT_FALSE(Plan(WithTimes(1.0 / 13, 1e6)).limits_reads());
  EXPECT_FALSE(Plan(Swap(1.0 / 13)).limits_reads());
  KvOptions options = WithTimes(1.0 / 13, 20000.0);
  options.hide = 0.0;
  EXPECT_FALSE(Plan(options).limits_reads());
  options = WithTimes(1.0 / 13, 20000.0);
  options.reads_per_layer = 0.0;
  EXPECT_FALSE(Plan(options).limits_reads());
  options.reads_per_layer = 5.0;
  EXPECT_EQ(Plan(options).slots.reads_per_layer, 5.0);
  options = WithTimes(1.0 / 13, 20000.0);
  options.heads = HeadReduction::kSum;
  EXPECT_FALSE(Plan(options).limits_reads());
}

TEST(KvPlanReading, WhatDoesNotGoWithALimitOfReadsIsRefused) {
  const auto refusal = [](const std::string& line) {
    return PlanKv(Parsed(line), kSmolLm2, 8192, 1, 1).status();
  };
  ExpectMessage(refusal("--kv-method kvswap --kv-budget 1/13 --kv-reads 5 --kv-sample 400"),
                StatusCode::kInvalidArgument, "--kv-sample");
  ExpectMessage(refusal("--kv-method kvswap --kv-budget 1/13 --kv-reads 5 --kv-adapt on"),
                StatusCode::kInvalidArgument, "--kv-adapt");
  ExpectMessage(refusal("--kv-method kvswap --kv-budget 1/13 --kv-reads 5 --kv-heads sum"),
                StatusCode::kInvalidArgument, "--kv-heads sum");
  ExpectMessage(refusal("--kv-method kvswap --kv-budget 1/13 --kv-reads 5 --kv-select 4000"),
                StatusCode::kInvalidArgument, "--kv-select");
  for (const std::string method : {"flexgen", "dynakv", "quest", "arkv-flash", "h2o"}) {
    ExpectMessage(refusal("--kv-method " + method + " --kv-budget 1/13 --kv-reads 5"),
                  StatusCode::kInvalidArgument, "--kv-reads does not go with");
  }
}

TEST(KvPlanReading, WithoutALimitAsMuchAsTheBudgetHasRoomFor) {
  for (const double share : {1.0 / 13, 1.0 / 34}) {
    for (const uint32_t n_sequences : {1U, 3U}) {
      KvOptions options = Swap(share);
      options.hide = 0.0;
      const KvPlan plan = Plan(options, kSmolLm2, 8192, n_sequences);
      ExpectSound(plan, kSmolLm2);
      EXPECT_GT(plan.choice.n_chosen, 4 * Plan(Swap(share)).choice.n_chosen) << DescribePlan(plan);
      ASSERT_NE(plan.reading(), nullptr);
      EXPECT_FALSE(plan.reading()->is_limited_by_time);
      // One more would not fit, or there is none.
      if (plan.choice.n_chosen == plan.n_groups()) continue;
      options = Unlimited("kvswap");
      options.budget_bytes = plan.budget.bytes;
      options.group_tokens = plan.record.group_tokens;
      options.index_type = plan.index.type;
      options.select_entries = plan.choice.n_chosen * 4;
      options.k_type = plan.record.k_type;
      options.v_type = plan.record.v_type;
      options.rank = plan.index.rank;
      options.window_entries = plan.window.n_entries;
      options.reuse_groups = 0;
      EXPECT_FALSE(PlanKv(options, kSmolLm2, 8192, n_sequences, 1).ok());
    }
  }
}

TEST(KvPlanReading, MoreIsSelectedWhereFlashIsFasterAndLayersTakeLonger) {
  uint32_t before = 0;
  for (const double reads_per_s : {1e3, 3e4, 1e5, 3e5, 1e6}) {
    const KvPlan plan = Plan(WithTimes(1.0 / 13, reads_per_s));
    ExpectSound(plan, kSmolLm2);
    const uint32_t n_total = plan.n_total();
    EXPECT_GE(n_total, before) << DescribePlan(plan);
    before = n_total;
  }
  EXPECT_GT(before, 600U);
  EXPECT_GT(Plan(WithTimes(1.0 / 13, 3e5, 600.0)).choice.n_chosen,
            Plan(WithTimes(1.0 / 13, 3e5, 300.0)).choice.n_chosen);
}

// The bound is kept, and nothing that would keep it is left.
TEST(KvPlanReading, ReadingIsHiddenAsFarAsAskedFor) {
  for (const double hide : {0.3, 0.6, 0.9, 1.0}) {
    KvOptions options = WithTimes(1.0 / 13, 2e5);
    options.hide = hide;
    const KvPlan plan = Plan(options);
    ASSERT_NE(plan.reading(), nullptr) << DescribePlan(plan);
    EXPECT_TRUE(plan.reading()->is_limited_by_time);
    EXPECT_LE(plan.reading()->read_us * hide, 600.0);
    EXPECT_GE(plan.reading()->read_us * hide, 590.0);
    EXPECT_NEAR(plan.reading()->read_us, plan.reading()->reads * 5.0, 1e-6);
    EXPECT_NE(DescribePlan(plan).find("as many as flash has time for"), std::string::npos)
        << DescribePlan(plan);
  }
}

// Reads take time from a device that computes on the cores that read, hidden or not.
TEST(KvPlanReading, WhereCoresAreSharedReadsTakeAShareOfALayersTime) {
  KvOptions options = WithTimes(1.0 / 13, 1e6);
  const KvPlan apart = Plan(options);
  options.flash_times->share_cores = true;
  const KvPlan shared = Plan(options);
  ExpectSound(shared, kSmolLm2);
  ASSERT_NE(shared.reading(), nullptr);
  EXPECT_GT(shared.slots.n_pool_slots, 0U);
  EXPECT_LT(shared.choice.n_chosen, apart.choice.n_chosen);
  EXPECT_GT(shared.choice.n_chosen, Plan(Swap(1.0 / 13)).choice.n_chosen);
  EXPECT_LE(shared.reading()->read_us * shared.reading()->hide, 600.0 * shared.reading()->layer_share);
  EXPECT_NE(DescribePlan(shared).find("same cores"), std::string::npos) << DescribePlan(shared);
  // Whoever says what is to be hidden means that, and no more.
  options.hide = shared.reading()->hide;
  EXPECT_EQ(Plan(options).choice.n_chosen, apart.choice.n_chosen);
  // Never less than what has slots.
  options = WithTimes(1.0 / 13, 1e5);
  options.flash_times->share_cores = true;
  EXPECT_EQ(Plan(options).choice.n_chosen, Plan(Swap(1.0 / 13)).choice.n_chosen);
  EXPECT_FALSE(Plan(options).limits_reads());
}

// Slow flash selects no less than what has slots: it reads less of it.
TEST(KvPlanReading, SlowFlashSelectsWhatHasSlots) {
  const KvPlan usual = Plan(Swap(1.0 / 13));
  const KvPlan plan = Plan(WithTimes(1.0 / 13, 100.0));
  EXPECT_EQ(plan.choice.n_chosen, plan.slots.n_cache_slots);
  EXPECT_EQ(usual.choice.n_chosen, usual.slots.n_cache_slots);
  EXPECT_TRUE(plan.limits_reads());
  // The limit takes memory, too: exactly as much is selected as where somebody asks for it.
  KvOptions limited = Swap(1.0 / 13);
  limited.reads_per_layer = plan.slots.reads_per_layer;
  EXPECT_EQ(plan.choice.n_chosen, Plan(limited).choice.n_chosen);
  EXPECT_GE(plan.choice.n_chosen + 1, usual.choice.n_chosen);
}

// Who is told of a raise before anything is measured is told the same afterwards.
TEST(KvPlanReading, AShareIsRaisedToTheSameWhateverReadingCosts) {
  for (const uint32_t n_ctx : {600U, 1500U, 2200U}) {
    const KvPlan before = Plan(Swap(1.0 / 13), kSmolLm2, n_ctx, 1, 512);
    ASSERT_TRUE(before.budget.is_raised) << n_ctx;
    for (const double reads_per_s : {100.0, 1e5, 1e9}) {
      const KvPlan plan = Plan(WithTimes(1.0 / 13, reads_per_s), kSmolLm2, n_ctx, 1, 512);
      EXPECT_EQ(plan.budget.bytes, before.budget.bytes) << n_ctx;
      EXPECT_EQ(plan.notes.for_people.front(), before.notes.for_people.front());
    }
  }
}

// What is long takes longer to read.
TEST(KvPlanReading, LargeRecordsAreReadByBytes) {
  const FlashTimes blocks{.reads_per_s = 1e5, .layer_us = 1000.0};
  EXPECT_DOUBLE_EQ(blocks.ReadMicroseconds(512), 10.0);
  EXPECT_DOUBLE_EQ(blocks.ReadMicroseconds(4096), 10.0);
  EXPECT_DOUBLE_EQ(blocks.ReadMicroseconds(8192), 20.0);
  const FlashTimes both{.reads_per_s = 1e5, .bytes_per_s = 1e9, .layer_us = 1000.0};
  EXPECT_DOUBLE_EQ(both.ReadMicroseconds(8192), 10.0);
  EXPECT_DOUBLE_EQ(both.ReadMicroseconds(16384), 16.384);
}

// What is encrypted is opened as well: on cores that compute besides, else meanwhile, by helpers where that
// pays.
TEST(KvPlanReading, OpeningTakesTime) {
  FlashTimes times{.reads_per_s = 1e5, .layer_us = 1000.0, .share_cores = true};
  times.opening = {.unit_us = 1.0, .bytes_per_s = 1e9};
  EXPECT_DOUBLE_EQ(times.ReadMicroseconds(2000), 10.0 + 3.0);
  EXPECT_DOUBLE_EQ(times.SequenceMicroseconds(4096), 10.0 + 5.096);
  EXPECT_EQ(times.HelpersFor(1'000'000, 8), 0U);
  times.share_cores = false;
  EXPECT_DOUBLE_EQ(times.ReadMicroseconds(2000), 10.0);
  EXPECT_EQ(times.HelpersFor(2000, 8), 0U) << "flash is the slower one";
  times.reads_per_s = 1e6;
  EXPECT_DOUBLE_EQ(times.ReadMicroseconds(2000), 3.0);
  EXPECT_EQ(times.HelpersFor(2000, 8), 2U);
  EXPECT_EQ(times.HelpersFor(2000, 1), 1U);
  EXPECT_EQ(times.HelpersFor(2000, 0), 0U);
  EXPECT_DOUBLE_EQ(times.ReadMicroseconds(2000, 1), 1.5);
}

// Of a slow cipher less is read, and its helpers are paid for.
TEST(KvPlanReading, ASlowCipherReadsLess) {
  KvOptions options = WithTimes(1.0 / 13, 3e5);
  options.is_sealed = true;
  const KvPlan fast = Plan(options, kSmolLm2, 8192, 1, 512);
  options.flash_times->opening = {.unit_us = 0.0, .bytes_per_s = 5e7};  // 30 us a record
  const KvPlan slow = Plan(options, kSmolLm2, 8192, 1, 512);
  ExpectSound(slow, kSmolLm2);
  ASSERT_NE(fast.reading(), nullptr);
  ASSERT_NE(slow.reading(), nullptr);
  EXPECT_LT(slow.reading()->reads, 0.7 * fast.reading()->reads);
  options.spare_cores = 8;
  const KvPlan helped = Plan(options, kSmolLm2, 8192, 1, 512);
  ExpectSound(helped, kSmolLm2);
  EXPECT_EQ(helped.n_seal_helpers, 3U);
  ASSERT_NE(helped.reading(), nullptr);
  EXPECT_GT(helped.reading()->reads, slow.reading()->reads);
  const auto seals = [](const KvPlan& plan) {
    const auto part = std::find_if(plan.parts.begin(), plan.parts.end(),
                                   [](const KvPart& one) { return one.name == std::string("seals"); });
    return part->bytes;
  };
  EXPECT_GT(seals(helped), seals(slow) + 3 * 16 * 1024);
}

// On a machine of which nothing is known, the options that a plan tells make the same plan.
TEST(KvPlanReading, OptionsThatItTellsMakeTheSamePlan) {
  for (const double share : {1.0 / 13, 1.0 / 34}) {
    for (const double reads_per_s : {3e5, 1e6}) {
      const KvPlan plan = Plan(WithTimes(share, reads_per_s), kSmolLm2, 8192, 1, 512);
      ASSERT_NE(plan.reading(), nullptr);
      ASSERT_FALSE(plan.notes.for_experts.empty());
      EXPECT_NE(plan.notes.for_experts.back().find(SameAgain(plan)), std::string::npos)
          << plan.notes.for_experts.back();
      KvOptions options = Parsed(SameAgain(plan));
      options.method = "kvswap";
      options.budget_fraction = share;
      const KvPlan again = Plan(options, kSmolLm2, 8192, 1, 512);
      EXPECT_EQ(again.choice.n_chosen, plan.choice.n_chosen);
      EXPECT_EQ(again.slots.n_cache_slots, plan.slots.n_cache_slots);
      EXPECT_EQ(again.slots.n_pool_slots, plan.slots.n_pool_slots);
      EXPECT_EQ(again.window.n_entries, plan.window.n_entries);
      EXPECT_EQ(again.index.rank, plan.index.rank);
      EXPECT_EQ(again.rotates, plan.rotates);
      EXPECT_EQ(again.prefill.tile_tokens, plan.prefill.tile_tokens);
      EXPECT_EQ(again.decode_bytes(), plan.decode_bytes());
      EXPECT_EQ(again.n_statics(), plan.n_statics());
      EXPECT_EQ(again.static_share(), plan.static_share());
    }
  }
}

TEST(KvPlanReading, WhatGoesWithoutIt) {
  const auto refusal = [](const std::string& line) { return Refusal(Parsed(line)); };
  ExpectMessage(refusal("--kv-method kvswap --kv-budget 1/13 --kv-hide 0.9 --kv-select 400"),
                StatusCode::kInvalidArgument, "--kv-select says it");
  ExpectMessage(refusal("--kv-budget 1/13 --kv-hide 0.9 --kv-reuse 100"), StatusCode::kInvalidArgument,
                "--kv-reuse says it");
  ExpectMessage(refusal("--kv-method kvswap --kv-hide 0.9"), StatusCode::kInvalidArgument, "--kv-budget");
  for (const std::string method : {"full", "flexgen", "quest", "dynakv", "snapkv", "arkv-flash"}) {
    ExpectMessage(refusal("--kv-method " + method + " --kv-budget 1/13 --kv-hide 0.9"),
                  StatusCode::kInvalidArgument, "--kv-hide does not go with");
  }
}

// Room for twice the reading, and at first as much as without it; or all that was asked for.
TEST(KvPlanReading, WhatAdaptsHasRoomForMore) {
  KvOptions options = WithTimes(1.0 / 13, 2e5);
  const KvPlan fixed = Plan(options);
  options.adapt = true;
  const KvPlan plan = Plan(options);
  ExpectSound(plan, kSmolLm2);
  EXPECT_EQ(plan.choice.n_usual, fixed.choice.n_chosen);
  EXPECT_GT(plan.choice.n_chosen, fixed.choice.n_chosen);
  EXPECT_LT(plan.n_least(), plan.choice.n_usual);
  EXPECT_EQ(plan.choice.hide, 0.9);
  EXPECT_EQ(fixed.choice.n_usual, 0U);

  const KvPlan asked = Plan(Parsed("--kv-method kvswap --kv-budget 1/13 --kv-select 2000 --kv-adapt on"));
  EXPECT_EQ(asked.choice.n_usual, asked.choice.n_chosen);
  EXPECT_EQ(asked.n_least(), asked.slots.n_cache_slots);
  // Without a pool there is nothing to give up.
  EXPECT_EQ(Plan(Parsed("--kv-method kvswap --kv-select 400 --kv-adapt on")).choice.n_usual, 0U);
  ExpectMessage(Refusal(Parsed("--kv-method quest --kv-adapt on")), StatusCode::kInvalidArgument,
                "--kv-adapt does not go with");
}

// A budget that holds all KV has no use for it, and says so.
TEST(KvPlanReading, ABudgetThatHoldsEverythingSelectsNothing) {
  const KvPlan plan = Plan(Parsed("--kv-budget 100% --kv-hide 0.9 --kv-sample 400"));
  EXPECT_EQ(plan.method.name, "full");
  ASSERT_FALSE(plan.notes.for_people.empty());
  EXPECT_NE(plan.notes.for_people.back().find("hide, sample"), std::string::npos)
      << plan.notes.for_people.back();
}

TEST(KvPlanSample, ThePoolHasRoomForWhatIsDrawn) {
  for (const std::string more : {"", " --kv-select 400", " --kv-select 1200"}) {
    const KvPlan plan = Plan(Parsed("--kv-method kvswap --kv-budget 1/13 --kv-sample 400" + more));
    ExpectSound(plan, kSmolLm2);
    EXPECT_EQ(plan.choice.n_sampled, 100U);
    EXPECT_EQ(plan.slots.n_pool_slots, plan.choice.n_chosen - plan.slots.n_cache_slots + 101);
    EXPECT_EQ(plan.choice.group_score, GroupScore::kMass);
    EXPECT_FALSE(plan.has_statics());
    EXPECT_NE(DescribePlan(plan).find(", 400 more drawn at random"), std::string::npos) << DescribePlan(plan);
  }
}

// Those that are drawn are hardly ever in a slot: they take reading time from what is selected.
TEST(KvPlanSample, WhatIsDrawnIsRead) {
  KvOptions options = WithTimes(1.0 / 13, 3e5);
  options.static_share = StaticShare();
  const KvPlan without = Plan(options);
  options.sample_entries = 200;
  const KvPlan with = Plan(options);
  ASSERT_NE(with.reading(), nullptr);
  EXPECT_LT(with.choice.n_chosen, without.choice.n_chosen);
  EXPECT_LE(with.reading()->read_us * 0.9, 600.0);
}

TEST(KvPlanSample, NoMoreIsDrawnThanThereIs) {
  const KvPlan plan = Plan(Parsed("--kv-method kvswap --kv-select 8000 --kv-sample 8000"));
  EXPECT_EQ(plan.choice.n_chosen, 2001U);
  EXPECT_EQ(plan.choice.n_sampled, 2048U - 2001U);
  EXPECT_EQ(Plan(Parsed("--kv-method kvswap --kv-select 9000 --kv-sample 8000")).choice.n_sampled, 0U);
}

TEST(KvPlanSample, WhatGoesWithoutIt) {
  const auto refusal = [](const std::string& line) { return Refusal(Parsed(line)); };
  for (const std::string method :
       {"flexgen", "quest", "oracle", "random", "dynakv", "snapkv", "streaming", "arkv-flash"}) {
    ExpectMessage(refusal("--kv-method " + method + " --kv-sample 100"), StatusCode::kInvalidArgument,
                  "--kv-sample does not go with");
  }
  ExpectMessage(refusal("--kv-method kvswap --kv-sample 100 --kv-heads sum"), StatusCode::kInvalidArgument,
                "--kv-sample goes by the mass");
  ExpectMessage(refusal("--kv-method kvswap --kv-sample 100 --kv-static 0.25"), StatusCode::kInvalidArgument,
                "static set");
  ExpectMessage(refusal("--kv-method kvswap --kv-sample 100 --kv-policy non-hit"),
                StatusCode::kInvalidArgument, "non-hit");
  ExpectMessage(refusal("--kv-method quest --kv-seed 1"), StatusCode::kInvalidArgument, "--kv-seed");
}

}  // namespace
}  // namespace kvrun::testing
