#include "runtime/kv/planner/kv_planner.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "platform/base/check.h"
#include "platform/base/units.h"
#include "runtime/kv/planner/kv_plan_options.h"
#include "runtime/kv/planner/kv_plan_reading.h"
#include "runtime/kv/planner/settle.h"

namespace kvrun {
namespace {

constexpr double kWorthItsStatics = 0.8;  // of the entries that there would be without them
constexpr double kNearlyOne = 1 - 1e-6;   // a budget is a whole number of bytes

// Exact enough to be rounded from.
KvRecordShape WindowRecord(KvRecordShape record) {
  for (KvType* type : {&record.k_type, &record.v_type}) {
    if (*type != KvType::kF32) *type = KvType::kF16;
  }
  return record;
}

// That are selected or in the static set, where all of a group's count.
uint32_t EntriesOf(const KvPlan& plan) {
  return (plan.choice.n_chosen - plan.choice.n_pinned) * plan.slots.record.group_tokens + plan.n_statics();
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
    : draft_{.options = options, .model = model}, family_(FamilyOf(*FindKvMethod(options.method))) {
  KvPlan& plan = draft_.plan;
  plan.method = *FindKvMethod(options.method);
  family_.Begin(plan);
  plan.layers.resize(model.n_layers);
  plan.n_ctx = n_ctx;
  plan.n_sequences = n_sequences;
  plan.budget.full_bytes =
      KvShape{KvType::kF16, n_sequences, model.n_kv_heads, model.head_dim, n_ctx}.size_bytes() *
      model.n_layers;
  plan.budget.bytes = KvBudgetBytes(options, plan.budget.full_bytes);
  plan.flash_times = options.flash_times;
  plan.adapter.is_from_file = options.adapter_from_file;
  input_ = {.model = model,
            .io_alignment_bytes = io_alignment_bytes,
            .computes_adapter = plan.method.has_adapters() && !options.adapter_from_file,
            .max_buffer_bytes = options.max_buffer_bytes,
            .is_sealed = options.is_sealed,
            .spare_cores = options.spare_cores,
            .overlaid_tokens = options.overlaid_tokens};
}

bool Planner::needs_equal_capacity() const {
  if (family_.needs_equal_capacity(draft_.plan)) return true;
  const std::string& policy = draft_.options.policy;
  return !policy.empty() && (*FindReplacementPolicy(policy))->needs_equal_capacity;
}

KvPlan Planner::AllInMemory() const {
  KvPlan plan = draft_.plan;
  const KvType k_type = draft_.options.k_type.value_or(draft_.options.v_type.value_or(KvType::kF16));
  const KvType v_type = draft_.options.v_type.value_or(k_type);
  // Kept as records where f16 and f32 planes do not do: all of them in the window.
  const bool in_records = KeepsRecordsInMemory(draft_.options);
  plan.record = {k_type, v_type, draft_.model.n_kv_heads, draft_.model.head_dim, kWholeGroupTokens};
  plan.slots.record = plan.record;
  plan.window.record = WindowRecord(plan.record);
  plan.n_streams = plan.n_sequences;
  plan.window.n_entries = std::max(draft_.options.window_entries.value_or(Rows().front().window_entries), 1U);
  plan.window.n_slots = WindowSlots(plan.window.n_entries, plan.record.group_tokens, plan.n_groups());
  plan.SetCounts(plan.n_groups(), plan.n_groups());
  plan.prefill.tile_tokens = plan.n_ctx;
  const KvShape shape = {k_type, plan.n_sequences, draft_.model.n_kv_heads, draft_.model.head_dim,
                         plan.n_ctx};
  plan.parts = {{"kv", shape.size_bytes() * draft_.model.n_layers, true, true}};
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
  const double fitting = static_cast<double>(plan.budget.bytes) / static_cast<double>(needed) * plan.n_ctx;
  return Status(StatusCode::kOutOfMemory,
                fmt::format("the KV budget of {} is too small: the method full needs {} for {} tokens of "
                            "context in {}, and about {} tokens would fit; raise the budget (--kv-budget), "
                            "shorten the context, or take a method that keeps KV on flash (--kv-method)",
                            BytesText(plan.budget.bytes), BytesText(needed), plan.n_ctx,
                            Counted(plan.n_sequences, "sequence"), static_cast<uint64_t>(fitting)));
}

uint32_t Planner::WindowOf(const Row& row) const {
  const uint32_t usual = draft_.has_budget()
                             ? row.window_entries
                             : draft_.plan.method.defaults.window_entries.value_or(row.window_entries);
  // The entry that is computed is always attended to.
  return std::max(draft_.options.window_entries.value_or(usual), 1U);
}

// All that a row decides; M and C are left at 0.
KvPlan Planner::Shape(const Row& row) const {
  KvPlan plan = draft_.plan;
  const bool is_exact = family_.is_exact(plan);
  plan.record.k_type = draft_.options.k_type.value_or(is_exact ? KvType::kF16 : row.k_type);
  plan.record.v_type = draft_.options.v_type.value_or(is_exact ? KvType::kF16 : row.v_type);
  plan.slots.record.k_type = plan.record.k_type;
  plan.slots.record.v_type = plan.record.v_type;
  plan.window.record = WindowRecord(plan.record);
  SetWindow(WindowOf(row), plan);
  family_.ShapeIndex(draft_, row, plan);
  return plan;
}

void Planner::SetWindow(uint32_t window_entries, KvPlan& plan) const {
  plan.window.n_entries = window_entries;
  plan.window.n_slots = WindowSlots(plan.window.n_entries, plan.record.group_tokens, plan.n_groups());
}

KvPlan Planner::Sized(const Row& row, uint32_t n_chosen, uint32_t n_cache_slots) const {
  return Sized(Shape(row), n_chosen, n_cache_slots);
}

KvPlan Planner::Sized(KvPlan plan, uint32_t n_chosen, uint32_t n_cache_slots) const {
  family_.SetCounts(draft_, n_chosen, n_cache_slots, plan);
  SetSpace(plan);
  family_.SizeParts(input_, plan);
  SizePrefill(input_, plan);
  return plan;
}

void Planner::SetSpace(KvPlan& plan) const {
  plan.rotates = draft_.options.rotate.value_or(plan.has_int4());
  plan.window.n_exact_groups = plan.window.n_exact_chosen = plan.window.n_exact_entries = 0;
  if (!plan.rotates) return;
  family_.SetExactGroups(plan);
  plan.window.n_exact_entries = std::min(draft_.options.sink_entries.value_or(kSinkEntries),
                                         plan.window.n_exact_groups * plan.record.group_tokens);
}

// As given; what is open as small as makes sense: one group beside the pinned ones, and no slots where there
// can be a pool.
KvPlan Planner::Smallest(const Row& row) const {
  if (family_.fills_window(draft_)) return WithWindow(row, LeastWindowGroups());
  const uint32_t least = family_.LeastChosen(draft_);
  const uint32_t n_chosen = draft_.n_chosen.value_or(std::max(draft_.n_cache_slots.value_or(0), least));
  return Sized(row, n_chosen, draft_.n_cache_slots.value_or(fills_slots() ? 0 : n_chosen));
}

// The smallest budget with which the row's types are tried, where the budget is to be filled.
uint64_t Planner::SuitableFrom(const Row& row) const {
  return static_cast<uint64_t>(
      std::ceil(row.share * kNearlyOne * static_cast<double>(draft_.plan.budget.full_bytes)));
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
  return FitMost(family_.LeastChosen(draft_), draft_.plan.n_choosable(),
                 [&](uint32_t n) { return Sized(row, n, fills_slots() ? 0 : n); });
}

// The largest selection, in groups, that is chosen where nobody says one.
uint32_t Planner::MostWorth() const {
  const KvModelShape& model = draft_.model;
  if (model.layer_products == 0) return draft_.plan.n_choosable();
  const double per_entry = 2.0 * model.n_heads * model.head_dim;
  const double share =
      static_cast<double>(draft_.plan.budget.bytes) / static_cast<double>(draft_.plan.budget.full_bytes);
  const double entries = std::max(kAttentionShare * static_cast<double>(model.layer_products) / per_entry,
                                  kShareOfBudget * share * draft_.plan.n_ctx);
  return SlotsOf(std::max(kSurelyPaying, static_cast<uint32_t>(std::min(entries, 1e9))));
}

// As many as fit, and as many slots; or as many as are worth their time. Slots beyond those, which only
// decoding has, take what is left: they hold what was chosen before, and less is read.
std::optional<KvPlan> Planner::FitSelection(const Row& row) const {
  std::optional<KvPlan> most = FitMostGroups(row);
  if (!most || !family_.selects_from_flash() || needs_equal_capacity() || !draft_.fills_budget() ||
      !draft_.has_budget() || most->static_share().by_prompt) {
    return most;
  }
  if (most->choice.n_chosen == most->n_choosable()) return most;
  const uint32_t fitting = most->n_total();
  const uint32_t n_total = std::min(fitting, MostWorth());
  const bool is_filled =
      static_cast<double>(most->decode_bytes()) >= kNearlyFilled * static_cast<double>(most->budget.bytes);
  if (n_total == fitting && is_filled) return most;
  const KvPlan least = Sized(row, n_total, n_total);
  std::optional<KvPlan> plan =
      FitMost(least.choice.n_chosen, draft_.plan.n_choosable(), [&](uint32_t n_slots) {
        return Sized(row, n_total,
                     n_slots == n_total ? n_slots + 1 : n_slots);  // as many as M would be C = M
      });
  if (!plan) return most;
  plan->choice.is_limited_by_attention = n_total < fitting;
  return plan;
}

// C = M where that fits; else, in the types that suit the budget, the largest C that fits beside the pool.
std::optional<KvPlan> Planner::FitMostSlots(const Row& row, uint32_t n_chosen) const {
  KvPlan all = Sized(row, n_chosen, n_chosen);
  if (Holds(all)) return all;
  if (draft_.plan.budget.bytes < SuitableFrom(row)) return std::nullopt;
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

uint32_t Planner::LeastWindowGroups() const {
  return CeilDiv(family_.LeastEntries(draft_), draft_.plan.record.group_tokens);
}

// The longest window that fits, in whole groups.
std::optional<KvPlan> Planner::FitLongestWindow(const Row& row) const {
  return FitMost(LeastWindowGroups(), draft_.plan.n_groups(),
                 [&](uint32_t n_groups) { return WithWindow(row, n_groups); });
}

KvPlan Planner::WithWindow(const Row& row, uint32_t n_groups) const {
  KvPlan plan = Shape(row);
  SetWindow(std::min(n_groups * plan.record.group_tokens, plan.n_ctx), plan);
  return Sized(std::move(plan), *draft_.n_chosen, *draft_.n_cache_slots);
}

std::optional<KvPlan> Planner::Fit(const Row& row) const {
  if (family_.fills_window(draft_)) return FitLongestWindow(row);
  if (may_read_more()) return FitAsRead(row);
  if (draft_.fills_budget()) {
    return family_.pools_small_selections() ? FitClusters(row) : FitSelection(row);
  }
  if (fills_slots()) return FitMostSlots(row, *draft_.n_chosen);
  KvPlan plan = Smallest(row);
  if (!Holds(plan)) return std::nullopt;
  return plan;
}

// Entries with which a row is taken, though one of fewer bits leaves room for more.
uint32_t Planner::EnoughFor(const Row& row) const {
  const bool is_wide = row.k_type != KvType::kInt4 && draft_.plan.method.has_adapters();
  return is_wide ? std::min(kEnoughForWideTypes, draft_.plan.n_ctx / 2) : family_.LeastEntries(draft_);
}

// The first row that leaves room for enough; or for everything, which costs less in 4 bits (KL 0.003) than a
// part in any.
std::optional<KvPlan> Planner::FitBestRow() const {
  std::optional<KvPlan> best;
  std::optional<KvPlan> enough;
  for (const Row& row : Rows()) {
    if (draft_.fills_budget() && draft_.plan.budget.bytes < SuitableFrom(row)) continue;
    const std::optional<KvPlan> plan = Fit(row);
    if (!plan) continue;
    const uint32_t entries = EntriesOf(*plan);
    if (!draft_.fills_budget() || plan->choice.n_chosen == plan->n_choosable()) return plan;
    if (entries >= EnoughFor(row) && !enough) enough = plan;
    if (!best || plan->choice.n_chosen > best->choice.n_chosen) best = plan;
  }
  return enough ? enough : best;
}

bool Planner::SelectsEnough(const KvPlan& plan) const {
  return plan.n_total() >= SlotsOf(kPaperEntries) || plan.choice.n_chosen == plan.n_choosable();
}

Status Planner::SettleSize(uint32_t size) {
  draft_.size = size;
  return family_.Settle(draft_);
}

// Of clusters and groups, the smallest that leave room for a usual selection; else those that leave most for
// it.
Result<std::optional<KvPlan>> Planner::FitBestSize() {
  std::optional<KvPlan> best;
  for (const uint32_t size : family_.Sizes(draft_)) {
    KVRUN_RETURN_IF_ERROR(SettleSize(size));
    std::optional<KvPlan> plan = FitBestRow();
    if (!plan) continue;
    const bool has_sizes = family_.Sizes(draft_).size() > 1;
    if (!draft_.fills_budget() || !has_sizes || SelectsEnough(*plan)) return plan;
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
         plan.window.n_entries >= other.window.n_entries &&
         KvElementBits(plan.index.type) >= KvElementBits(other.index.type);
}

// With a static set, where there is to be one and it leaves room: what observes prompts takes memory, too.
// One that nobody asked for must leave nearly as many entries, and has no use where all are selected.
Result<std::optional<KvPlan>> Planner::FitBest() {
  draft_.leaves_statics_out = false;
  KVRUN_ASSIGN_OR_RETURN(std::optional<KvPlan> best, FitBestSize());
  const StaticShare share = draft_.plan.static_share();
  if (share.by_prompt || share.share == 0.0) return best;
  const bool is_made = best && best->has_statics();
  if (is_made && !draft_.may_choose_statics()) return best;
  draft_.leaves_statics_out = true;
  KVRUN_ASSIGN_OR_RETURN(std::optional<KvPlan> without, FitBestSize());
  const bool is_needed =
      is_made && without && without->choice.n_chosen < without->n_choosable() && HasTypesOf(*best, *without);
  if (is_needed && EntriesOf(*best) >= kWorthItsStatics * EntriesOf(*without)) return best;
  return without;
}

Result<std::optional<KvPlan>> Planner::FitAndRead() {
  draft_.reads_per_layer = draft_.options.reads_per_layer.value_or(0.0);
  KVRUN_ASSIGN_OR_RETURN(std::optional<KvPlan> best, FitBest());
  if (!best || !ReadsTooMuch(*best)) return best;
  draft_.reads_per_layer = HiddenReads(*best);
  KVRUN_ASSIGN_OR_RETURN(std::optional<KvPlan> limited, FitBest());
  return limited ? limited : best;  // what tells scores takes more
}

Result<KvPlan> Planner::Plan() { return family_.has_file() ? Partial() : Full(); }

Result<KvPlan> Planner::Partial() {
  KVRUN_ASSIGN_OR_RETURN(std::optional<KvPlan> best, FitAndRead());
  if (!best) {
    // With room for a limit of reads, where there may be one. A share is raised to the same before it is
    // known what reading costs.
    const bool may_limit =
        reads_as_is_worth() && hide() > 0.0 && (limits_reading() || draft_.options.budget_fraction);
    if (may_limit && !draft_.options.reads_per_layer) draft_.reads_per_layer = 1.0;
    KVRUN_ASSIGN_OR_RETURN(const Least least, FindLeastSize());
    if (!draft_.options.budget_fraction) return TooLarge(least);
    const std::string advice = has_count() ? SelectLess() : "";
    const uint64_t asked_bytes = std::exchange(draft_.plan.budget.bytes, least.fillable_bytes);
    KVRUN_ASSIGN_OR_RETURN(best, FitAndRead());
    KVRUN_CHECK(best.has_value());
    best->budget.is_raised = true;
    // No reading is measured later that would take the rest.
    if (!family_.selects_from_flash())
      best->budget.bytes = std::max(best->prefill_bytes(), best->decode_bytes());
    best->notes.for_people.push_back(NoteOfRaise(asked_bytes, best->budget.bytes, advice));
  }
  if (draft_.options.reads_per_layer.value_or(0.0) > 0.0 && !best->limits_reads()) {
    return Status(
        StatusCode::kInvalidArgument,
        "--kv-reads limits what is read into own slots, and more is selected than has slots: select "
        "less (--kv-select), or leave it out");
  }
  if (draft_.adapts()) SetPace(*best);
  if (best->reading() != nullptr) best->notes.for_experts.push_back(NoteOfReading(*best));
  return *std::move(best);
}

// What is chosen takes memory in prefill, too: the least budget that decoding can fill, of at least so many
// bytes.
uint64_t Planner::FillableFrom(const Row& row, uint64_t least_bytes) const {
  uint32_t fits = family_.LeastChosen(draft_);
  uint32_t end = draft_.plan.n_choosable() + 1;
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
    if (draft_.fills_budget() || fills_slots()) bytes = std::max(bytes, SuitableFrom(row));
    if (bytes > least.bytes) continue;
    least = {bytes, draft_.fills_budget() ? FillableFrom(row, bytes) : bytes, smallest};
  }
  return least;
}

// Of all sizes; the one that it is of is settled.
Result<Planner::Least> Planner::FindLeastSize() {
  Least least;
  uint32_t of_size = 0;
  for (const uint32_t size : family_.Sizes(draft_)) {
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
