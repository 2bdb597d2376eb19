#include "runtime/kv/planner/settle.h"

#include <algorithm>
#include <cmath>

#include "platform/base/units.h"
#include "runtime/kv/planner/kv_family.h"
#include "runtime/kv/planner/kv_plan_layers.h"
#include "shaders/shared/sample_params.h"

namespace kvrun {
namespace {

// A selection of fewer entries misses too much, or of less than a third of a short context: bytes that leave
// fewer are refused, and a share that leaves too few is raised (docs/measurements/quality.md, "Small
// contexts"). A share's least falls from one number to the other as the context grows, so that raises end
// without a jump of what is attended to, nor with less memory for a longer context.
constexpr uint32_t kLeastOfBytes = 256;
constexpr uint32_t kMostLeastOfShare = 512;
constexpr uint32_t kLeastOfShare = 320;
constexpr double kMostOfShareUntil = 2048;  // tokens; beyond, it falls with their root
constexpr uint32_t kLeastShare = 3;

}  // namespace

void SettleRecord(bool is_selected, uint32_t tried_tokens, PlanDraft& draft) {
  KvPlan& plan = draft.plan;
  const KvOptions& options = draft.options;
  const KvDefaults& defaults = plan.method.defaults;
  const uint32_t usual_tokens = is_selected ? options.default_group_tokens : kWholeGroupTokens;
  plan.record.group_tokens = options.group_tokens.value_or(
      tried_tokens > 0 ? tried_tokens : defaults.group_tokens.value_or(usual_tokens));
  plan.record.head_dim = draft.model.head_dim;
  plan.choice.heads = options.heads.value_or(defaults.heads.value_or(HeadReduction::kSoftmax));
  const bool per_head = is_selected && plan.choice.heads == HeadReduction::kPerKvHead;
  plan.record.n_heads = per_head ? 1 : draft.model.n_kv_heads;
  plan.n_streams = plan.n_sequences * (per_head ? draft.model.n_kv_heads : 1);
  plan.slots.record = plan.record;
}

uint32_t SinksOf(const PlanDraft& draft) {
  return draft.options.sink_entries.value_or(draft.plan.method.defaults.sink_entries.value_or(kSinkEntries));
}

uint32_t UsualSinkGroups(const KvPlan& plan) {
  return std::min(CeilDiv(kSinkEntries, plan.record.group_tokens), plan.n_groups());
}

void SettleChoice(uint32_t sinks, std::string_view usual_policy, PlanDraft& draft) {
  KvPlan& plan = draft.plan;
  const KvOptions& options = draft.options;
  const KvDefaults& defaults = plan.method.defaults;
  const AdapterKind usual_kind = sinks == 0 ? AdapterKind::kQuery : AdapterKind::kQueryCentred;
  plan.adapter.kind = options.adapter_kind.value_or(defaults.adapter_kind.value_or(usual_kind));
  plan.slots.policy = options.policy.empty() ? usual_policy : options.policy;
  plan.choice.mass_share = static_cast<float>(options.mass_share.value_or(0.0));
  const bool samples = options.sample_entries.value_or(0) > 0;
  const bool usually_by_mass = defaults.goes_by_mass && plan.choice.heads != HeadReduction::kSum;
  plan.choice.group_score =
      options.mass_share || samples || usually_by_mass ? GroupScore::kMass : plan.method.group_score;
  plan.choice.sample_seed = options.sample_seed.value_or(0);
}

void SettleCounts(uint32_t n_extents, PlanDraft& draft) {
  std::optional<uint32_t> entries = draft.options.select_entries;
  if (!entries && !draft.has_budget()) entries = kPaperEntries;
  if (entries) draft.n_chosen = FamilyOf(draft.plan.method).SlotsOf(draft.plan, *entries);
  if (draft.options.reuse_groups) draft.n_cache_slots = std::min(*draft.options.reuse_groups, n_extents);
  draft.plan.choice.is_limited_by_reuse =
      !draft.n_chosen && draft.n_cache_slots && *draft.n_cache_slots < n_extents;
}

uint32_t LeastSelected(const PlanDraft& draft) {
  const uint32_t n_ctx = draft.plan.n_ctx;
  const double falling = kMostLeastOfShare * std::sqrt(kMostOfShareUntil / n_ctx);
  const uint32_t of_share =
      static_cast<uint32_t>(std::clamp<double>(falling, kLeastOfShare, kMostLeastOfShare));
  return std::min(draft.options.budget_fraction ? of_share : kLeastOfBytes, CeilDiv(n_ctx, kLeastShare));
}

void SetSlots(const PlanDraft& draft, uint32_t n_chosen, uint32_t n_cache_slots, KvPlan& plan) {
  const KvOptions& options = draft.options;
  plan.SetCounts(n_chosen, n_cache_slots);
  const uint32_t n_sampled = options.sample_entries.value_or(0) / plan.record.group_tokens;
  plan.choice.n_sampled =
      std::min({n_sampled, plan.n_choosable() - plan.choice.n_chosen, uint32_t{KVRUN_MAX_SAMPLED}});
  plan.slots.n_pool_slots =
      plan.choice.n_chosen - std::min(plan.choice.n_chosen, plan.slots.n_cache_slots) + plan.most_sampled();
  plan.slots.reads_per_layer = plan.slots.n_pool_slots == 0 ? draft.reads_per_layer : 0.0;
  const bool follows_shares = plan.method.defaults.follows_layer_shares &&
                              options.layer_shares.size() == draft.model.n_layers && !draft.adapts() &&
                              !plan.static_share().by_prompt && options.kept_shares != KeptShares::kEven;
  if (follows_shares) ShareAmongLayers(options.layer_shares, plan);
  if (options.cut_layer) CutOneLayer(*options.cut_layer, plan);
}

}  // namespace kvrun
