#include "runtime/kv/planner/kv_planner.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "platform/base/check.h"
#include "platform/base/units.h"
#include "runtime/kv/planner/kv_plan_candidates.h"
#include "runtime/kv/planner/kv_plan_clusters.h"
#include "runtime/kv/planner/kv_plan_kept.h"
#include "runtime/kv/planner/kv_plan_layers.h"
#include "runtime/kv/planner/kv_plan_options.h"
#include "runtime/kv/planner/kv_plan_reading.h"
#include "runtime/kv/planner/kv_plan_statics.h"
#include "shaders/shared/sample_params.h"

namespace kvrun {
namespace {

constexpr double kWorthItsStatics = 0.8;  // of the entries that there would be without them
constexpr double kNearlyOne = 1 - 1e-6;   // a budget is a whole number of bytes
constexpr double kLeastShareOfSmallClusters = 1.0 / 8;

// Exact enough to be rounded from.
KvRecordShape WindowRecord(KvRecordShape record) {
  for (KvType* type : {&record.k_type, &record.v_type}) {
    if (*type != KvType::kF32) *type = KvType::kF16;
  }
  return record;
}

// That are selected or in the static set, where all of a group's count.
uint32_t EntriesOf(const KvPlan& plan) {
  return (plan.n_chosen - plan.n_pinned) * plan.slot_record.group_tokens + plan.statics.n_entries;
}

}  // namespace

std::string ContextText(const KvPlan& plan) {
  return fmt::format("{} tokens of context in {}", plan.n_ctx, Counted(plan.n_sequences, "sequence"));
}

std::span<const Planner::Row> Planner::Rows() {
  static constexpr std::array kRows = {
      Row{3.0 / 4, KvType::kF16, KvType::kF16, 4, KvType::kInt8, 64},
      Row{1.0 / 4, KvType::kInt8, KvType::kInt8, 4, KvType::kInt8, 64},
      Row{1.0 / 8, KvType::kFp8, KvType::kFp8, 4, KvType::kInt4, 64},
      Row{1.0 / 16, KvType::kInt8, KvType::kInt4, 8, KvType::kInt4, 64},
      Row{1.0 / 26, KvType::kInt8, KvType::kInt4, 12, KvType::kInt4, 48},
      Row{1.0 / 48, KvType::kInt4, KvType::kInt4, 16, KvType::kInt4, 32},
      Row{0.0, KvType::kInt4, KvType::kInt4, 32, KvType::kInt4, 16},
  };
  return kRows;
}

Planner::Planner(const KvOptions& options, const KvModelShape& model, uint32_t n_ctx, uint32_t n_sequences,
                 uint32_t io_alignment_bytes)
    : options_(options), model_(model) {
  base_.method = *FindKvMethod(options.method);
  base_.n_ctx = n_ctx;
  base_.n_sequences = n_sequences;
  base_.full_bytes =
      KvShape{KvType::kF16, n_sequences, model.n_kv_heads, model.head_dim, n_ctx}.size_bytes() *
      model.n_layers;
  base_.budget_bytes = KvBudgetBytes(options, base_.full_bytes);
  base_.flash_times = options.flash_times;
  base_.adapter_from_file = options.adapter_from_file;
  input_ = {.model = model,
            .io_alignment_bytes = io_alignment_bytes,
            .computes_adapter = base_.method.has_adapters() && !options.adapter_from_file,
            .max_buffer_bytes = options.max_buffer_bytes};
}

// Sources of two precisions leave none for a pool.
bool Planner::needs_equal_capacity() const {
  if (base_.method.may_have_statics() && base_.method.goes_by_score()) return true;
  return !options_.policy.empty() && (*FindReplacementPolicy(options_.policy))->needs_equal_capacity;
}

KvPlan Planner::AllInMemory() const {
  KvPlan plan = base_;
  const KvType k_type = options_.k_type.value_or(options_.v_type.value_or(KvType::kF16));
  const KvType v_type = options_.v_type.value_or(k_type);
  // Kept as records where f16 and f32 planes do not do: all of them in the window.
  const bool in_records = KeepsRecordsInMemory(options_);
  plan.record = {k_type, v_type, model_.n_kv_heads, model_.head_dim, kWholeGroupTokens};
  plan.slot_record = plan.record;
  plan.window_record = WindowRecord(plan.record);
  plan.n_streams = plan.n_sequences;
  plan.window_entries = std::max(options_.window_entries.value_or(Rows().front().window_entries), 1U);
  plan.n_window_slots = WindowSlots(plan.window_entries, plan.record.group_tokens, plan.n_groups());
  plan.n_chosen = plan.n_cache_slots = plan.n_groups();
  plan.prefill_tile_tokens = plan.n_ctx;
  const KvShape shape = {k_type, plan.n_sequences, model_.n_kv_heads, model_.head_dim, plan.n_ctx};
  plan.parts = {{"kv", shape.size_bytes() * model_.n_layers, true, true}};
  if (in_records) {
    SetSpace(plan);
    SizeResident(input_, plan);
    SizePrefill(input_, plan);
  }
  return plan;
}

Result<KvPlan> Planner::Full() const {
  KvPlan plan = AllInMemory();
  if (Holds(plan)) return plan;
  const uint64_t needed = std::max(plan.prefill_bytes(), plan.decode_bytes());
  const double fitting = static_cast<double>(plan.budget_bytes) / static_cast<double>(needed) * plan.n_ctx;
  return Status(StatusCode::kOutOfMemory,
                fmt::format("the KV budget of {} is too small: the method full needs {} for {} tokens of "
                            "context in {}, and about {} tokens would fit; raise the budget (--kv-budget), "
                            "shorten the context, or take a method that keeps KV on flash (--kv-method)",
                            BytesText(plan.budget_bytes), BytesText(needed), plan.n_ctx,
                            Counted(plan.n_sequences, "sequence"), static_cast<uint64_t>(fitting)));
}

// Of clusters or groups, that are tried, one after another, where none is given: larger ones leave more of a
// small budget for slots. 0: as usual.
std::vector<uint32_t> Planner::Sizes() const {
  const KvDefaults& defaults = base_.method.defaults;
  if (!base_.method.has_clusters()) {
    std::vector<uint32_t> sizes = {0};
    if (options_.group_tokens || defaults.most_group_tokens == 0) return sizes;
    for (uint32_t size = 2 * *defaults.group_tokens; size <= defaults.most_group_tokens; size *= 2) {
      sizes.push_back(size);
    }
    return sizes;
  }
  if (options_.cluster_entries) return {*options_.cluster_entries};
  const double share = static_cast<double>(base_.budget_bytes) / static_cast<double>(base_.full_bytes);
  std::vector<uint32_t> sizes = {24, 32, 48, 64};
  if (share >= kLeastShareOfSmallClusters) sizes.insert(sizes.begin(), 16);
  return sizes;
}

uint32_t Planner::WindowOf(const Row& row) const {
  const uint32_t usual =
      has_budget() ? row.window_entries : base_.method.defaults.window_entries.value_or(row.window_entries);
  // The entry that is computed is always attended to.
  return std::max(options_.window_entries.value_or(usual), 1U);
}

// All that a row decides; M and C are left at 0.
KvPlan Planner::Shape(const Row& row) const {
  KvPlan plan = base_;
  // What has 8 bits is told apart by its score, so the rest is exact.
  const bool is_exact = plan.method.goes_by_score() && evicts();
  plan.record.k_type = options_.k_type.value_or(is_exact ? KvType::kF16 : row.k_type);
  plan.record.v_type = options_.v_type.value_or(is_exact ? KvType::kF16 : row.v_type);
  plan.slot_record.k_type = plan.record.k_type;
  plan.slot_record.v_type = plan.record.v_type;
  plan.window_record = WindowRecord(plan.record);
  SetWindow(WindowOf(row), plan);
  if (plan.method.has_index()) ShapeIndex(row, plan);
  return plan;
}

void Planner::SetWindow(uint32_t window_entries, KvPlan& plan) const {
  plan.window_entries = window_entries;
  plan.n_window_slots = WindowSlots(plan.window_entries, plan.record.group_tokens, plan.n_groups());
}

void Planner::ShapeIndex(const Row& row, KvPlan& plan) const {
  const KvDefaults& defaults = plan.method.defaults;
  const uint32_t key_dim = model_.n_kv_heads * model_.head_dim;
  IndexShape& index = plan.index;
  index.group_tokens = plan.record.group_tokens;
  index.n_groups = plan.n_groups();
  index.n_sequences = plan.n_sequences;
  index.type = KvType::kF16;
  index.rank = key_dim;
  if (plan.method.has_clusters()) {
    index = CentroidIndexShape(plan);
    return;
  }
  if (plan.method.has_pages()) {
    index.rank = 2 * key_dim;
    index.rows_per_group = 1;
  }
  if (!plan.method.has_adapters()) return;
  index.type = options_.index_type.value_or(defaults.index_type.value_or(row.index_type));
  const uint32_t columns =
      defaults.rank_share ? static_cast<uint32_t>(key_dim * *defaults.rank_share) : key_dim / row.sigma;
  // Kinds that treat KV heads apart give each as many columns.
  const uint32_t step = IsOfHeads(plan.adapter_kind) ? model_.n_kv_heads : 4;
  index.rank = options_.rank.value_or(std::min(key_dim, RoundUp(std::max(columns, 1U), step)));
}

KvPlan Planner::Sized(const Row& row, uint32_t n_chosen, uint32_t n_cache_slots) const {
  return Sized(Shape(row), n_chosen, n_cache_slots);
}

KvPlan Planner::Sized(KvPlan plan, uint32_t n_chosen, uint32_t n_cache_slots) const {
  if (evicts()) {
    SetKept(n_chosen, plan);
    SetSpace(plan);
    SizeKeptParts(input_, plan);
    SizePrefill(input_, plan);
    return plan;
  }
  SetSlots(n_chosen, n_cache_slots, plan);
  SetCandidates(plan);
  SetSpace(plan);
  SizeParts(input_, plan);
  if (plan.has_statics() && plan.statics.share.by_prompt) SizeForAnyShare(plan);
  SizePrefill(input_, plan);
  return plan;
}

// Of an index whose first columns tell most.
void Planner::SetCandidates(KvPlan& plan) const {
  const bool has_lists = plan.heads == HeadReduction::kPerKvHead;
  if (!plan.method.has_adapters() || IsOfHeads(plan.adapter_kind) || has_lists || plan.n_sampled > 0) return;
  plan.candidates = PlanCandidates({.n_queries = plan.heads == HeadReduction::kSoftmax ? model_.n_heads : 1,
                                    .n_kv_heads = model_.n_kv_heads,
                                    .rank = plan.index.rank,
                                    .group_tokens = plan.index.rows(),
                                    .n_groups = plan.n_groups(),
                                    .n_chosen = plan.most_chosen()});
}

void Planner::SizeForAnyShare(KvPlan& plan) const {
  std::array<KvPlan, 2> ends = {plan, plan};
  for (const uint32_t share : {0, 1}) {
    ChangeStaticShare(share, ends[share]);
    SizeParts(input_, ends[share]);
  }
  plan.parts = PartsOfAnyShare(ends[0].parts, ends[1].parts);
}

void Planner::SetSpace(KvPlan& plan) const {
  bool has_int4 = false;
  for (const KvRecordShape& record : {plan.record, plan.kept.low_record, plan.statics.low_record}) {
    has_int4 = has_int4 || record.k_type == KvType::kInt4 || record.v_type == KvType::kInt4;
  }
  plan.rotates = options_.rotate.value_or(has_int4);
  plan.n_exact_groups = plan.n_exact_entries = 0;
  if (!plan.rotates || evicts()) return;
  if (plan.method.has_clusters())
    plan.n_exact_groups = plan.clusters.n_sinks;
  else if (plan.method.selects())
    plan.n_exact_groups = plan.n_pinned;
  else
    plan.n_exact_groups = std::min(CeilDiv(kSinkEntries, plan.record.group_tokens), plan.n_groups());
  plan.n_exact_entries =
      std::min(options_.sink_entries.value_or(kSinkEntries), plan.n_exact_groups * plan.record.group_tokens);
}

// M groups and a static set take the place of n_chosen groups.
void Planner::SetSlots(uint32_t n_chosen, uint32_t n_cache_slots, KvPlan& plan) const {
  const bool has_all_slots = n_cache_slots == n_chosen;
  plan.n_chosen = n_chosen;
  if (plan.method.may_have_statics()) {
    const bool is_asked = options_.static_share && options_.select_entries && !plan.statics.share.by_prompt;
    ShareWithStatics(n_chosen, plan.statics.share.share, is_asked, plan);
  }
  plan.n_cache_slots = has_all_slots ? plan.n_chosen : n_cache_slots;
  const uint32_t n_sampled = options_.sample_entries.value_or(0) / plan.record.group_tokens;
  plan.n_sampled = std::min({n_sampled, plan.n_choosable() - plan.n_chosen, uint32_t{KVRUN_MAX_SAMPLED}});
  plan.n_pool_slots = plan.n_chosen - std::min(plan.n_chosen, plan.n_cache_slots) + plan.most_sampled();
  plan.reads_per_layer = plan.n_pool_slots == 0 ? reads_per_layer_ : 0.0;
  const bool follows_shares = plan.method.defaults.follows_layer_shares &&
                              options_.layer_shares.size() == model_.n_layers && !adapts() &&
                              !plan.statics.share.by_prompt && options_.kept_shares != KeptShares::kEven;
  if (follows_shares) {
    ShareAmongLayers(options_.layer_shares, plan);
  }
  if (options_.cut_layer) CutOneLayer(*options_.cut_layer, model_.n_layers, plan);
}

// As given; what is open as small as makes sense: one group beside the pinned ones, and no slots where there
// can be a pool.
KvPlan Planner::Smallest(const Row& row) const {
  if (fills_window()) return WithWindow(row, CeilDiv(LeastEntries(), base_.record.group_tokens));
  const uint32_t least = LeastChosen();
  const uint32_t n_chosen = n_chosen_.value_or(std::max(n_cache_slots_.value_or(0), least));
  return Sized(row, n_chosen, n_cache_slots_.value_or(fills_slots() ? 0 : n_chosen));
}

// The smallest budget with which the row's types are tried, where the budget is to be filled.
uint64_t Planner::SuitableFrom(const Row& row) const {
  return static_cast<uint64_t>(std::ceil(row.share * kNearlyOne * static_cast<double>(base_.full_bytes)));
}

// The plan for the largest number from `least` to `most` that fits.
template <typename SizedBy>
std::optional<KvPlan> Planner::FitMost(uint32_t least, uint32_t most, const SizedBy& sized_by) const {
  if (!Holds(sized_by(least))) return std::nullopt;
  uint32_t fits = least;
  uint32_t end = most + 1;
  while (end - fits > 1) {
    const uint32_t middle = fits + (end - fits) / 2;
    (Holds(sized_by(middle)) ? fits : end) = middle;
  }
  return sized_by(fits);
}

// The largest M that fits, with C = M; or with no own slots, where M was given and is too large.
std::optional<KvPlan> Planner::FitMostGroups(const Row& row) const {
  return FitMost(LeastChosen(), base_.n_choosable(),
                 [&](uint32_t n) { return Sized(row, n, fills_slots() ? 0 : n); });
}

// As many as fit, and as many slots; or as many as are worth their time. Slots beyond those, which only
// decoding has, take what is left: they hold what was chosen before, and less is read.
std::optional<KvPlan> Planner::FitSelection(const Row& row) const {
  std::optional<KvPlan> most = FitMostGroups(row);
  if (!most || evicts() || needs_equal_capacity() || !fills_budget() || !has_budget() ||
      most->statics.share.by_prompt) {
    return most;
  }
  if (most->n_chosen == most->n_choosable()) return most;
  const uint32_t fitting = std::max(most->n_chosen, most->statics.n_total);
  const uint32_t n_total = std::min(fitting, MostWorth());
  const bool is_filled =
      static_cast<double>(most->decode_bytes()) >= kNearlyFilled * static_cast<double>(most->budget_bytes);
  if (n_total == fitting && is_filled) return most;
  const KvPlan least = Sized(row, n_total, n_total);
  std::optional<KvPlan> plan = FitMost(least.n_chosen, base_.n_choosable(), [&](uint32_t n_slots) {
    return Sized(row, n_total, n_slots == n_total ? n_slots + 1 : n_slots);  // as many as M would be C = M
  });
  if (!plan) return most;
  plan->is_limited_by_attention = n_total < fitting;
  return plan;
}

// C = M where that fits; else, in the types that suit the budget, the largest C that fits beside the pool.
std::optional<KvPlan> Planner::FitMostSlots(const Row& row, uint32_t n_chosen) const {
  KvPlan all = Sized(row, n_chosen, n_chosen);
  if (Holds(all)) return all;
  if (base_.budget_bytes < SuitableFrom(row)) return std::nullopt;
  return FitMost(0, n_chosen - 1, [&](uint32_t n) { return Sized(row, n_chosen, n); });
}

// Few clusters miss too much: where fewer than usual would be selected with C = M, so many are, through the
// pool.
std::optional<KvPlan> Planner::FitClusters(const Row& row) const {
  std::optional<KvPlan> most = FitMostGroups(row);
  if ((most && SelectsEnough(*most)) || needs_equal_capacity()) return most;
  std::optional<KvPlan> pooled = FitMostSlots(row, SlotsOf(kPaperEntries));
  return pooled ? pooled : most;
}

// Of a layer, as is expected. What is drawn at random is in no slot.
ReadingPlan Planner::ReadingOf(const KvPlan& plan) const {
  const auto unpinned = [&](uint32_t n) { return static_cast<double>(n - std::min(n, plan.n_pinned)); };
  const double chosen = unpinned(plan.n_chosen);
  double hits = kChosenAgain * unpinned(std::min(plan.n_cache_slots, plan.n_chosen));
  if (plan.n_cache_slots > plan.n_chosen && plan.n_chosen > plan.n_pinned) {
    const double share = chosen / unpinned(plan.n_cache_slots);
    hits = chosen * (1.0 - (1.0 - kChosenAgain) * std::pow(share, kMissPower));
  }
  ReadingPlan reading;
  reading.hide = hide();
  reading.reads = plan.n_streams * (chosen - hits + plan.n_sampled);
  if (plan.limits_reads()) reading.reads = std::min(reading.reads, plan.n_streams * plan.reads_per_layer);
  reading.is_limited_by_time = limits_reading();
  if (!options_.flash_times) return reading;
  const uint64_t bytes = RoundUp(plan.record.size_bytes(), uint64_t{input_.io_alignment_bytes});
  reading.read_us = reading.reads * options_.flash_times->ReadMicroseconds(bytes);
  reading.layer_us = options_.flash_times->layer_us;
  if (options_.flash_times->share_cores && !options_.hide) reading.layer_share = kShareOfCores;
  return reading;
}

// Whether a layer reads longer than it computes, though nothing but what has slots is selected.
bool Planner::ReadsTooMuch(const KvPlan& plan) const {
  const bool may_be_less = may_read_more() && limits_reading() && !adapts() && !options_.reads_per_layer &&
                           plan.n_pool_slots == 0 && plan.n_sampled == 0 &&
                           plan.heads != HeadReduction::kSum && plan.n_chosen < plan.n_choosable();
  if (!may_be_less) return false;
  const ReadingPlan reading = ReadingOf(plan);
  return reading.read_us * hide() > reading.layer_us;
}

// Of a stream, what is read while a layer computes.
double Planner::HiddenReads(const KvPlan& plan) const {
  const ReadingPlan reading = ReadingOf(plan);
  const double hidden = reading.reads * reading.layer_us / (reading.read_us * hide()) / plan.n_streams;
  // Tenths, as the note has it: what is said again as an option is the same.
  return std::round(std::max(hidden, kLeastReads * (plan.n_chosen - plan.n_pinned)) * 10.0) / 10.0;
}

// As much as is read while a layer computes, for a share of its time: more than has slots, through the pool.
std::optional<KvPlan> Planner::FitHidden(const Row& row, double hide) const {
  std::optional<KvPlan> best = FitSelection(row);
  if (!best) return best;
  if (reads_per_layer_ > 0.0 || best->is_limited_by_attention) {
    if (limits_reading() && !options_.reads_per_layer) best->reading = ReadingOf(*best);
    return best;
  }
  const auto fit = [&](uint32_t n_chosen) -> std::optional<KvPlan> {
    std::optional<KvPlan> plan = FitMostSlots(row, n_chosen);
    if (!plan) return plan;
    plan->reading = ReadingOf(*plan);
    const ReadingPlan& reading = *plan->reading;
    const bool is_hidden =
        !limits_reading() || reading.read_us * hide <= reading.layer_us * reading.layer_share;
    return is_hidden ? plan : std::nullopt;
  };
  uint32_t fits = std::max(best->n_chosen, best->statics.n_total);
  const uint32_t most = hide > 0.0 ? std::max(fits, MostWorth()) : base_.n_choosable();
  uint32_t end = most + 1;
  while (end - fits > 1) {
    const uint32_t middle = fits + (end - fits) / 2;
    if (std::optional<KvPlan> plan = fit(middle)) {
      fits = middle;
      best = std::move(plan);
    } else {
      end = middle;
    }
  }
  if (best->reading && end == most + 1) {
    best->reading->is_limited_by_time = false;
    best->is_limited_by_attention = most < base_.n_choosable();
  }
  return best;
}

// Where that may change while decoding, with room for twice the reading.
std::optional<KvPlan> Planner::FitAsRead(const Row& row) const {
  std::optional<KvPlan> usual = FitHidden(row, hide());
  if (!usual || !usual->reading || !adapts()) return usual;
  std::optional<KvPlan> most = FitHidden(row, hide() / 2.0);
  if (!most) return usual;
  most->reading = usual->reading;
  most->n_usual = std::min(usual->n_chosen, most->n_chosen);
  return most;
}

// Where the number is given, it is the most.
void Planner::SetPace(KvPlan& plan) const {
  plan.hide = hide();
  if (plan.n_usual == 0 && plan.n_pool_slots > 0) plan.n_usual = plan.n_chosen;
}

// The longest window that fits, in whole groups.
std::optional<KvPlan> Planner::FitLongestWindow(const Row& row) const {
  const uint32_t least = CeilDiv(LeastEntries(), base_.record.group_tokens);
  return FitMost(least, base_.n_groups(), [&](uint32_t n_groups) { return WithWindow(row, n_groups); });
}

KvPlan Planner::WithWindow(const Row& row, uint32_t n_groups) const {
  KvPlan plan = Shape(row);
  SetWindow(std::min(n_groups * plan.record.group_tokens, plan.n_ctx), plan);
  return Sized(std::move(plan), *n_chosen_, *n_cache_slots_);
}

std::optional<KvPlan> Planner::Fit(const Row& row) const {
  if (fills_window()) return FitLongestWindow(row);
  if (may_read_more()) return FitAsRead(row);
  if (fills_budget()) return base_.method.has_clusters() ? FitClusters(row) : FitSelection(row);
  if (fills_slots()) return FitMostSlots(row, *n_chosen_);
  KvPlan plan = Smallest(row);
  if (!Holds(plan)) return std::nullopt;
  return plan;
}

// Entries with which a row is taken, though one of fewer bits leaves room for more.
uint32_t Planner::EnoughFor(const Row& row) const {
  const bool is_wide = row.k_type != KvType::kInt4 && base_.method.has_adapters();
  return is_wide ? std::min(kEnoughForWideTypes, base_.n_ctx / 2) : LeastEntries();
}

// The first row that leaves room for enough; or for everything, which costs less in 4 bits (KL 0.003) than a
// part in any.
std::optional<KvPlan> Planner::FitBestRow() const {
  std::optional<KvPlan> best;
  std::optional<KvPlan> enough;
  for (const Row& row : Rows()) {
    if (fills_budget() && base_.budget_bytes < SuitableFrom(row)) continue;
    const std::optional<KvPlan> plan = Fit(row);
    if (!plan) continue;
    const uint32_t entries = EntriesOf(*plan);
    if (!fills_budget() || plan->n_chosen == plan->n_choosable()) return plan;
    if (entries >= EnoughFor(row) && !enough) enough = plan;
    if (!best || plan->n_chosen > best->n_chosen) best = plan;
  }
  return enough ? enough : best;
}

bool Planner::SelectsEnough(const KvPlan& plan) const {
  const uint32_t n_total = std::max(plan.n_chosen, plan.statics.n_total);
  return n_total >= SlotsOf(kPaperEntries) || plan.n_chosen == plan.n_choosable();
}

Status Planner::SettleSize(uint32_t size) {
  (base_.method.has_clusters() ? cluster_entries_ : group_tokens_) = size;
  return Settle();
}

// Of clusters and groups, the smallest that leave room for a usual selection; else those that leave most for
// it.
Result<std::optional<KvPlan>> Planner::FitBestSize() {
  std::optional<KvPlan> best;
  for (const uint32_t size : Sizes()) {
    KVRUN_RETURN_IF_ERROR(SettleSize(size));
    std::optional<KvPlan> plan = FitBestRow();
    if (!plan) continue;
    const bool has_sizes = Sizes().size() > 1;
    if (!fills_budget() || !has_sizes || SelectsEnough(*plan)) return plan;
    if (!best || EntriesOf(*plan) > EntriesOf(*best)) best = std::move(plan);
  }
  return best;
}

// Whether no type has fewer bits, the index no fewer columns and the window no fewer entries.
bool Planner::HasTypesOf(const KvPlan& plan, const KvPlan& other) {
  const auto record_bits = [](const KvPlan& p) {
    return KvElementBits(p.record.k_type) + KvElementBits(p.record.v_type);
  };
  return record_bits(plan) >= record_bits(other) && plan.index.rank >= other.index.rank &&
         plan.window_entries >= other.window_entries &&
         KvElementBits(plan.index.type) >= KvElementBits(other.index.type);
}

// With a static set, where there is to be one and it leaves room: what observes prompts takes memory, too.
// One that nobody asked for must leave nearly as many entries, and has no use where all are selected.
Result<std::optional<KvPlan>> Planner::FitBest() {
  leaves_statics_out_ = false;
  KVRUN_ASSIGN_OR_RETURN(std::optional<KvPlan> best, FitBestSize());
  const StaticShare share = base_.statics.share;
  if (!base_.method.may_have_statics() || share.by_prompt || share.share == 0.0) return best;
  const bool is_made = best && best->has_statics();
  if (is_made && !may_choose_statics()) return best;
  leaves_statics_out_ = true;
  KVRUN_ASSIGN_OR_RETURN(std::optional<KvPlan> without, FitBestSize());
  const bool is_needed =
      is_made && without && without->n_chosen < without->n_choosable() && HasTypesOf(*best, *without);
  if (is_needed && EntriesOf(*best) >= kWorthItsStatics * EntriesOf(*without)) return best;
  return without;
}

Result<std::optional<KvPlan>> Planner::FitAndRead() {
  reads_per_layer_ = options_.reads_per_layer.value_or(0.0);
  KVRUN_ASSIGN_OR_RETURN(std::optional<KvPlan> best, FitBest());
  if (!best || !ReadsTooMuch(*best)) return best;
  reads_per_layer_ = HiddenReads(*best);
  KVRUN_ASSIGN_OR_RETURN(std::optional<KvPlan> limited, FitBest());
  return limited ? limited : best;  // what tells scores takes more
}

Result<KvPlan> Planner::Partial() {
  KVRUN_ASSIGN_OR_RETURN(std::optional<KvPlan> best, FitAndRead());
  if (!best) {
    // With room for a limit of reads, where there may be one. A share is raised to the same before it is
    // known what reading costs.
    const bool may_limit =
        reads_as_is_worth() && hide() > 0.0 && (limits_reading() || options_.budget_fraction);
    if (may_limit && !options_.reads_per_layer) reads_per_layer_ = 1.0;
    KVRUN_ASSIGN_OR_RETURN(const Least least, FindLeastSize());
    if (!options_.budget_fraction) return TooLarge(least);
    const std::string advice = has_count() ? SelectLess() : "";
    const uint64_t asked_bytes = std::exchange(base_.budget_bytes, least.fillable_bytes);
    KVRUN_ASSIGN_OR_RETURN(best, FitAndRead());
    KVRUN_CHECK(best.has_value());
    best->raises_budget = true;
    // No reading is measured later that would take the rest.
    if (evicts()) best->budget_bytes = std::max(best->prefill_bytes(), best->decode_bytes());
    best->notes.push_back(NoteOfRaise(asked_bytes, best->budget_bytes, advice));
  }
  if (options_.reads_per_layer.value_or(0.0) > 0.0 && !best->limits_reads()) {
    return Status(
        StatusCode::kInvalidArgument,
        "--kv-reads limits what is read into own slots, and more is selected than has slots: select "
        "less (--kv-select), or leave it out");
  }
  if (adapts()) SetPace(*best);
  if (best->reading) best->details.push_back(NoteOfReading(*best));
  return *std::move(best);
}

// What is chosen takes memory in prefill, too: the least budget that decoding can fill, of at least so many
// bytes.
uint64_t Planner::FillableFrom(const Row& row, uint64_t least_bytes) const {
  uint32_t fits = LeastChosen();
  uint32_t end = base_.n_choosable() + 1;
  while (end - fits > 1) {
    const uint32_t middle = fits + (end - fits) / 2;
    (Sized(row, middle, middle).decode_bytes() <= least_bytes ? fits : end) = middle;
  }
  return std::max(least_bytes, Sized(row, fits, fits).prefill_bytes());
}

// The last row mostly takes least, but not where heads are so small that the scales of int4 outweigh it.
Planner::Least Planner::FindLeast() const {
  Least least;
  for (const Row& row : Rows()) {
    const KvPlan smallest = Smallest(row);
    uint64_t bytes = std::max(smallest.prefill_bytes(), smallest.decode_bytes());
    if (fills_budget() || fills_slots()) bytes = std::max(bytes, SuitableFrom(row));
    if (bytes > least.bytes) continue;
    least = {bytes, fills_budget() ? FillableFrom(row, bytes) : bytes, smallest};
  }
  return least;
}

// Of all sizes; the one that it is of is settled.
Result<Planner::Least> Planner::FindLeastSize() {
  Least least;
  uint32_t of_size = 0;
  for (const uint32_t size : Sizes()) {
    KVRUN_RETURN_IF_ERROR(SettleSize(size));
    Least found = FindLeast();
    if (found.bytes > least.bytes) continue;
    least = std::move(found);
    of_size = size;
  }
  KVRUN_RETURN_IF_ERROR(SettleSize(of_size));
  return least;
}

}  // namespace kvrun
