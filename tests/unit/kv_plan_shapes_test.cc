// What holds of plans at any shape that people run, and at others: drawn at random, with a fixed seed.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

#include "platform/base/random.h"
#include "platform/base/units.h"
#include "runtime/kv/planner/describe_plan.h"
#include "runtime/kv/planner/plan_kv.h"
#include "tests/support/kv_plan_cases.h"

namespace kvrun::testing {
namespace {

constexpr uint32_t kShapes = 60;

struct Shape {
  KvModelShape model;
  uint32_t n_ctx = 0;
  uint32_t alignment_bytes = 1;
};

KvModelShape ModelOf(uint32_t n_layers, uint32_t n_heads, uint32_t n_kv_heads, uint32_t head_dim,
                     uint32_t n_embd, uint32_t n_ff) {
  const uint64_t products = uint64_t{n_embd} * (2 * (n_heads + n_kv_heads) * head_dim + 3 * n_ff);
  return {n_layers, n_heads, n_kv_heads, head_dim, n_embd, products};
}

struct Named {
  const char* name;
  KvModelShape model;
};

std::vector<Named> KnownModels() {
  return {{"SmolLM2-135M", ModelOf(30, 9, 3, 64, 576, 1536)},
          {"Llama-3.2-1B", ModelOf(16, 32, 8, 64, 2048, 8192)},
          {"Llama-3.2-3B", ModelOf(28, 24, 8, 128, 3072, 8192)},
          {"Llama-3.1-8B", ModelOf(32, 32, 8, 128, 4096, 14336)},
          {"Qwen3-0.6B", ModelOf(28, 16, 8, 128, 1024, 3072)},
          {"Qwen3-4B", ModelOf(36, 32, 8, 128, 2560, 9728)},
          {"Qwen3-8B", ModelOf(36, 32, 8, 128, 4096, 12288)}};
}

// Heads of 32 to 256, one to sixteen KV heads, up to eight heads for each, 100 to 131,072 tokens.
Shape DrawShape(Random& random) {
  const auto draw = [&](uint32_t from, uint32_t to) {
    return from + static_cast<uint32_t>(random.Next() % (to - from + 1));
  };
  const uint32_t head_dim = draw(1, 8) * 32;
  const uint32_t n_kv_heads = draw(1, 16);
  const uint32_t n_heads = n_kv_heads * draw(1, 8);
  const uint32_t n_embd = std::max(head_dim, n_heads * head_dim / draw(1, 2));
  const uint32_t n_layers = draw(4, 40);  // each draw a statement: compilers order arguments as they like
  const uint32_t n_ff = n_embd * draw(2, 4);
  Shape shape;
  shape.model = ModelOf(n_layers, n_heads, n_kv_heads, head_dim, n_embd, n_ff);
  shape.n_ctx = 100U << draw(0, 10);
  const uint32_t more_tokens = draw(0, shape.n_ctx);
  shape.n_ctx = std::min(shape.n_ctx + more_tokens, 131072U);
  shape.alignment_bytes = 1U << (draw(0, 1) * 12);
  return shape;
}

KvOptions Budget(double share) {
  KvOptions options;
  options.budget_fraction = share;
  return options;
}

uint32_t EntriesOf(const KvPlan& plan) {
  return (plan.choice.n_chosen - plan.choice.n_pinned) * plan.record.group_tokens + plan.n_statics();
}

bool IsResident(const KvPlan& plan) { return !plan.method.needs_file(); }
bool SelectsAll(const KvPlan& plan) { return IsResident(plan) || plan.choice.n_chosen == plan.n_choosable(); }

void ExpectSense(const KvPlan& plan, const KvModelShape& model, uint32_t least) {
  SCOPED_TRACE(DescribePlan(plan));
  EXPECT_LE(std::max(plan.decode_bytes(), plan.prefill_bytes()), plan.budget.bytes);
  if (SelectsAll(plan)) return;
  ExpectSound(plan, model);
  EXPECT_GE(EntriesOf(plan) + plan.choice.n_pinned * plan.record.group_tokens,
            std::min(least, (plan.n_ctx + 2) / 3));
  if (plan.slots.n_cache_slots == plan.n_choosable()) return;  // decoding could hold no more
  EXPECT_GE(static_cast<double>(plan.decode_bytes()), 0.9 * static_cast<double>(plan.budget.bytes));
}

TEST(KvPlanShapes, SharesOfModelsThatPeopleRunSelectASensibleNumber) {
  for (const Named& one : KnownModels()) {
    for (const uint32_t n_ctx : {1024U, 2048U, 8192U, 32768U, 131072U}) {
      for (const double share : {1.0 / 8, 1.0 / 13, 1.0 / 34}) {
        SCOPED_TRACE(fmt::format("{} {} {}", one.name, n_ctx, share));
        const KvPlan plan = Plan(Budget(share), one.model, n_ctx, 1, 4096);
        ExpectSense(plan, one.model, 320);
        EXPECT_TRUE(!plan.budget.is_raised || !plan.notes.for_people.empty());
      }
    }
  }
}

TEST(KvPlanShapes, SharesOfAnyModelSelectASensibleNumber) {
  Random random(39);
  for (uint32_t i = 0; i < kShapes; ++i) {
    const Shape shape = DrawShape(random);
    for (const double share : {0.5, 0.2, 1.0 / 8, 1.0 / 13, 1.0 / 34, 1.0 / 100}) {
      SCOPED_TRACE(fmt::format("shape {}: {} layers, {}/{} heads of {}, {} tokens, share {}", i,
                               shape.model.n_layers, shape.model.n_heads, shape.model.n_kv_heads,
                               shape.model.head_dim, shape.n_ctx, share));
      ExpectSense(Plan(Budget(share), shape.model, shape.n_ctx, 1, shape.alignment_bytes), shape.model, 320);
    }
  }
}

// No raise ends in a jump: a context that is 3 % longer has about as much memory, or more.
TEST(KvPlanShapes, ALongerContextHasNoMuchSmallerShare) {
  for (const Named& one : KnownModels()) {
    for (const double share : {1.0 / 8, 1.0 / 13, 1.0 / 34}) {
      KvPlan before = Plan(Budget(share), one.model, 300, 1, 4096);
      for (uint32_t n_ctx = 309; n_ctx < 20000; n_ctx += n_ctx * 3 / 100) {
        const KvPlan plan = Plan(Budget(share), one.model, n_ctx, 1, 4096);
        SCOPED_TRACE(fmt::format("{} {} {}: {}", one.name, n_ctx, share, DescribePlan(plan)));
        EXPECT_GE(static_cast<double>(plan.budget.bytes), 0.97 * static_cast<double>(before.budget.bytes));
        before = plan;
      }
    }
  }
}

// More entries in 4 bits are better than few in more.
TEST(KvPlanShapes, WideTypesAreTakenWhereManyEntriesFit) {
  for (const Named& one : KnownModels()) {
    for (const double share : {1.0 / 4, 1.0 / 8, 1.0 / 13}) {
      for (uint32_t n_ctx = 300; n_ctx < 20000; n_ctx += n_ctx / 20) {
        const KvPlan plan = Plan(Budget(share), one.model, n_ctx, 1, 4096);
        if (IsResident(plan) || plan.record.k_type == KvType::kInt4) continue;
        SCOPED_TRACE(fmt::format("{} {} {}: {}", one.name, n_ctx, share, DescribePlan(plan)));
        EXPECT_GE(EntriesOf(plan), std::min(600U, n_ctx / 2));
      }
    }
  }
}

// Types, rank and window: what a row of the table decides.
auto RowOf(const KvPlan& plan) {
  const auto bits = [](KvType type) { return KvElementBits(type); };
  return std::tuple(bits(plan.record.k_type) + bits(plan.record.v_type), bits(plan.index.type),
                    plan.index.rank, plan.window.n_entries);
}

// More bytes buy no worse row of types, and of the same no fewer entries (a static set, which counts for more
// than it holds, takes up to a fifth where it begins to fit).
TEST(KvPlanShapes, MoreBudgetNeverBuysLess) {
  Random random(40);
  uint32_t n_planned = 0;
  for (uint32_t i = 0; i < kShapes; ++i) {
    const Shape shape = DrawShape(random);
    KvPlan last;
    for (double share = 1.0 / 200; share < 1.0; share *= 1.05) {
      KvOptions options;
      options.budget_bytes = static_cast<uint64_t>(
          share * static_cast<double>(Plan(Budget(1.0), shape.model, shape.n_ctx).budget.full_bytes));
      const auto plan = PlanKv(options, shape.model, shape.n_ctx, 1, shape.alignment_bytes);
      if (!plan.ok()) {
        EXPECT_EQ(last.n_ctx, 0U) << "less was enough: " << DescribePlan(last);
        continue;
      }
      SCOPED_TRACE(fmt::format("shape {}, share {}: {}\nafter {}", i, share, DescribePlan(*plan),
                               last.n_ctx == 0 ? "nothing" : DescribePlan(last)));
      ExpectSense(*plan, shape.model, 256);
      if (last.n_ctx != 0 && !SelectsAll(*plan)) {
        ASSERT_FALSE(SelectsAll(last));
        EXPECT_GE(RowOf(*plan), RowOf(last));
        const bool is_same_row = RowOf(*plan) == RowOf(last);
        const double share_left = plan->has_statics() == last.has_statics() ? 1.0 : 0.79;
        EXPECT_TRUE(!is_same_row || EntriesOf(*plan) >= share_left * EntriesOf(last));
      }
      last = *plan;
    }
    n_planned += last.n_ctx == 0 ? 0 : 1;
  }
  EXPECT_GE(n_planned, kShapes / 2);
}

// A phone binds 128 MiB at a time, of which a layer's KV may take more.
TEST(KvPlanShapes, TilesAreNoLargerThanADevicesBuffers) {
  constexpr uint64_t kMostBytes = 128 * kMiB - 256;
  for (const Named& model : KnownModels()) {
    for (const uint32_t n_ctx : {32768U, 131072U}) {
      KvOptions options;
      options.method = "kvswap";
      options.budget_bytes = 2 * kGiB;
      options.max_buffer_bytes = kMostBytes;
      const Result<KvPlan> plan = PlanKv(options, model.model, n_ctx, 1, 4096);
      ASSERT_TRUE(plan.ok()) << model.name << ": " << plan.status().message();
      const uint64_t token_bytes =
          uint64_t{2} * model.model.n_kv_heads * model.model.head_dim * sizeof(uint16_t);
      const bool is_tiled = n_ctx * token_bytes > kMostBytes;
      EXPECT_EQ(plan->prefill.tile_tokens < n_ctx, is_tiled) << model.name << " at " << n_ctx;
      if (!is_tiled) continue;
      EXPECT_LE(plan->prefill.tile_tokens * token_bytes, kMostBytes) << model.name << " at " << n_ctx;
      EXPECT_GT(plan->prefill.tile_tokens * token_bytes, kMostBytes / 2) << model.name << " at " << n_ctx;
      EXPECT_TRUE(plan->prefill.spills_hidden);
    }
  }
}

}  // namespace
}  // namespace kvrun::testing
