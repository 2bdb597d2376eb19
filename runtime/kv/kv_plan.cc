#include "runtime/kv/kv_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "platform/base/check.h"
#include "platform/base/units.h"
#include "runtime/kv/kv_method.h"
#include "runtime/kv/kv_plan_kept.h"
#include "runtime/kv/kv_plan_options.h"
#include "runtime/kv/kv_plan_reading.h"
#include "runtime/kv/kv_plan_statics.h"
#include "runtime/kv/kv_planner.h"

namespace kvrun {
namespace {

uint64_t NeededBytes(const KvPlan& plan) { return std::max(plan.prefill_bytes(), plan.decode_bytes()); }

KvOptions WithMethod(KvOptions options, const KvMethod& method) {
  options.method = method.name;
  return options;
}

// What is said, but for options that full does not have. `unused` has the names of those.
KvOptions OptionsOfFull(const KvOptions& given, std::string* unused) {
  KvOptions full = WithMethod(given, MethodWithoutBudget());
  const auto drop = [&](bool is_given, auto& option, std::string_view name) {
    if (is_given) *unused += fmt::format("{}{}", unused->empty() ? "" : ", ", name);
    option = {};
  };
  drop(given.group_tokens.has_value(), full.group_tokens, "group");
  drop(given.select_entries.has_value(), full.select_entries, "select");
  drop(given.hide.has_value(), full.hide, "hide");
  drop(given.reads_per_layer.has_value(), full.reads_per_layer, "reads");
  drop(given.adapt.has_value(), full.adapt, "adapt");
  drop(given.sample_entries.has_value(), full.sample_entries, "sample");
  drop(given.sample_seed.has_value(), full.sample_seed, "seed");
  drop(given.mass_share.has_value(), full.mass_share, "mass");
  if (!KeepsRecordsInMemory(given)) drop(given.window_entries.has_value(), full.window_entries, "window");
  drop(given.sink_entries.has_value(), full.sink_entries, "sinks");
  drop(given.reuse_groups.has_value(), full.reuse_groups, "reuse");
  drop(given.rank.has_value(), full.rank, "rank");
  drop(given.index_type.has_value(), full.index_type, "index");
  drop(given.heads.has_value(), full.heads, "heads");
  drop(!given.policy.empty(), full.policy, "policy");
  drop(given.cluster_entries.has_value(), full.cluster_entries, "cluster");
  drop(given.max_cluster_entries.has_value(), full.max_cluster_entries, "cluster-max");
  drop(given.cluster_room.has_value(), full.cluster_room, "cluster-room");
  drop(given.pending_entries.has_value(), full.pending_entries, "pending");
  drop(given.upkeep_clusters.has_value(), full.upkeep_clusters, "upkeep");
  drop(given.split_factor.has_value(), full.split_factor, "split");
  drop(given.cluster_update.has_value(), full.cluster_update, "update");
  drop(given.cluster_layout.has_value(), full.cluster_layout, "layout");
  drop(given.kept_shares.has_value(), full.kept_shares, "shares");
  drop(given.kept_precisions.has_value(), full.kept_precisions, "precisions");
  drop(given.attention_moments.has_value(), full.attention_moments, "moments");
  drop(given.static_share.has_value(), full.static_share, "static");
  drop(given.static_steps.has_value(), full.static_steps, "static-steps");
  drop(given.static_repage.has_value(), full.static_repage, "repage");
  drop(given.rotate.has_value() && !KeepsRecordsInMemory(full), full.rotate, "rotate");
  drop(given.rows_on_flash.has_value(), full.rows_on_flash, "representatives");
  drop(given.adapter_from_file, full.adapter_from_file, "adapter");
  drop(given.adapter_kind.has_value(), full.adapter_kind, "adapter-kind");
  return full;
}

// Where a budget is given, and no method.
class MethodChoice {
 public:
  MethodChoice(const KvOptions& options, const KvModelShape& model, uint32_t n_ctx, uint32_t n_sequences)
      : options_(options),
        model_(model),
        full_options_(OptionsOfFull(options, &unused_)),
        resident_(Planner(full_options_, model, n_ctx, n_sequences, 1).AllInMemory()) {}

  bool HoldsAll() const { return NeededBytes(resident_) <= resident_.budget_bytes; }

  Result<KvPlan> Plan(uint32_t io_alignment_bytes) const {
    if (HoldsAll()) return Resident();
    const KvOptions on_flash = WithMethod(options_, MethodOfBudget());
    Result<KvPlan> plan = PlanOnFlash(on_flash, io_alignment_bytes);
    if (plan.ok()) return plan->raises_budget && !IsLess(*plan) ? Resident() : plan;
    if (plan.status().code() != StatusCode::kOutOfMemory) return plan;
    // As a share it would be raised to the least that kvswap takes.
    KvOptions share = on_flash;
    share.budget_bytes.reset();
    share.budget_fraction =
        static_cast<double>(resident_.budget_bytes) / static_cast<double>(resident_.full_bytes);
    const Result<KvPlan> least = PlanOnFlash(share, io_alignment_bytes);
    return !least.ok() || IsLess(*least) ? plan : Refuse();
  }

 private:
  Result<KvPlan> PlanOnFlash(const KvOptions& options, uint32_t io_alignment_bytes) const {
    return Planner(options, model_, resident_.n_ctx, resident_.n_sequences, io_alignment_bytes).Partial();
  }
  bool IsLess(const KvPlan& plan) const { return plan.budget_bytes < NeededBytes(resident_); }

  KvPlan Resident() const {
    KvPlan plan = resident_;
    const uint64_t needed = NeededBytes(plan);
    std::string note;
    if (HoldsAll()) {
      note = fmt::format("the KV budget of {} (--kv-budget) holds all KV of {}, which takes {}",
                         BytesText(plan.budget_bytes), ContextText(plan), BytesText(needed));
    } else {
      note = fmt::format(
          "the KV budget (--kv-budget) is a share of {}, which is too small for {}: it is raised to {}, the "
          "least that works, which holds all their KV",
          BytesText(plan.budget_bytes), ContextText(plan), BytesText(needed));
      plan.raises_budget = true;
      plan.budget_bytes = needed;
    }
    note += ": the KV stays in memory (method full)";
    if (!unused_.empty()) note += fmt::format(", which has no use for the KV options {}", unused_);
    plan.notes.push_back(note);
    return plan;
  }

  Status Refuse() const {
    return {
        StatusCode::kOutOfMemory,
        fmt::format("the KV budget of {} is too small: all KV of {} needs {}, and the method kvswap needs no "
                    "less for so few tokens; raise the budget to that (--kv-budget), or shorten the context",
                    BytesText(resident_.budget_bytes), ContextText(resident_),
                    BytesText(NeededBytes(resident_)))};
  }

  const KvOptions& options_;
  const KvModelShape& model_;
  std::string unused_;
  KvOptions full_options_;
  KvPlan resident_;
};

bool HasBudget(const KvOptions& options) { return options.budget_bytes || options.budget_fraction; }

const KvMethod& DefaultMethod(const KvOptions& options) {
  return HasBudget(options) ? MethodOfBudget() : MethodWithoutBudget();
}

// What is refused whatever the method turns out to be.
Status CheckInput(const KvOptions& options, const KvModelShape& model, uint32_t n_ctx, uint32_t n_sequences) {
  if (!options.method.empty()) KVRUN_RETURN_IF_ERROR(FindKvMethod(options.method).status());
  KVRUN_RETURN_IF_ERROR(CheckSizes(model, n_ctx, n_sequences));
  if (!options.method.empty()) return CheckKvOptions(options, model);
  return CheckKvOptions(WithMethod(options, DefaultMethod(options)), model);
}

uint64_t Sum(const std::vector<KvPart>& parts, bool KvPart::*counts) {
  uint64_t bytes = 0;
  for (const KvPart& part : parts) bytes += part.*counts ? part.bytes : 0;
  return bytes;
}

}  // namespace

uint64_t KvPlan::prefill_bytes() const { return Sum(parts, &KvPart::in_prefill); }

uint64_t KvPlan::decode_bytes() const { return Sum(parts, &KvPart::in_decode); }

uint32_t KvPlan::n_choosable() const {
  if (!method.has_clusters()) return n_groups();
  // Each cluster leaves one record unfilled at most.
  const uint64_t slot_tokens = slot_record.group_tokens;
  return static_cast<uint32_t>((n_ctx + clusters.n_clusters * (slot_tokens - 1)) / slot_tokens);
}

uint32_t KvPlan::EntriesOfSlots(uint32_t n_slots) const {
  const uint64_t most = uint64_t{n_slots} * slot_record.group_tokens;
  if (!method.has_clusters()) return static_cast<uint32_t>(std::min<uint64_t>(most, n_ctx));
  if (n_slots == n_choosable()) return n_ctx;
  const double filled = 1.0 / (1.0 + (slot_record.group_tokens - 1) / (2.0 * clusters.mean_entries));
  return static_cast<uint32_t>(
      std::min(static_cast<double>(most) * filled + 0.5, static_cast<double>(n_ctx)));
}

uint32_t KvPlan::least_chosen() const {
  if (layer_extra.empty()) return n_chosen;
  return n_chosen + static_cast<uint32_t>(*std::min_element(layer_extra.begin(), layer_extra.end()));
}

uint32_t KvPlan::most_chosen() const {
  if (layer_extra.empty()) return n_chosen;
  return n_chosen + static_cast<uint32_t>(*std::max_element(layer_extra.begin(), layer_extra.end()));
}

uint32_t KvPlan::selected_entries() const {
  if (method.has_clusters()) return EntriesOfSlots(n_chosen);
  return (n_chosen - n_pinned) * record.group_tokens + statics.n_entries;
}

std::vector<std::string> KvPlan::AllNotes() const {
  std::vector<std::string> all = notes;
  all.insert(all.end(), details.begin(), details.end());
  return all;
}

std::string KvPlan::Describe() const {
  const std::string budget = budget_bytes == UINT64_MAX ? "no budget" : "budget " + FormatBytes(budget_bytes);
  const double part = 100.0 * static_cast<double>(decode_bytes()) / static_cast<double>(full_bytes);
  std::string text = fmt::format("{}: {} in decoding ({:.1f} % of f16), {} in prefill, {}; K {}, V {}",
                                 method.name, FormatBytes(decode_bytes()), part, FormatBytes(prefill_bytes()),
                                 budget, KvTypeName(record.k_type), KvTypeName(record.v_type));
  if (rotates) text += ", rotated";
  if (method.evicts()) return text + DescribeKept(*this);
  if (!method.is_on_flash()) return text;
  const auto entries = [this](uint32_t n_some) { return EntriesOfSlots(n_some); };
  text += n_chosen == n_choosable() ? fmt::format("; all {} entries", n_ctx)
                                    : fmt::format("; {} of {} entries", entries(n_chosen), n_ctx);
  if (!layer_extra.empty()) {
    text += fmt::format(" on average, {} to {} by layer", entries(least_chosen()), entries(most_chosen()));
  }
  if (reuse_limits_selection) {
    text += fmt::format(" (no more, as the reuse buffer was given {} groups)", n_cache_slots);
  }
  if (n_usual > 0) text += fmt::format(" at most, {} at first", entries(n_usual));
  if (reading) text += DescribeReading(*this);
  if (!reading && is_limited_by_attention) text += " (as many as are worth the time that attention takes)";
  if (limits_reads() && !reading)
    text += fmt::format(" (a layer reads {:.3g} groups a token)", reads_per_layer);
  if (method.has_clusters()) {
    text += fmt::format(
        " in clusters of {} on average, {} at most ({} sinks, up to {} pending), and a window of {}",
        clusters.mean_entries, clusters.max_entries, clusters.n_sinks, clusters.max_pending, window_entries);
  } else {
    text += fmt::format(" in groups of {} ({} pinned)", record.group_tokens, entries(n_pinned));
    if (has_statics()) text += DescribeStatics(*this);
    if (n_sampled > 0) text += fmt::format(", {} more drawn at random", entries(n_sampled));
    text += fmt::format(" and a window of {}", window_entries);
  }
  if (method.selects()) {
    const std::string cached =
        n_cache_slots == n_choosable() ? "all" : fmt::format("{}", entries(n_cache_slots));
    text += fmt::format(", {} in the cache ({})", cached, policy);
    if (n_pool_slots > 0) {
      text += fmt::format(", a pool of {} x {} for the rest", pool_parts(), entries(n_pool_slots));
    }
  }
  if (method.has_index()) {
    text += fmt::format("; index {} x {}", index.rank, KvTypeName(index.type));
    if (clusters.rows_on_flash) text += " on flash";
    if (method.has_adapters()) text += fmt::format(", {}", AdapterKindName(adapter_kind));
    text += fmt::format(", heads {}", HeadReductionName(heads));
    if (mass_share > 0.0F) text += fmt::format(", to a mass of {}", mass_share);
  }
  return text + fmt::format("; prefill in tiles of {}{}", prefill_tile_tokens,
                            spills_hidden ? ", hidden states on flash" : "");
}

bool IsSurelyResident(const KvOptions& options, const KvModelShape& model, uint32_t n_ctx,
                      uint32_t n_sequences) {
  if (!CheckInput(options, model, n_ctx, n_sequences).ok()) return false;
  if (!options.method.empty()) return !FindKvMethod(options.method)->needs_file();
  if (!HasBudget(options)) return true;
  return MethodChoice(options, model, n_ctx, n_sequences).HoldsAll();
}

Result<KvPlan> PlanKv(const KvOptions& options, const KvModelShape& model, uint32_t n_ctx,
                      uint32_t n_sequences, uint32_t io_alignment_bytes) {
  KVRUN_CHECK(std::has_single_bit(io_alignment_bytes));
  KVRUN_RETURN_IF_ERROR(CheckInput(options, model, n_ctx, n_sequences));
  if (options.method.empty() && HasBudget(options)) {
    return MethodChoice(options, model, n_ctx, n_sequences).Plan(io_alignment_bytes);
  }
  const KvMethod method = options.method.empty() ? MethodWithoutBudget() : *FindKvMethod(options.method);
  const KvOptions named = WithMethod(options, method);
  Planner planner(named, model, n_ctx, n_sequences, io_alignment_bytes);
  return method.needs_file() ? planner.Partial() : planner.Full();
}

}  // namespace kvrun
