// As many entries as there is room for, in memory; the others are gone.
#include <fmt/format.h>

#include <algorithm>

#include "runtime/kv/planner/describe_plan.h"
#include "runtime/kv/planner/kv_family.h"
#include "runtime/kv/planner/kv_plan_kept.h"
#include "runtime/kv/planner/settle.h"

namespace kvrun {
namespace {

constexpr uint32_t kFewKept = 128;   // of a list
constexpr uint32_t kLeastKept = 16;  // of a list: as many as the smallest window has

class Kept final : public KvFamily {
 public:
  void Begin(KvPlan& plan) const override { plan.family = KeptPlan{}; }

  // Entries by themselves, of each KV head.
  Status Settle(PlanDraft& draft) const override {
    const KvOptions& options = draft.options;
    KvPlan& plan = draft.plan;
    SettleRecord(/*is_selected=*/false, 0, draft);
    plan.record.group_tokens = 1;
    plan.record.n_heads = 1;
    plan.n_streams = plan.n_sequences * draft.model.n_kv_heads;
    plan.slots.record = plan.record;
    plan.of_kept().shares = options.kept_shares.value_or(KeptShares::kEven);
    plan.of_kept().precisions = options.kept_precisions.value_or(KeptPrecisions::kBytes);
    plan.of_kept().moments = options.attention_moments.value_or(AttentionMoments::kKeys);
    std::optional<uint32_t> entries = options.select_entries;
    if (!entries && !draft.has_budget()) entries = plan.n_ctx;
    if (entries) draft.n_chosen = draft.n_cache_slots = std::clamp(*entries, 1U, plan.n_ctx);
    return Status::Ok();
  }

  uint32_t SlotsOf(const KvPlan& plan, uint32_t entries) const override {
    return std::min(entries, plan.n_groups());
  }
  uint32_t LeastEntries(const PlanDraft& draft) const override {
    return std::min(kFewKept, draft.plan.n_ctx);
  }
  uint32_t LeastChosen(const PlanDraft& draft) const override {
    return std::min(draft.options.budget_fraction ? kFewKept : kLeastKept, draft.plan.n_ctx);
  }
  bool selects_from_flash() const override { return false; }

  // What has 8 bits is told apart by its score, so the rest is exact.
  bool is_exact(const KvPlan& plan) const override { return plan.method.goes_by_score(); }
  void SetCounts(const PlanDraft& /*draft*/, uint32_t n_chosen, uint32_t /*n_cache_slots*/,
                 KvPlan& plan) const override {
    SetKept(n_chosen, plan);
  }
  void SetExactGroups(KvPlan& /*plan*/) const override {}

  void SizeParts(const KvSizeInput& input, KvPlan& plan) const override { SizeKeptParts(input, plan); }
  uint64_t PromptBytes(const KvSizeInput& input, const KvPlan& plan) const override {
    return ObservedRowBytes(input, plan);
  }
  uint64_t LayerEndBytes(const KvSizeInput& input, const KvPlan& plan) const override {
    return KeptPromptBytes(input, plan);
  }

  std::string Describe(const KvPlan& plan) const override {
    return DescribeKept(plan) + DescribePrefill(plan);
  }
  std::string AdviseLess(const PlanDraft& /*draft*/, const KvPlan& most) const override {
    return fmt::format("keep at most {} entries (--kv-select)", most.EntriesOfSlots(most.choice.n_chosen));
  }
};

}  // namespace

const KvFamily& KeptFamily() {
  static const Kept family;
  return family;
}

}  // namespace kvrun
