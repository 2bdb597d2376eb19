// Groups of consecutive entries on flash, of which a part, or all, is attended to.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "platform/base/units.h"
#include "runtime/kv/plan/kv_names.h"
#include "runtime/kv/planner/describe_plan.h"
#include "runtime/kv/planner/kv_family.h"
#include "runtime/kv/planner/kv_plan_candidates.h"
#include "runtime/kv/planner/kv_plan_kept.h"
#include "runtime/kv/planner/kv_plan_options.h"
#include "runtime/kv/planner/kv_plan_statics.h"
#include "runtime/kv/planner/settle.h"
#include "runtime/store/group_store.h"

namespace kvrun {
namespace {

constexpr double kShareBeforePrompts = 0.25;  // of the static set, where prompts say it
constexpr uint32_t kLeastWindow = 64;         // where the window takes what there is
constexpr uint64_t kStagedRecords = 32;       // as many as are in flight

uint64_t KeyColumns(const KvSizeInput& input) {
  return uint64_t{input.model.n_kv_heads} * input.model.head_dim;
}

// Both sides of an adapter, in numbers of so many bytes.
uint64_t SideBytes(const KvSizeInput& input, const KvPlan& plan, uint64_t number_bytes) {
  return 2 * KeyColumns(input) * plan.index.rank * number_bytes;
}

// Of each layer; or of one for all, where keys are taken as they are. With the mean key's projection.
uint64_t AdapterBytes(const KvSizeInput& input, const KvPlan& plan) {
  const uint64_t one = SideBytes(input, plan, sizeof(uint16_t)) + plan.index.rank * sizeof(float);
  if (plan.method.has_adapters()) return input.model.n_layers * one;
  return plan.method.index == KvIndexKind::kExactKeys ? one : 0;
}

// Of two stages: the first one's queries and scores, the candidates, and, on the CPU, a copy of their rows.
uint64_t CandidateBytes(const KvSizeInput& input, const KvPlan& plan) {
  const CandidatePlan& candidates = plan.of_groups().candidates;
  if (candidates.n_groups == 0) return 0;
  const uint64_t queries = uint64_t{plan.n_sequences} * input.model.n_kv_heads * plan.index.rank * 4;
  const uint64_t lists = plan.n_sequences * (candidates.n_groups + uint64_t{1}) * 4;
  return queries + uint64_t{plan.n_groups()} * 4 + lists +
         uint64_t{candidates.n_groups} * plan.index.group_words() * 4;
}

uint64_t ScoreBytes(const KvSizeInput& input, const KvPlan& plan) {
  if (!plan.method.selects()) return 0;
  const uint64_t chosen = ChoiceListBytes(plan);
  if (!plan.method.has_index()) return chosen;
  const uint64_t groups = uint64_t{plan.n_streams} * plan.n_groups() * 4;
  return RowScoreBytes(input, plan, uint64_t{plan.n_groups()} * plan.index.rows()) + groups + chosen +
         CandidateBytes(input, plan);
}

// What a group of a method that goes by its index may not be said of shares.
Status CheckShares(const KvOptions& options) {
  const auto invalid = [](std::string message) {
    return Status(StatusCode::kInvalidArgument, std::move(message));
  };
  if (!options.kept_shares || *options.kept_shares == KeptShares::kEven) return Status::Ok();
  if (*options.kept_shares == KeptShares::kHeads) {
    return invalid(
        fmt::format("--kv-shares heads does not go with the KV method {}, whose heads have as many "
                    "entries each: say layers or even, or leave it out",
                    options.method));
  }
  if (options.adapt.value_or(false) || (options.static_share && options.static_share->by_prompt)) {
    return invalid(
        "--kv-shares layers does not go with --kv-adapt on and --kv-static prompt, which say how much is "
        "selected: leave it out");
  }
  if (!options.layer_shares.empty()) return Status::Ok();
  return invalid(
      fmt::format("--kv-shares layers does not go with the KV method {} unless an adapter's file "
                  "has shares of layers: name one that kvadapt calibrate has made (--kv-adapter)",
                  options.method));
}

class Groups final : public KvFamily {
 public:
  void Begin(KvPlan& plan) const override { plan.family = GroupsPlan{}; }

  Status CheckOptions(const KvOptions& options) const override { return CheckShares(options); }

  std::vector<uint32_t> Sizes(const PlanDraft& draft) const override {
    const KvDefaults& defaults = draft.plan.method.defaults;
    std::vector<uint32_t> sizes = {0};
    if (draft.options.group_tokens || defaults.most_group_tokens == 0) return sizes;
    for (uint32_t size = 2 * *defaults.group_tokens; size <= defaults.most_group_tokens; size *= 2) {
      sizes.push_back(size);
    }
    return sizes;
  }

  Status Settle(PlanDraft& draft) const override;

  uint32_t SlotsOf(const KvPlan& plan, uint32_t entries) const override {
    return static_cast<uint32_t>(std::min<uint64_t>(
        uint64_t{plan.choice.n_pinned} + entries / plan.record.group_tokens, plan.n_groups()));
  }
  uint32_t LeastEntries(const PlanDraft& draft) const override {
    return fills_window(draft) ? std::min(kLeastWindow, draft.plan.n_ctx) : LeastSelected(draft);
  }
  // Else one group beside the pinned ones.
  uint32_t LeastChosen(const PlanDraft& draft) const override {
    const KvPlan& plan = draft.plan;
    return draft.fills_budget() ? SlotsOf(plan, std::max(LeastEntries(draft), plan.record.group_tokens))
                                : std::min(plan.choice.n_pinned + 1, plan.n_groups());
  }
  bool counts_entries(const KvPlan& plan) const override { return plan.method.counts_groups(); }
  // Without selected groups.
  bool fills_window(const PlanDraft& draft) const override {
    const KvMethod& method = draft.plan.method;
    return method.selects() && !method.counts_groups() && draft.has_budget() && !draft.options.window_entries;
  }
  // Sources of two precisions leave none for a pool.
  bool needs_equal_capacity(const KvPlan& plan) const override {
    return plan.method.may_have_statics() && plan.method.goes_by_score();
  }
  uint32_t ChosenOf(const KvPlan& plan, uint32_t n_total) const override {
    if (!plan.method.may_have_statics()) return n_total;
    KvPlan shared = plan;
    ShareWithStatics(n_total, plan.of_groups().statics.share.share, false, shared);
    return shared.choice.n_chosen;
  }

  void ShapeIndex(const PlanDraft& draft, const PlanRow& row, KvPlan& plan) const override;
  void SetCounts(const PlanDraft& draft, uint32_t n_chosen, uint32_t n_cache_slots,
                 KvPlan& plan) const override;
  void SetExactGroups(KvPlan& plan) const override {
    plan.window.n_exact_groups = plan.window.n_exact_chosen =
        plan.method.selects() ? plan.choice.n_pinned : UsualSinkGroups(plan);
  }

  void SizeParts(const KvSizeInput& input, KvPlan& plan) const override;
  uint64_t PromptBytes(const KvSizeInput& input, const KvPlan& plan) const override {
    const uint64_t observed = plan.has_statics() ? ObservedRowBytes(input, plan) : 0;
    if (!input.computes_adapter) return observed;
    const uint64_t dim = input.model.head_dim;
    uint64_t sums = (KeyColumns(input) + 1) * KeyColumns(input);
    if (WeighsByQueries(plan.adapter.kind)) sums += input.model.n_kv_heads * (dim + 1) * dim;
    return observed + sums * sizeof(float);
  }
  // Entries that stay in memory are chosen, or the layer's adapter is computed.
  uint64_t LayerEndBytes(const KvSizeInput& input, const KvPlan& plan) const override {
    const uint64_t statics = StaticPromptBytes(input, plan);
    if (!input.computes_adapter) return statics;
    return std::max(statics, SideBytes(input, plan, sizeof(float)) +
                                 AdapterWorkBytes(plan.adapter.kind, input.model.n_kv_heads,
                                                  input.model.head_dim, plan.index.rank));
  }
  uint32_t projected_columns(const KvPlan& plan) const override {
    return plan.method.has_pages() ? 0 : plan.index.rank;
  }

  std::string Describe(const KvPlan& plan) const override;

 private:
  static Status SettleStatics(PlanDraft& draft);
  static Status SettleLaterPrompts(PlanDraft& draft);
  static void AddParts(const KvSizeInput& input, KvPlan& plan);
};

Status Groups::Settle(PlanDraft& draft) const {
  KvPlan& plan = draft.plan;
  SettleRecord(plan.method.selects(), draft.size, draft);
  if (!plan.method.selects()) {
    draft.n_chosen = plan.n_groups();
    draft.n_cache_slots = 0;
    return Status::Ok();
  }
  const uint32_t sinks = SinksOf(draft);
  plan.choice.n_pinned = static_cast<uint32_t>(
      std::min<uint64_t>(CeilDiv(uint64_t{sinks}, uint64_t{plan.record.group_tokens}), plan.n_groups()));
  SettleChoice(sinks, "lru", draft);
  KVRUN_RETURN_IF_ERROR(SettleStatics(draft));
  if (plan.method.counts_groups()) {
    SettleCounts(plan.n_choosable(), draft);
  } else {
    draft.n_chosen = draft.n_cache_slots = plan.choice.n_pinned;
  }
  KVRUN_RETURN_IF_ERROR(CheckChoice(draft.options, plan, draft.n_chosen));
  KVRUN_RETURN_IF_ERROR(SettleLaterPrompts(draft));
  return CheckCounts(draft.options, plan, draft.n_chosen, draft.n_cache_slots);
}

// Rows choose together where KV heads have one list, and what is in a static set can be scored for them:
// bounds of pages would have to be made again from records.
Status Groups::SettleLaterPrompts(PlanDraft& draft) {
  GroupsPlan& groups = draft.plan.of_groups();
  const KvMethod& method = draft.plan.method;
  const LaterPrompts asked = draft.options.later_prompts.value_or(LaterPrompts::kAuto);
  const bool has_statics = groups.statics.share.by_prompt || groups.statics.share.share > 0.0;
  const bool may_select = method.selector == KvSelectorKind::kTopGroups && method.has_index() &&
                          draft.plan.choice.heads != HeadReduction::kPerKvHead &&
                          (!has_statics || method.has_adapters());
  groups.later_prompts = may_select ? asked : LaterPrompts::kExact;
  if (may_select || asked != LaterPrompts::kSelected) return Status::Ok();
  return {
      StatusCode::kInvalidArgument,
      fmt::format("a prompt's tokens choose groups together (--kv-later-prompts selected) where all KV heads "
                  "have one list, and bounds of pages no static set: not with {} as it is set here",
                  method.name)};
}

// What is selected shares its entries with the static set.
Status Groups::SettleStatics(PlanDraft& draft) {
  const KvOptions& options = draft.options;
  StaticPlan& statics = draft.plan.of_groups().statics;
  const KvDefaults& defaults = draft.plan.method.defaults;
  double usual_share = draft.may_choose_statics() ? *defaults.static_share_of_budget : defaults.static_share;
  if (options.sample_entries.value_or(0) > 0) usual_share = 0.0;
  statics.share = options.static_share.value_or(StaticShare{.share = usual_share});
  if (draft.leaves_statics_out) statics.share = {};
  statics.has_rows_back = draft.plan.method.has_adapters();
  statics.steps = options.static_steps.value_or(defaults.static_steps);
  statics.lays_pages = options.static_repage.value_or(false);
  statics.precisions = options.kept_precisions.value_or(KeptPrecisions::kBytes);
  statics.moments = options.attention_moments.value_or(AttentionMoments::kKeys);
  if (draft.plan.method.goes_by_score() && (statics.share.by_prompt || options.reuse_groups)) {
    return {
        StatusCode::kInvalidArgument,
        fmt::format("the KV method {} has a slot for each selected group, and a static set of a share that "
                    "is said: leave --kv-reuse and --kv-static prompt out",
                    draft.plan.method.name)};
  }
  if (!statics.share.by_prompt) return Status::Ok();
  statics.share.share = kShareBeforePrompts;
  if (!options.reuse_groups) return Status::Ok();
  return {
      StatusCode::kInvalidArgument,
      "with --kv-static prompt the first prompt says how many groups are selected, and each has a slot of "
      "its own: leave --kv-reuse out, or say a share"};
}

void Groups::ShapeIndex(const PlanDraft& draft, const PlanRow& row, KvPlan& plan) const {
  if (!plan.method.has_index()) return;
  const KvDefaults& defaults = plan.method.defaults;
  const uint32_t key_dim = draft.model.n_kv_heads * draft.model.head_dim;
  IndexShape& index = plan.index;
  index.group_tokens = plan.record.group_tokens;
  index.n_groups = plan.n_groups();
  index.n_sequences = plan.n_sequences;
  index.type = KvType::kF16;
  index.rank = key_dim;
  if (plan.method.has_pages()) {
    index.rank = 2 * key_dim;
    index.rows_per_group = 1;
  }
  if (!plan.method.has_adapters()) return;
  index.type = draft.options.index_type.value_or(defaults.index_type.value_or(row.index_type));
  const uint32_t columns =
      defaults.rank_share ? static_cast<uint32_t>(key_dim * *defaults.rank_share) : key_dim / row.sigma;
  // Kinds that treat KV heads apart give each as many columns.
  const uint32_t step = IsOfHeads(plan.adapter.kind) ? draft.model.n_kv_heads : 4;
  index.rank = draft.options.rank.value_or(std::min(key_dim, RoundUp(std::max(columns, 1U), step)));
}

// M groups and a static set take the place of n_chosen groups.
void Groups::SetCounts(const PlanDraft& draft, uint32_t n_chosen, uint32_t n_cache_slots,
                       KvPlan& plan) const {
  const bool has_all_slots = n_cache_slots == n_chosen;
  if (plan.method.may_have_statics()) {
    const bool is_asked = draft.options.static_share && draft.options.select_entries &&
                          !plan.of_groups().statics.share.by_prompt;
    ShareWithStatics(n_chosen, plan.of_groups().statics.share.share, is_asked, plan);
    n_chosen = plan.choice.n_chosen;
  }
  SetSlots(draft, n_chosen, has_all_slots ? n_chosen : n_cache_slots, plan);
  // Of an index whose first columns tell most.
  const bool has_lists = plan.choice.heads == HeadReduction::kPerKvHead;
  if (!plan.method.has_adapters() || IsOfHeads(plan.adapter.kind) || has_lists || plan.choice.n_sampled > 0)
    return;
  plan.of_groups().candidates =
      PlanCandidates({.n_queries = plan.choice.heads == HeadReduction::kSoftmax ? draft.model.n_heads : 1,
                      .n_kv_heads = draft.model.n_kv_heads,
                      .rank = plan.index.rank,
                      .group_tokens = plan.index.rows(),
                      .n_groups = plan.n_groups(),
                      .n_chosen = plan.most_chosen()});
}

void Groups::AddParts(const KvSizeInput& input, KvPlan& plan) {
  const uint64_t layers = input.model.n_layers;
  plan.parts.clear();
  AddPart("index", layers * plan.index.size_bytes() + ScaleBytes(input, plan), plan);
  AddPart("adapters", AdapterBytes(input, plan), plan);
  AddSlotParts(input, plan);
  AddTails(input, 1, plan);
  AddStaticParts(input, plan);
  const uint64_t all_groups = plan.method.selects() ? 0 : uint64_t{plan.n_groups()} * sizeof(uint32_t);
  AddTables(input, all_groups, plan);
  AddPart("checksums", layers * plan.n_streams * plan.n_stored_groups() * kChecksumBytes, plan);
  const uint64_t lanes = layers * plan.n_streams;
  const uint64_t n_of_file = CeilDiv(std::max(plan.n_ctx, input.overlaid_tokens), plan.record.group_tokens) *
                             (plan.n_stored_groups() / plan.n_groups());
  AddSeals(input, lanes * plan.n_stored_groups(), plan.record.size_bytes(), plan, lanes * n_of_file);
  AddPart("scores", ScoreBytes(input, plan), plan);
  AddStaging(input, plan.slots.record.size_bytes(), kStagedRecords, plan);
}

// With parts that have room for any share, where prompts say it.
void Groups::SizeParts(const KvSizeInput& input, KvPlan& plan) const {
  AddParts(input, plan);
  if (!plan.has_statics() || !plan.of_groups().statics.share.by_prompt) return;
  std::array<KvPlan, 2> ends = {plan, plan};
  for (const uint32_t share : {0, 1}) {
    ChangeStaticShare(share, ends[share]);
    AddParts(input, ends[share]);
  }
  plan.parts = PartsOfAnyShare(ends[0].parts, ends[1].parts);
}

std::string Groups::Describe(const KvPlan& plan) const {
  const auto entries = [&plan](uint32_t n_some) { return plan.EntriesOfSlots(n_some); };
  std::string extents =
      fmt::format(" in groups of {} ({} pinned)", plan.record.group_tokens, entries(plan.choice.n_pinned));
  if (plan.has_statics()) extents += DescribeStatics(plan);
  if (plan.choice.n_sampled > 0)
    extents += fmt::format(", {} more drawn at random", entries(plan.choice.n_sampled));
  std::string text = DescribeOnFlash(plan, extents);
  if (!plan.method.has_index()) return text + DescribePrefill(plan);
  text += fmt::format("; index {} x {}", plan.index.rank, KvTypeName(plan.index.type));
  if (plan.method.has_adapters()) text += fmt::format(", {}", AdapterKindName(plan.adapter.kind));
  return text + DescribeScores(plan) + DescribePrefill(plan);
}

}  // namespace

const KvFamily& GroupsFamily() {
  static const Groups family;
  return family;
}

}  // namespace kvrun
