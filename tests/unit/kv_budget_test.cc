// What a budget means where no method is said, and where a share is too small.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "runtime/kv/planner/describe_plan.h"
#include "runtime/kv/planner/plan_kv.h"
#include "tests/support/kv_plan_cases.h"

namespace kvrun::testing {
namespace {

uint64_t Needed(const KvPlan& plan) { return std::max(plan.prefill_bytes(), plan.decode_bytes()); }

KvOptions Bytes(uint64_t bytes, std::string method = "") {
  KvOptions options;
  options.method = std::move(method);
  options.budget_bytes = bytes;
  return options;
}

KvOptions Share(double fraction, std::string method = "") {
  KvOptions options;
  options.method = std::move(method);
  options.budget_fraction = fraction;
  return options;
}

// The least that kvswap takes, as its refusal says.
uint64_t LeastOf(KvOptions options, uint32_t n_ctx, uint32_t n_sequences = 1) {
  options.method = "kvswap";
  options.budget_fraction.reset();
  options.budget_bytes = 1;
  return BytesAfter(Refusal(options, kSmolLm2, n_ctx, n_sequences).message(), "needs at least ");
}

bool Says(const KvPlan& plan, std::string_view part) {
  return std::any_of(plan.notes.for_people.begin(), plan.notes.for_people.end(),
                     [part](const std::string& note) { return note.find(part) != note.npos; });
}

TEST(KvBudget, WithoutABudgetAllKvStaysInMemoryAndNothingIsSaid) {
  const KvPlan plan = Plan(KvOptions());
  EXPECT_EQ(plan.method.name, "full");
  EXPECT_TRUE(plan.notes.for_people.empty());
  EXPECT_TRUE(IsSurelyResident(KvOptions(), kSmolLm2, 8192, 1));
}

TEST(KvBudget, ABudgetAloneMeansKvswap) {
  for (const uint32_t n_sequences : {1U, 4U}) {
    const KvPlan plan = Plan(Share(1.0 / 13), kSmolLm2, 8192, n_sequences, 4096);
    const KvPlan named = Plan(Share(1.0 / 13, "kvswap"), kSmolLm2, 8192, n_sequences, 4096);
    EXPECT_EQ(DescribePlan(plan), DescribePlan(named));
    EXPECT_EQ(plan.method.name, "kvswap");
    EXPECT_TRUE(plan.notes.for_people.empty()) << plan.notes.for_people[0];
    EXPECT_EQ(DescribePlan(Plan(Bytes(named.budget.bytes), kSmolLm2, 8192, n_sequences, 4096)),
              DescribePlan(named));
  }
  EXPECT_FALSE(IsSurelyResident(Share(1.0 / 13), kSmolLm2, 8192, 1));
}

TEST(KvBudget, WhereAllKvFitsFullIsTakenAndSaid) {
  const uint64_t full_bytes = Plan(KvOptions(), kSmolLm2, 600, 2).budget.full_bytes;
  for (const KvOptions& options : {Bytes(full_bytes), Bytes(full_bytes * 100), Share(1.0)}) {
    const KvPlan plan = Plan(options, kSmolLm2, 600, 2);
    EXPECT_EQ(plan.method.name, "full");
    EXPECT_EQ(plan.record.k_type, KvType::kF16);
    EXPECT_GE(plan.budget.bytes, full_bytes);
    ASSERT_EQ(plan.notes.for_people.size(), 1U);
    EXPECT_TRUE(Says(plan, "holds all KV of 600 tokens of context in 2 sequences"))
        << plan.notes.for_people[0];
    EXPECT_TRUE(IsSurelyResident(options, kSmolLm2, 600, 2));
  }
  EXPECT_EQ(Plan(Bytes(full_bytes - 1), kSmolLm2, 600, 2).method.name, "kvswap");
}

// In other types the KV has another size.
TEST(KvBudget, WhatFitsDependsOnTheTypes) {
  const uint64_t full_bytes = Plan(KvOptions(), kSmolLm2, 2000).budget.full_bytes;
  KvOptions options = Bytes(full_bytes);
  options.k_type = options.v_type = KvType::kF32;
  EXPECT_EQ(Plan(options, kSmolLm2, 2000).method.name, "kvswap");
  options = Bytes(full_bytes * 3 / 4);
  EXPECT_EQ(Plan(options, kSmolLm2, 2000).method.name, "kvswap");
  options.k_type = options.v_type = KvType::kInt8;
  const KvPlan plan = Plan(options, kSmolLm2, 2000);
  EXPECT_EQ(plan.method.name, "full");
  EXPECT_EQ(plan.record.k_type, KvType::kInt8);
  EXPECT_LE(Needed(plan), plan.budget.bytes);
}

TEST(KvBudget, OptionsThatFullDoesNotHaveAreNamedAsUnused) {
  KvOptions options = Share(1.0);
  options.group_tokens = 8;
  options.rank = 16;
  options.window_entries = 64;
  options.adapter_from_file = true;
  KvPlan plan = Plan(options, kSmolLm2, 600);
  EXPECT_EQ(plan.method.name, "full");
  EXPECT_TRUE(Says(plan, "no use for the KV options group, window, rank, adapter"))
      << plan.notes.for_people.at(0);
  options.k_type = options.v_type = KvType::kFp8;  // kept as records, with a window
  plan = Plan(options, kSmolLm2, 600);
  EXPECT_EQ(plan.window.n_entries, 64U);
  EXPECT_TRUE(Says(plan, "KV options group, rank, adapter")) << plan.notes.for_people.at(0);
  // Nonsense is refused all the same.
  options.rank = 193;
  ExpectMessage(Refusal(options, kSmolLm2, 600), StatusCode::kInvalidArgument, "ranks from 1 to 192");
}

TEST(KvBudget, AMethodThatIsSaidIsKept) {
  const KvPlan swap = Plan(Share(1.0, "kvswap"), kSmolLm2, 600);
  EXPECT_EQ(swap.method.name, "kvswap");
  EXPECT_TRUE(swap.notes.for_people.empty());
  EXPECT_EQ(Plan(Share(1.0, "flexgen"), kSmolLm2, 600).method.name, "flexgen");
  for (const KvOptions& options : {Share(0.5, "full"), Bytes(1 << 20, "full")}) {
    ExpectMessage(Refusal(options), StatusCode::kOutOfMemory, "the method full needs 180.0 MiB");
  }
}

TEST(KvBudget, AShareThatIsTooSmallIsRaisedToTheLeastThatWorks) {
  for (const char* method : {"", "kvswap", "flexgen"}) {
    for (const uint32_t n_ctx : {512U, 2048U, 8192U}) {
      for (const uint32_t n_sequences : {1U, 3U}) {
        const KvPlan plan = Plan(Share(1e-6, method), kSmolLm2, n_ctx, n_sequences, 4096);
        SCOPED_TRACE(DescribePlan(plan));
        EXPECT_TRUE(plan.budget.is_raised);
        const bool selects = plan.method.name == "kvswap";
        EXPECT_TRUE(selects || Needed(plan) == plan.budget.bytes);
        EXPECT_TRUE(!selects || plan.decode_bytes() >= plan.budget.bytes / 100 * 92);
        ASSERT_EQ(plan.notes.for_people.size(), 1U);
        EXPECT_TRUE(Says(plan, "too small")) << plan.notes.for_people[0];
        EXPECT_TRUE(Says(plan, "(" + std::to_string(plan.budget.bytes) + " bytes)"))
            << plan.notes.for_people[0];
        // Bytes: as many suffice. So do fewer, where something is selected, but not one less than is named.
        EXPECT_FALSE(
            Plan(Bytes(plan.budget.bytes, method), kSmolLm2, n_ctx, n_sequences, 4096).budget.is_raised);
        const Status refusal = Refusal(Bytes(1, method), kSmolLm2, n_ctx, n_sequences, 4096);
        const bool is_of_full = refusal.message().find("needs at least ") == std::string::npos;
        const uint64_t least = BytesAfter(refusal.message(), is_of_full ? "needs " : "needs at least ");
        EXPECT_LE(least, plan.budget.bytes);
        EXPECT_TRUE(selects || least == plan.budget.bytes);
        EXPECT_FALSE(Plan(Bytes(least, method), kSmolLm2, n_ctx, n_sequences, 4096).budget.is_raised);
        ExpectMessage(Refusal(Bytes(least - 1, method), kSmolLm2, n_ctx, n_sequences, 4096),
                      StatusCode::kOutOfMemory, std::to_string(least));
      }
    }
  }
}

TEST(KvBudget, AShareThatWorksIsNotRaised) {
  const uint64_t full_bytes = Plan(KvOptions(), kSmolLm2, 2048).budget.full_bytes;
  const KvPlan raised = Plan(Share(1e-6), kSmolLm2, 2048);
  EXPECT_TRUE(raised.budget.is_raised);
  EXPECT_GE(raised.budget.bytes, LeastOf(KvOptions(), 2048));
  const double above = static_cast<double>(raised.budget.bytes + 1) / static_cast<double>(full_bytes);
  EXPECT_FALSE(Plan(Share(above), kSmolLm2, 2048).budget.is_raised);
  const double below = static_cast<double>(LeastOf(KvOptions(), 2048) - 1) / static_cast<double>(full_bytes);
  EXPECT_EQ(Plan(Share(below), kSmolLm2, 2048).budget.bytes, raised.budget.bytes);
}

// What is selected is said; it needs more than the share.
TEST(KvBudget, AShareIsRaisedForWhatIsSaidBesideIt) {
  KvOptions options = Share(1.0 / 44);
  options.select_entries = 8000;
  const KvPlan plan = Plan(options);
  ExpectSound(plan, kSmolLm2);
  EXPECT_EQ(plan.selected_entries(), 8000U);
  EXPECT_EQ(plan.budget.bytes, LeastOf(options, 8192));
  EXPECT_TRUE(Says(plan, "to stay within the share, select at most ")) << plan.notes.for_people.at(0);
}

// Of few tokens, what kvswap needs beside them is more than all of them.
TEST(KvBudget, OfFewTokensFullIsTheLeastThatWorks) {
  const uint32_t n_ctx = 15;
  const uint64_t full_bytes = Plan(KvOptions(), kSmolLm2, n_ctx).budget.full_bytes;
  ASSERT_GT(LeastOf(KvOptions(), n_ctx), full_bytes);
  const KvPlan plan = Plan(Share(1.0 / 13), kSmolLm2, n_ctx, 1, 4096);
  EXPECT_EQ(plan.method.name, "full");
  EXPECT_TRUE(plan.budget.is_raised);
  EXPECT_EQ(plan.budget.bytes, full_bytes);
  EXPECT_TRUE(Says(plan, "it is raised to ") && Says(plan, "holds all their KV"))
      << plan.notes.for_people.at(0);
  const Status refusal = Refusal(Bytes(1000), kSmolLm2, n_ctx, 1, 4096);
  ExpectMessage(refusal, StatusCode::kOutOfMemory, "the KV budget of 1000 B is too small");
  EXPECT_EQ(BytesAfter(refusal.message(), "needs "), full_bytes);
  EXPECT_EQ(Plan(Bytes(full_bytes), kSmolLm2, n_ctx, 1, 4096).method.name, "full");
  EXPECT_EQ(Plan(Share(1.0 / 13, "kvswap"), kSmolLm2, n_ctx, 1, 4096).method.name, "kvswap");
}

TEST(KvBudget, BytesAreNeverExceeded) {
  for (const uint32_t n_ctx : {1U, 15U, 100U, 512U, 3000U}) {
    for (uint64_t budget = 1; budget < (uint64_t{1} << 27); budget = budget * 3 / 2 + 1) {
      const auto plan = PlanKv(Bytes(budget), kSmolLm2, n_ctx, 2, 4096);
      if (!plan.ok()) {
        ExpectMessage(plan.status(), StatusCode::kOutOfMemory, "is too small");
        continue;
      }
      EXPECT_LE(Needed(*plan), budget);
      EXPECT_EQ(plan->budget.bytes, budget);
      EXPECT_EQ(plan->method.name == "full", budget >= plan->budget.full_bytes);
    }
  }
}

}  // namespace
}  // namespace kvrun::testing
