// Plans with a static set: how it and the selected groups share what fits, whatever prompts say of it.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "runtime/capi/kv_info.h"
#include "runtime/kv/plan/kv_method.h"
#include "runtime/kv/planner/describe_plan.h"
#include "runtime/kv/planner/kv_family.h"
#include "runtime/kv/planner/kv_options.h"
#include "runtime/kv/planner/kv_plan_sizes.h"
#include "runtime/kv/planner/kv_plan_statics.h"
#include "tests/support/kv_plan_cases.h"
#include "tests/support/or_die.h"

namespace kvrun::testing {
namespace {

KvOptions StaticOptions(const std::string& line) {
  KvSettings settings;
  RunOrDie(ParseKvOptions("--kv-method " + line, &settings));
  return settings.kv;
}

KvPlan PlanOf(const std::string& line, uint32_t n_ctx = 8192, uint32_t n_sequences = 1) {
  return Plan(StaticOptions(line), kSmolLm2, n_ctx, n_sequences, 4096);
}

TEST(StaticPlan, ThereIsNoneUnlessAskedForButOfTwoMethods) {
  for (const KvMethod& method : KvMethods()) {
    if (!method.may_have_statics()) continue;
    const std::string name(method.name);
    SCOPED_TRACE(name);
    const KvPlan plan = PlanOf(name + " --kv-select 512");
    ExpectSound(plan, kSmolLm2);
    const bool has_one = name == "prkv" || name == "arkv-flash";
    EXPECT_EQ(plan.has_statics(), has_one);
    EXPECT_EQ(plan.observed_rows(), has_one ? 32U : 0U);
    EXPECT_EQ(capi::KvPlanInfo(plan)["static"].is_null(), !has_one);
    const KvPlan none = PlanOf(name + " --kv-select 512 --kv-static 0");
    EXPECT_FALSE(none.has_statics());
    EXPECT_EQ(Part(none, "static") + Part(none, "static lists"), 0U);
    EXPECT_EQ(none.observed_rows(), 0U);
    EXPECT_TRUE(PlanOf(name + " --kv-select 512 --kv-static 0.5").has_statics());
  }
}

// Of kvswap a quarter, where the budget is all that says how much is selected.
TEST(StaticPlan, ABudgetAloneMakesOneOfKvswap) {
  for (const std::string budget : {"1/5", "1/13", "1/34", "18M"}) {
    for (const uint32_t n_sequences : {1U, 4U}) {
      SCOPED_TRACE(fmt::format("{} {}", budget, n_sequences));
      const KvPlan plan = PlanOf("kvswap --kv-budget " + budget, 8192, n_sequences);
      ExpectSound(plan, kSmolLm2);
      const KvPlan none = PlanOf("kvswap --kv-static 0 --kv-budget " + budget, 8192, n_sequences);
      EXPECT_FALSE(none.has_statics());
      EXPECT_EQ(plan.of_groups().statics.share, StaticShare{.share = 0.25});
      EXPECT_EQ(plan.of_groups().statics.steps, 0U);
      const uint32_t n_unpinned = plan.of_groups().statics.n_total - plan.choice.n_pinned;
      EXPECT_EQ(plan.choice.n_chosen, plan.of_groups().statics.n_total - n_unpinned / 4);
      EXPECT_EQ(plan.of_groups().statics.n_entries, n_unpinned / 4 * plan.record.group_tokens);
      EXPECT_GE(none.choice.n_chosen, plan.of_groups().statics.n_total)
          << "its lists and tables take a little";
      EXPECT_GE(10 * plan.of_groups().statics.n_total, 9 * none.choice.n_chosen);
      EXPECT_NE(DescribePlan(plan).find(fmt::format("{} that stay", plan.of_groups().statics.n_entries)),
                std::string::npos);
    }
  }
  // What observes a prompt would leave too little.
  const KvPlan small = PlanOf("kvswap --kv-budget 1/45");
  EXPECT_FALSE(small.has_statics()) << DescribePlan(small);
  EXPECT_EQ(DescribePlan(small), DescribePlan(PlanOf("kvswap --kv-budget 1/45 --kv-static 0")));
  for (const std::string more : {"--kv-select 400", "--kv-reuse 64", "--kv-static 0"}) {
    EXPECT_FALSE(PlanOf("kvswap --kv-budget 1/13 " + more).has_statics()) << more;
  }
  EXPECT_FALSE(PlanOf("kvswap").has_statics());
  EXPECT_EQ(PlanOf("arkv-flash --kv-budget 1/13").of_groups().statics.share, StaticShare{.share = 0.5});
  EXPECT_EQ(PlanOf("kvswap --kv-budget 1/13 --kv-static 0.5").of_groups().statics.share,
            StaticShare{.share = 0.5});
  const KvPlan all = PlanOf("kvswap --kv-budget 300M");
  EXPECT_EQ(all.choice.n_chosen, all.n_groups());
  EXPECT_FALSE(all.has_statics()) << "where everything is selected";
  // Nor where the budget holds all of it without one.
  for (const std::string budget : {"110M", "112M", "114M", "116M"}) {
    const KvPlan roomy = PlanOf("kvswap --kv-budget " + budget);
    const KvPlan none = PlanOf("kvswap --kv-static 0 --kv-budget " + budget);
    EXPECT_EQ(roomy.choice.n_chosen == roomy.n_groups(), none.choice.n_chosen == none.n_groups()) << budget;
  }
  // One that was asked for and finds no room is left out, too: it would leave no entries.
  const std::string tight =
      "kvswap --kv-budget 5737000 --kv-type int4 --kv-rank 12 --kv-window 32 --kv-static ";
  const KvPlan left_out = PlanOf(tight + "0.25", 10240);
  EXPECT_EQ(left_out.choice.n_chosen, PlanOf(tight + "0", 10240).choice.n_chosen);
  EXPECT_GT(left_out.choice.n_chosen, 60U);
  KvOptions nothing_named;
  nothing_named.budget_fraction = 1 / 13.0;
  EXPECT_TRUE(Plan(nothing_named, kSmolLm2, 8192, 1, 4096).has_statics());
}

TEST(StaticPlan, DefaultsOfPrkv) {
  const KvPlan plan = PlanOf("prkv --kv-select 1024");
  EXPECT_EQ(plan.record.group_tokens, 32U);
  EXPECT_EQ(plan.n_streams, 3U) << "each KV head selects";
  EXPECT_EQ(plan.choice.n_pinned, 0U);
  EXPECT_EQ(plan.of_groups().statics.n_total, 32U);
  EXPECT_EQ(plan.choice.n_chosen, 24U);
  EXPECT_EQ(plan.of_groups().statics.n_entries, 256U);
  EXPECT_EQ(plan.of_groups().statics.steps, 128U);
  const auto info = capi::KvPlanInfo(plan);
  EXPECT_EQ(info["select"], 1024);
  EXPECT_EQ(info["static"]["entries"], 256);
  EXPECT_EQ(info["static"]["share"], 0.25);
  EXPECT_EQ(info["static"]["by_prompt"], false);
  EXPECT_EQ(info["static"]["steps"], 128);
  EXPECT_EQ(info["static"]["observed_rows"], 32);
  EXPECT_NE(DescribePlan(plan).find("256 that stay (chosen again every 128 tokens)"), std::string::npos)
      << DescribePlan(plan);
  EXPECT_EQ(PlanOf("prkv --kv-static-steps 7").of_groups().statics.steps, 7U);
  EXPECT_EQ(PlanOf("kvswap --kv-static 0.5").of_groups().statics.steps, 0U);
  EXPECT_EQ(PlanOf("kvswap --kv-static 0.5 --kv-static-steps 9").of_groups().statics.steps, 9U);
}

// Groups of 4, one of them pinned, 100 more.
TEST(StaticPlan, AShareIsOfWholeGroups) {
  struct Case {
    const char* share;
    uint32_t n_groups;  // selected, beside the pinned one
  };
  for (const auto& [share, n_groups] :
       {Case{"0", 100}, {"0.001", 100}, {"0.01", 99}, {"0.25", 75}, {"0.29", 71}, {"0.999", 1}, {"1", 1}}) {
    for (const uint32_t n_sequences : {1U, 3U}) {
      SCOPED_TRACE(share);
      const KvPlan plan =
          PlanOf(fmt::format("kvswap --kv-select 400 --kv-group 4 --kv-static {}", share), 8192, n_sequences);
      ExpectSound(plan, kSmolLm2);
      EXPECT_EQ(plan.choice.n_pinned, 1U);
      EXPECT_EQ(plan.choice.n_chosen, n_groups + 1);
      EXPECT_EQ(plan.slots.n_cache_slots, plan.choice.n_chosen);
      EXPECT_EQ(plan.of_groups().statics.n_entries, 4 * (100 - n_groups));
      EXPECT_EQ(plan.has_statics(), n_groups < 100);
      EXPECT_EQ(Part(plan, "static"), uint64_t{30} * plan.n_streams * plan.of_groups().statics.n_entries *
                                          plan.entry_record().size_bytes());
      EXPECT_EQ(plan.observed_rows(), plan.has_statics() ? 32U : 0U);
    }
  }
  EXPECT_EQ(PlanOf("kvswap --kv-select 8 --kv-static 1 --kv-window 4", 20).observed_rows(), 20U);
}

// A policy that needs as many slots as groups are selected: without the set.
TEST(StaticPlan, SlotsOfAPolicyThatNeedsAsMany) {
  const std::string line = "kvswap --kv-select 400 --kv-group 4 --kv-static 0.25 --kv-policy non-hit";
  const KvPlan plan = PlanOf(line + " --kv-reuse 76");
  EXPECT_EQ(plan.choice.n_chosen, 76U);
  EXPECT_EQ(plan.slots.n_pool_slots, 0U);
  EXPECT_EQ(PlanOf(line).slots.n_cache_slots, 76U);
  ExpectMessage(Refusal(StaticOptions(line + " --kv-reuse 101")), StatusCode::kInvalidArgument,
                "as many slots as groups are selected, 76, not 101");
}

TEST(StaticPlan, SlotsAndAPoolBesideIt) {
  const KvPlan plan = PlanOf("kvswap --kv-select 400 --kv-group 4 --kv-static 0.5 --kv-reuse 20");
  ExpectSound(plan, kSmolLm2);
  EXPECT_EQ(plan.choice.n_chosen, 51U);
  EXPECT_EQ(plan.slots.n_cache_slots, 20U);
  EXPECT_EQ(plan.slots.n_pool_slots, 31U);
}

// Where all is selected a set is of no use; it is made where one is asked for.
TEST(StaticPlan, WhereEverythingIsSelected) {
  for (const std::string method : {"kvswap", "prkv"}) {
    const KvPlan asked = PlanOf(method + " --kv-select 100000 --kv-static 0.25", 1000);
    EXPECT_EQ(asked.choice.n_chosen, asked.n_groups());
    EXPECT_EQ(asked.of_groups().statics.n_entries, 250U);
    ExpectSound(asked, kSmolLm2);
    EXPECT_FALSE(PlanOf(method + " --kv-select 100000", 1000).has_statics());
    const KvPlan by_prompt = PlanOf(method + " --kv-select 100000 --kv-static prompt", 1000);
    EXPECT_FALSE(by_prompt.has_statics());
    EXPECT_EQ(by_prompt.choice.n_chosen, by_prompt.n_groups());
  }
}

TEST(StaticPlan, EveryBudgetIsHeldAndUsed) {
  for (const std::string line :
       {"prkv", "prkv --kv-static prompt", "prkv --kv-repage on", "kvswap --kv-static 0.25",
        "kvswap --kv-static 0.75", "kvswap --kv-static prompt", "quest --kv-static 0.5"}) {
    for (const double denominator : {34.0, 26.0, 20.0, 16.0, 13.0, 10.0, 8.0, 5.0, 4.0, 2.0, 1.25}) {
      for (const uint32_t n_sequences : {1U, 4U}) {
        SCOPED_TRACE(fmt::format("{} 1/{} {}", line, denominator, n_sequences));
        KvOptions options = StaticOptions(line);
        options.budget_fraction = 1 / denominator;
        const KvPlan plan = Plan(options, kSmolLm2, 8192, n_sequences, 4096);
        ASSERT_LE(plan.decode_bytes(), plan.budget.bytes);
        ASSERT_LE(plan.prefill_bytes(), plan.budget.bytes);
        if (!plan.of_groups().statics.share.by_prompt) ExpectSound(plan, kSmolLm2);
        EXPECT_GT(plan.choice.n_chosen, plan.choice.n_pinned);
      }
    }
  }
}

// A small budget leaves room for few pages of 32: they grow. Where heads are few and small, the window's
// pages grow as well, and leave less.
TEST(StaticPlan, PagesOfPrkvGrowWhereTheBudgetIsSmall) {
  const auto group_at = [](double denominator, const std::string& more = "") {
    KvOptions options = StaticOptions("prkv" + more);
    options.budget_fraction = 1 / denominator;
    const KvPlan plan = Plan(options, kLlama8b, 32768, 1, 4096);
    ExpectSound(plan, kLlama8b);
    EXPECT_FALSE(plan.budget.is_raised) << denominator;
    return plan.record.group_tokens;
  };
  EXPECT_EQ(group_at(13), 32U);
  EXPECT_EQ(group_at(34), 64U);
  EXPECT_EQ(group_at(34, " --kv-group 128"), 128U);
  EXPECT_EQ(group_at(13, " --kv-group 64"), 64U);
  uint32_t last = 32;
  for (const double denominator : {2.0, 4.0, 8.0, 13.0, 17.0, 20.0, 26.0, 30.0, 34.0}) {
    EXPECT_GE(group_at(denominator), last) << denominator;
    last = group_at(denominator);
  }
  EXPECT_EQ(PlanOf("prkv").record.group_tokens, 32U);
}

// A share with which no size works is raised to the least with which any does.
TEST(StaticPlan, ARaisedBudgetIsTheLeastOfAllSizes) {
  KvOptions options = StaticOptions("prkv");
  options.budget_fraction = 1 / 34.0;
  const KvPlan raised = Plan(options, kSmolLm2, 8192, 1, 4096);
  ExpectSound(raised, kSmolLm2);
  EXPECT_TRUE(raised.budget.is_raised);
  EXPECT_GE(raised.decode_bytes(), raised.budget.bytes / 100 * 92) << "decoding uses what prefill needs";
  EXPECT_GE(raised.selected_entries(), 320U);
  for (const uint32_t group : {32U, 64U, 128U}) {
    KvOptions of_size = options;
    of_size.group_tokens = group;
    EXPECT_GE(Plan(of_size, kSmolLm2, 8192, 1, 4096).budget.bytes, raised.budget.bytes) << group;
  }
  options.budget_fraction.reset();
  options.budget_bytes = 1;
  const std::string refusal = Refusal(options, kSmolLm2, 8192, 1, 4096).message();
  const uint64_t least = BytesAfter(refusal, "needs at least ");
  EXPECT_LE(least, raised.budget.bytes) << "bytes may select fewer";
  options.budget_bytes = least;
  ExpectSound(Plan(options, kSmolLm2, 8192, 1, 4096), kSmolLm2);
  options.budget_bytes = least - 1;
  EXPECT_EQ(Refusal(options, kSmolLm2, 8192, 1, 4096).code(), StatusCode::kOutOfMemory);
}

// The parts of a plan whose share the first prompt says have room for what becomes of them with any share.
TEST(StaticPlan, ByPromptNoShareTakesMoreThanThePlan) {
  uint32_t n_shares = 0;
  for (const std::string line :
       {"prkv --kv-static prompt --kv-select 1024", "prkv --kv-static prompt --kv-budget 1/13",
        "prkv --kv-static prompt --kv-budget 1/16", "kvswap --kv-static prompt --kv-select 400",
        "kvswap --kv-static prompt --kv-budget 1/13", "kvswap --kv-static prompt --kv-budget 1/34",
        "kvswap --kv-static prompt --kv-select 100 --kv-type int4 --kv-heads per-kv-head",
        "quest --kv-static prompt --kv-select 400 --kv-group 7"}) {
    for (const uint32_t n_sequences : {1U, 3U}) {
      const KvPlan plan = PlanOf(line, 8192, n_sequences);
      if (!plan.has_statics()) ADD_FAILURE() << line;
      const KvSizeInput input = {kSmolLm2, 4096, plan.method.has_adapters()};
      for (uint32_t i = 0; i <= 1000; ++i) {
        KvPlan changed = plan;
        ChangeStaticShare(i / 1000.0, changed);
        changed.of_groups().statics.share.by_prompt = false;  // what this share takes, not any
        FamilyOf(changed.method).SizeParts(input, changed);
        uint64_t bytes = 0;
        for (const KvPart& part : changed.parts) bytes += part.in_decode ? part.bytes : 0;
        ASSERT_LE(bytes, plan.decode_bytes()) << line << ", share " << i / 1000.0;
        ASSERT_LE(changed.prefill_bytes(), plan.prefill_bytes()) << line << ", share " << i / 1000.0;
        ASSERT_EQ(changed.slots.n_cache_slots, changed.choice.n_chosen);
        ASSERT_EQ(
            (changed.choice.n_chosen * changed.record.group_tokens) + changed.of_groups().statics.n_entries,
            plan.of_groups().statics.n_total * plan.record.group_tokens)
            << "as much is attended to";
        ++n_shares;
      }
    }
  }
  EXPECT_EQ(n_shares, 16U * 1001);
}

TEST(StaticPlan, PagesThatAreLaidAnewTakeRoom) {
  const KvPlan stays = PlanOf("prkv --kv-select 1024 --kv-repage off");
  const KvPlan anew = PlanOf("prkv --kv-select 1024 --kv-repage on");
  EXPECT_FALSE(stays.of_groups().statics.lays_pages);
  EXPECT_TRUE(anew.of_groups().statics.lays_pages);
  EXPECT_EQ(stays.n_stored_groups(), stays.n_groups());
  EXPECT_EQ(anew.n_stored_groups(), 2 * anew.n_groups());
  EXPECT_EQ(Part(anew, "checksums"), 2 * Part(stays, "checksums"));
  EXPECT_GT(Part(anew, "static lists"), Part(stays, "static lists"));
  EXPECT_NE(DescribePlan(anew).find("in pages laid anew"), std::string::npos) << DescribePlan(anew);
  EXPECT_EQ(capi::KvPlanInfo(anew)["static"]["repage"], true);
  EXPECT_EQ(PlanOf("prkv --kv-repage on --kv-static 0").n_stored_groups(), stays.n_groups());
  for (const std::string method : {"kvswap", "oracle", "loki", "arkv-flash", "streaming", "full", "dynakv"}) {
    ExpectMessage(Refusal(StaticOptions(method + " --kv-repage on")), StatusCode::kInvalidArgument,
                  fmt::format("--kv-repage does not go with the KV method {}", method));
  }
}

TEST(StaticPlan, WhatHasNoSelectedGroupsRefusesIt) {
  for (const std::string method :
       {"full", "flexgen", "dynakv", "streaming", "arkv", "h2o", "snapkv", "defensivekv", "lazyeviction"}) {
    for (const std::string option : {"static 0.25", "static prompt", "static 0", "static-steps 8"}) {
      KvOptions options = StaticOptions(fmt::format("{} --kv-{}", method, option));
      ExpectMessage(Refusal(options), StatusCode::kInvalidArgument,
                    fmt::format("--kv-{} does not go with the KV method {}, which has no selected groups",
                                option.substr(0, option.find(' ')), method));
    }
  }
  for (const std::string method : {"kvswap", "prkv"}) {
    ExpectMessage(Refusal(StaticOptions(method + " --kv-static prompt --kv-reuse 8")),
                  StatusCode::kInvalidArgument, "leave --kv-reuse out, or say a share");
  }
}

// Without a method, a budget that holds all KV makes full of it: a note says that the set has no use.
TEST(StaticPlan, FullHasNoUseForIt) {
  KvOptions options;
  options.budget_fraction = 1.0;
  options.static_share = StaticShare{.share = 0.25};
  options.static_steps = 8;
  const KvPlan plan = Plan(options);
  EXPECT_EQ(plan.method.name, "full");
  ASSERT_FALSE(plan.notes.for_people.empty());
  std::string notes;
  for (const std::string& note : plan.notes.for_people) notes += note;
  EXPECT_NE(notes.find("static"), std::string::npos) << notes;
  EXPECT_NE(notes.find("static-steps"), std::string::npos) << notes;
}

}  // namespace
}  // namespace kvrun::testing
