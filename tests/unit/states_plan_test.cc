// How many copies of states a budget pays for, at the shapes of real models.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>

#include "tests/support/kv_plan_cases.h"

namespace kvrun::testing {
namespace {

constexpr uint64_t kMiB = 1 << 20;

// Those of the models' cards: 6 layers of attention, 18 delta nets of 16 heads of 128 x 128, and convolutions
// of 3 x 6,144; 6 and 10 of 2 x 2,048; 4 and 22 windows of 768 entries.
constexpr KvModelShape kQwen35 = {.n_layers = 6,
                                  .n_heads = 8,
                                  .n_kv_heads = 2,
                                  .head_dim = 256,
                                  .n_embd = 1024,
                                  .state_bytes = uint64_t{18} * (16 * 128 * 128 + 3 * 6144) * 4};
constexpr KvModelShape kLfm2 = {.n_layers = 6,
                                .n_heads = 32,
                                .n_kv_heads = 8,
                                .head_dim = 64,
                                .n_embd = 2048,
                                .state_bytes = uint64_t{10} * 2 * 2048 * 4};
constexpr KvModelShape kGemma3 = {.n_layers = 4,
                                  .n_heads = 4,
                                  .n_kv_heads = 1,
                                  .head_dim = 256,
                                  .n_embd = 1152,
                                  .state_bytes = uint64_t{22} * 768 * 2 * 256 * 2};

KvOptions Bytes(uint64_t bytes) {
  KvOptions options;
  options.budget_bytes = bytes;
  return options;
}

KvOptions Share(double share) {
  KvOptions options;
  options.budget_fraction = share;
  return options;
}

uint64_t PartBytes(const KvPlan& plan, const std::string& name) {
  uint64_t bytes = 0;
  for (const KvPart& part : plan.parts) bytes += part.name == name ? part.bytes : 0;
  return bytes;
}

void ExpectSound(const KvPlan& plan, const KvModelShape& model) {
  SCOPED_TRACE(DescribePlan(plan));
  EXPECT_EQ(plan.states.sequence_bytes, model.state_bytes);
  EXPECT_EQ(PartBytes(plan, "states"), plan.n_sequences * (1 + plan.states.n_copies) * model.state_bytes);
  EXPECT_GE(plan.states.n_copies, kLeastStateCopies);
  EXPECT_LE(plan.states.n_copies, std::max(CeilDiv(plan.n_ctx, kStateCopyTokens), kLeastStateCopies));
  EXPECT_LE(plan.decode_bytes(), plan.budget.bytes);
  EXPECT_LE(plan.prefill_bytes(), plan.budget.bytes);
}

// Every plan keeps to its budget with its copies, and they take an eighth of what is left at most.
TEST(StatesPlan, CopiesAreInTheBudget) {
  for (const KvModelShape& model : {kQwen35, kLfm2, kGemma3}) {
    for (const uint32_t n_ctx : {2048U, 8192U, 32768U, 131072U}) {
      for (const uint32_t n_sequences : {1U, 4U}) {
        for (const double share : {1.0 / 34, 1.0 / 13, 1.0 / 8, 0.5, 1.0, 2.0}) {
          const KvPlan plan = Plan(Share(share), model, n_ctx, n_sequences, 4096);
          ExpectSound(plan, model);
          const uint64_t least_bytes = n_sequences * (1 + kLeastStateCopies) * model.state_bytes;
          const uint64_t more_bytes = PartBytes(plan, "states") - least_bytes;
          EXPECT_LE(more_bytes, (plan.budget.bytes - least_bytes) / kStateCopiesShare);
          if (plan.budget.is_raised) {
            EXPECT_EQ(more_bytes, 0U);
            continue;
          }
          // In bytes it is the same budget.
          const KvPlan in_bytes = Plan(Bytes(plan.budget.bytes), model, n_ctx, n_sequences, 4096);
          ExpectSound(in_bytes, model);
          EXPECT_EQ(in_bytes.budget.bytes, plan.budget.bytes);
        }
      }
    }
  }
}

// Where states are small, a budget that holds all KV has a copy of each chunk; where they are as large as
// the KV of 1,600 tokens, it has few of them, and more where it is larger.
TEST(StatesPlan, WhatBudgetsBuy) {
  const auto copies = [](const KvModelShape& model, const KvOptions& options, uint32_t n_ctx) {
    const KvPlan plan = Plan(options, model, n_ctx, 1, 4096);
    std::printf("%s\n", DescribePlan(plan).c_str());
    return plan.states.n_copies;
  };
  EXPECT_EQ(copies(kLfm2, Bytes(1024 * kMiB), 32768), 128U);
  EXPECT_EQ(copies(kLfm2, KvOptions(), 32768), 128U);
  EXPECT_GE(copies(kLfm2, Share(1.0 / 13), 32768), 20U);
  EXPECT_EQ(copies(kQwen35, KvOptions(), 32768), 2U + 384 * kMiB / 8 / kQwen35.state_bytes);
  EXPECT_EQ(copies(kQwen35, Share(1.0 / 13), 32768), kLeastStateCopies);
  EXPECT_EQ(copies(kQwen35, Bytes(1024 * kMiB), 32768), 2U + 6);
  EXPECT_GT(copies(kQwen35, Bytes(4096 * kMiB), 32768), 20U);
  EXPECT_GT(copies(kGemma3, Bytes(1024 * kMiB), 32768), 5U);
  EXPECT_EQ(copies(kGemma3, Bytes(1024 * kMiB), 512), kLeastStateCopies) << "a copy per chunk is enough";
}

// KV that fits beside the least copies does not go to flash for the sake of more.
TEST(StatesPlan, CopiesPutNoKvOnFlash) {
  const uint64_t kv_bytes = uint64_t{12288} * 32768;
  const uint64_t least_bytes = 3 * kQwen35.state_bytes;
  for (const uint64_t more : {uint64_t{0}, kQwen35.state_bytes - 1, kQwen35.state_bytes}) {
    const KvPlan plan = Plan(Bytes(kv_bytes + least_bytes + more), kQwen35, 32768, 1, 4096);
    EXPECT_EQ(plan.method.name, "full") << DescribePlan(plan);
    EXPECT_EQ(plan.states.n_copies, more == kQwen35.state_bytes ? 3U : 2U);
  }
  const KvPlan less = Plan(Bytes(kv_bytes + least_bytes - 4096), kQwen35, 32768, 1, 4096);
  EXPECT_EQ(less.method.name, "kvswap");
  ExpectSound(less, kQwen35);
}

// The largest selection that a budget takes without copies beyond the least is taken as well with them.
TEST(StatesPlan, WhatIsAskedForGoesFirst) {
  constexpr uint64_t kBudget = 32 * kMiB;
  KvModelShape without = kLfm2;
  without.state_bytes = 0;
  KvOptions growing = Bytes(kBudget - 3 * kLfm2.state_bytes);
  const auto takes = [&](uint32_t n_entries) {
    growing.select_entries = n_entries;
    return PlanKv(growing, without, 32768, 1, 4096).ok();
  };
  uint32_t most = 4;
  for (uint32_t step = 16384; step >= 4; step /= 2) most += takes(most + step) ? step : 0;
  ASSERT_GT(most, 1000U);
  KvOptions options = Bytes(kBudget);
  options.select_entries = most;
  const KvPlan plan = Plan(options, kLfm2, 32768, 1, 4096);
  ExpectSound(plan, kLfm2);
  EXPECT_EQ(plan.selected_entries(), most);
  options.select_entries = most / 2;
  const KvPlan with_room = Plan(options, kLfm2, 32768, 1, 4096);
  ExpectSound(with_room, kLfm2);
  EXPECT_GT(with_room.states.n_copies, plan.states.n_copies);
}

// Whoever chooses a static set again sets states back, with one copy more: where the budget has room for it.
TEST(StatesPlan, AStaticSetThatIsChosenAgainTakesOneMore) {
  const auto of_prkv = [](KvOptions options) {
    options.method = "prkv";
    return options;
  };
  for (const KvOptions& options : {Share(1.0 / 8), Bytes(128 * kMiB)}) {
    const KvPlan plan = Plan(of_prkv(options), kQwen35, 32768, 1, 4096);
    SCOPED_TRACE(DescribePlan(plan));
    EXPECT_TRUE(plan.states.has_aside);
    EXPECT_EQ(PartBytes(plan, "states"), (2 + plan.states.n_copies) * kQwen35.state_bytes);
    EXPECT_LE(plan.decode_bytes(), plan.budget.bytes);
    EXPECT_FALSE(Plan(options, kQwen35, 32768, 1, 4096).states.has_aside) << "prompts alone choose it";
  }
  // The least that such a method takes is no more than before.
  KvModelShape without = kQwen35;
  without.state_bytes = 0;
  uint64_t least = 0;
  for (uint64_t step = 128 * kMiB; step > 0; step /= 2) {
    if (!PlanKv(of_prkv(Bytes(least + step)), without, 32768, 1, 4096).ok()) least += step;
  }
  ++least;
  const KvPlan plan = Plan(of_prkv(Bytes(least + 3 * kQwen35.state_bytes)), kQwen35, 32768, 1, 4096);
  ExpectSound(plan, kQwen35);
  EXPECT_FALSE(plan.states.has_aside);
}

TEST(StatesPlan, IsTold) {
  const KvPlan plan = Plan(Bytes(1024 * kMiB), kQwen35, 32768, 1, 4096);
  EXPECT_NE(DescribePlan(plan).find("; states 173.4 MiB: 8 copies, one per about 4096 tokens"),
            std::string::npos)
      << DescribePlan(plan);
  EXPECT_EQ(DescribePlan(Plan(Share(1.0 / 13))).find("; states "), std::string::npos);
}

TEST(StatesPlan, BudgetsBelowTheStatesAreRefused) {
  ExpectMessage(Refusal(Bytes(3 * kQwen35.state_bytes), kQwen35, 32768, 1, 4096), StatusCode::kOutOfMemory,
                "layers that do not attend to the whole text keep");
}

}  // namespace
}  // namespace kvrun::testing
