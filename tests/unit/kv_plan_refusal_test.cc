// Plans that are refused: budgets that are too small, with what would suffice, and contradictions.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <string>

#include "tests/support/kv_plan_cases.h"

namespace kvrun::testing {
namespace {

// The smallest budget that a message names suffices, and a byte less does not.
TEST(KvPlanRefusal, BudgetsThatAreTooSmallAreAnsweredWithTheSmallest) {
  KvOptions selects = Unlimited("kvswap");
  selects.select_entries = 2000;
  KvOptions reuses = Unlimited("kvswap");
  reuses.reuse_groups = 300;
  for (KvOptions options : {Unlimited("kvswap"), Unlimited("flexgen"), selects, reuses}) {
    for (const uint64_t budget : {uint64_t{0}, uint64_t{1024}}) {
      options.budget_bytes = budget;
      const Status status = Refusal(options);
      std::printf("%s\n", status.message().c_str());
      ExpectMessage(status, StatusCode::kOutOfMemory,
                    budget == 0 ? "budget of 0 B" : "budget of 1.0 KiB (1024 bytes)");
      const uint64_t smallest = BytesAfter(status.message(), "needs at least ");
      options.budget_bytes = smallest;
      ExpectSound(Plan(options), kSmolLm2);
      --*options.budget_bytes;
      ExpectMessage(Refusal(options), StatusCode::kOutOfMemory, std::to_string(smallest));
    }
  }
}

// Whatever the shape: of heads of 2, int4 takes more than f16; of a short context, tiles more than all of it.
TEST(KvPlanRefusal, TheSmallestBudgetIsTheLeastOfAllRows) {
  constexpr KvModelShape kStories = {5, 8, 4, 8, 64};
  constexpr KvModelShape kTwoNumbers = {2, 4, 4, 2, 8};
  KvOptions selects = Unlimited("kvswap");
  selects.select_entries = 40;
  KvOptions per_head = Unlimited("kvswap");
  per_head.heads = HeadReduction::kPerKvHead;
  for (const KvModelShape& model : {kStories, kTwoNumbers, kSmolLm2, kLlama8b}) {
    for (const uint32_t n_ctx : {40U, 100U, 256U, 300U, 512U, 2048U, 8192U}) {
      for (const uint32_t alignment : {1U, 512U, 4096U}) {
        for (KvOptions options : {Unlimited("kvswap"), Unlimited("flexgen"), selects, per_head}) {
          options.budget_bytes = 0;
          const Status refusal = Refusal(options, model, n_ctx, 2, alignment);
          const uint64_t smallest = BytesAfter(refusal.message(), "needs at least ");
          options.budget_bytes = smallest;
          const KvPlan plan = Plan(options, model, n_ctx, 2, alignment);
          EXPECT_EQ(std::max(plan.decode_bytes(), plan.prefill_bytes()), smallest) << refusal.message();
          options.budget_bytes = smallest - 1;
          ExpectMessage(Refusal(options, model, n_ctx, 2, alignment), StatusCode::kOutOfMemory,
                        std::to_string(smallest));
        }
      }
    }
  }
}

TEST(KvPlanRefusal, ContradictionsAreRefused) {
  const auto expect_refused = [](const KvOptions& options, std::string_view part) {
    ExpectMessage(Refusal(options), StatusCode::kInvalidArgument, part);
  };
  KvOptions options = Unlimited("magic");
  expect_refused(options, "known: full, flexgen, kvswap");
  options = Swap(0.1);
  options.budget_bytes = 1000;
  expect_refused(options, "given twice");
  for (const double fraction : {0.0, -1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    expect_refused(Swap(fraction), "must be above 0");
  }
  for (const uint32_t group : {0U, 257U}) {
    options = Swap(0.1);
    options.group_tokens = group;
    expect_refused(options, "1 to 256");
  }
  options = Swap(0.1);
  options.rank = 193;
  expect_refused(options, "ranks from 1 to 192");
  options.rank = 16;
  options.adapter_kind = AdapterKind::kSkewed;
  expect_refused(options, "ask for a multiple of 3");
  options = Swap(0.1);
  options.index_type = KvType::kFp8;
  expect_refused(options, "f16, int8 or int4");
  options = Swap(0.1);
  options.policy = "clock";
  expect_refused(options, "known: fifo, lru, non-hit, lfu, cluster");
  options = Unlimited("flexgen");
  options.select_entries = 400;
  expect_refused(
      options,
      "--kv-select does not go with the KV method flexgen, which has no selected entries: leave it out");
  options = Unlimited("full");
  options.window_entries = 64;
  expect_refused(options, "--kv-window does not go with the KV method full, which has no recent window");
}

}  // namespace
}  // namespace kvrun::testing
