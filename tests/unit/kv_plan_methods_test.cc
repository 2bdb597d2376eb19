// Plans of the methods beside kvswap, and what all rows of the table have.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "runtime/kv/plan/kv_method.h"
#include "runtime/kv/plan/kv_plan.h"
#include "runtime/kv/plan/kv_plan_input.h"
#include "runtime/kv/planner/plan_kv.h"
#include "tests/support/kv_plan_cases.h"

namespace kvrun::testing {
namespace {

// In types other than f16 and f32, full KV is in records, and the newest entries in a window besides.
TEST(KvPlan, FullInRecords) {
  KvOptions options = Unlimited("full");
  options.k_type = KvType::kFp8;
  const KvPlan plan = Plan(options);
  EXPECT_EQ(plan.choice.n_chosen, plan.n_groups());
  EXPECT_EQ(plan.slots.n_cache_slots, plan.n_groups());
  EXPECT_EQ(plan.window.exact_entries(), kExactEntries);
  EXPECT_EQ(plan.window.record.k_type, KvType::kF16);
  EXPECT_GE(Part(plan, "kv"), 30 * (plan.n_groups() * plan.record.size_bytes() +
                                    plan.window.n_slots * plan.window.record.size_bytes()));
  EXPECT_GT(plan.prefill_bytes(), plan.decode_bytes());
  KvOptions of_flash = Unlimited("flexgen");  // it makes no adapter either
  of_flash.k_type = of_flash.v_type = KvType::kFp8;
  EXPECT_EQ(Part(plan, "prefill"), Part(Plan(of_flash), "prefill"));
  options.budget_bytes = plan.decode_bytes();
  const uint64_t needed = BytesAfter(Refusal(options).message(), "full needs ");
  EXPECT_GT(needed, plan.decode_bytes());
  options.budget_bytes = needed;
  EXPECT_EQ(Plan(options).prefill_bytes(), needed);
  options.budget_bytes = needed - 1;
  ExpectMessage(Refusal(options), StatusCode::kOutOfMemory, std::to_string(needed));
}

TEST(KvPlan, FullKeepsEverything) {
  const KvPlan plan = Plan(Unlimited("full"), kSmolLm2, 8192, 2);
  ASSERT_EQ(plan.parts.size(), 1U);
  EXPECT_EQ(plan.parts[0].name, "kv");
  EXPECT_EQ(plan.parts[0].bytes, plan.budget.full_bytes);
  EXPECT_EQ(plan.decode_bytes(), plan.prefill_bytes());
  KvOptions options = Unlimited("full");
  options.budget_fraction = 0.5;
  ExpectMessage(Refusal(options), StatusCode::kOutOfMemory, "4096 tokens would fit");
  options.budget_fraction = 1.0;
  EXPECT_EQ(Plan(options).record.k_type, KvType::kF16);
  options.k_type = KvType::kF32;
  ExpectMessage(Refusal(options), StatusCode::kOutOfMemory, "is too small");
}

TEST(KvPlan, FlexgenReadsEverythingThroughThePool) {
  const KvPlan plan = Plan(Unlimited("flexgen"));
  ExpectSound(plan, kSmolLm2);
  EXPECT_EQ(plan.choice.n_chosen, plan.n_groups());
  EXPECT_EQ(plan.index.rank, 0U);
  EXPECT_EQ(Part(plan, "index") + Part(plan, "scores"), 0U);
  EXPECT_EQ(Part(plan, "pool"), plan.record.size_bytes() * plan.n_groups()) << "one layer's";
  EXPECT_EQ(plan.record.k_type, KvType::kF16);
  KvOptions options = Unlimited("flexgen");
  options.budget_fraction = 1.0 / 13;
  ExpectSound(Plan(options), kSmolLm2);
  options.budget_fraction = 1.0 / 34;
  const KvPlan tight = Plan(options);
  ExpectSound(tight, kSmolLm2);
  EXPECT_NE(tight.record.k_type, KvType::kF16);
}

TEST(KvMethods, EveryMethodHasAPlan) {
  for (const KvMethod& method : KvMethods()) {
    SCOPED_TRACE(method.name);
    const KvPlan plan = Plan(Unlimited(std::string(method.name)), kSmolLm2, 4096, 1, 4096);
    if (method.name != "full") ExpectSound(plan, kSmolLm2);
    EXPECT_EQ(method.is_on_flash(), method.name != "full" && !method.evicts());
    EXPECT_EQ(method.needs_file(), method.name != "full");
    EXPECT_EQ(method.evicts(), !method.keep_rule.empty());
    EXPECT_EQ(method.residency == KvResidencyKind::kPool, method.name == "flexgen");
    EXPECT_EQ(method.selects(), method.is_on_flash() && method.name != "flexgen");
    // Only what is scored can be chosen by score.
    EXPECT_EQ(method.has_index(), method.selector == KvSelectorKind::kTopGroups ||
                                      method.selector == KvSelectorKind::kTopClusters);
    EXPECT_TRUE(!method.has_adapters() || method.has_index());
  }
}

TEST(KvMethods, StreamingFillsItsBudgetWithRecentEntries) {
  KvOptions options = Unlimited("streaming");
  EXPECT_EQ(Plan(options).window.n_entries, 1020U);
  options.budget_fraction = 1.0 / 8;
  const KvPlan plan = Plan(options);
  EXPECT_EQ(plan.choice.n_chosen, plan.choice.n_pinned);
  // An eighth of the entries, less what tables and staging take, and a group or two.
  EXPECT_GT(plan.window.n_entries, plan.n_ctx / 10);
  EXPECT_LT(plan.window.n_entries, plan.n_ctx / 8);
  options.window_entries = 100;
  EXPECT_EQ(Plan(options).window.n_entries, 100U);
  options.select_entries = 100;
  EXPECT_FALSE(PlanKv(options, kSmolLm2, 8192, 1, 4096).ok());
}

}  // namespace
}  // namespace kvrun::testing
