#include "runtime/kv/planner/kv_plan_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "platform/base/check.h"
#include "platform/base/units.h"
#include "runtime/kv/math/slot_cache.h"
#include "runtime/kv/plan/kv_names.h"
#include "runtime/kv/planner/kv_family.h"
#include "runtime/kv/planner/kv_option_table.h"
#include "shaders/shared/sample_params.h"
#include "shaders/shared/step_params.h"

namespace kvrun {
namespace {

constexpr uint32_t kMaxContext = 1U << 30;
constexpr uint32_t kMostSequences = 1U << 12;
constexpr uint32_t kMaxLayers = 1U << 16;
constexpr uint32_t kMaxHeads = 1U << 16;
constexpr uint32_t kMaxKeyDim = 1U << 17;
constexpr uint32_t kMaxGroupTokens = 256;
constexpr uint32_t kMaxClusterEntries = 1024;

Status Invalid(std::string message) { return {StatusCode::kInvalidArgument, std::move(message)}; }

Status NotFor(const KvOptions& options, std::string_view option, std::string_view what) {
  return Invalid(fmt::format("--kv-{} does not go with the KV method {}, which has no {}: leave it out",
                             option, options.method, what));
}

// What a method does not have is refused, so that no setting is without effect.
Status CheckMethodHasOptions(const KvOptions& options) {
  KVRUN_ASSIGN_OR_RETURN(const KvMethod method, FindKvMethod(options.method));
  for (const KvOptionRow& row : KvOptionRows()) {
    if (row.field.is_given == nullptr || !row.field.is_given(options)) continue;
    const std::string_view what = row.field.WhatLacks(method, options);
    if (!what.empty()) return NotFor(options, row.name, what);
  }
  return FamilyOf(method).CheckOptions(options);
}

Status CheckClusterOptions(const KvOptions& options) {
  const auto is_within = [](std::optional<uint32_t> value, uint32_t least) {
    return !value || (*value >= least && *value <= kMaxClusterEntries);
  };
  if (!is_within(options.cluster_entries, 1)) {
    return Invalid(fmt::format("clusters of {} entries on average were asked for; they can have 1 to {}",
                               *options.cluster_entries, kMaxClusterEntries));
  }
  if (!is_within(options.max_cluster_entries, 2)) {
    return Invalid(fmt::format("clusters of at most {} entries were asked for; that can be 2 to {}",
                               *options.max_cluster_entries, kMaxClusterEntries));
  }
  if (!is_within(options.pending_entries, 1)) {
    return Invalid(fmt::format("{} entries were to wait for their cluster; that can be 1 to {}",
                               *options.pending_entries, kMaxClusterEntries));
  }
  if (options.cluster_update == ClusterUpdate::kLocal && options.pending_entries &&
      options.max_cluster_entries && *options.pending_entries > *options.max_cluster_entries) {
    return Invalid(
        fmt::format("with --kv-update local {} pending entries become one cluster before it is divided, and "
                    "a cluster was to have {} at most: raise --kv-cluster-max, or lower --kv-pending",
                    *options.pending_entries, *options.max_cluster_entries));
  }
  if (options.split_factor && !(*options.split_factor > 0.0 && std::isfinite(*options.split_factor))) {
    return Invalid(
        fmt::format("clusters were to be divided at {} times the first ones' variance; that is a "
                    "number above 0",
                    *options.split_factor));
  }
  return Status::Ok();
}

Status CheckReads(const KvOptions& options, const KvPlan& plan) {
  if (options.reads_per_layer.value_or(0.0) == 0.0) return Status::Ok();
  const std::string_view other = options.sample_entries.value_or(0) > 0 ? "sample"
                                 : options.adapt.value_or(false)        ? "adapt"
                                                                        : "";
  if (!other.empty()) {
    return Invalid(
        fmt::format("--kv-reads says how much is read, and so does --kv-{}: leave one of them out", other));
  }
  if (plan.choice.heads != HeadReduction::kSum) return Status::Ok();
  return Invalid(
      "--kv-reads goes by what share of the attention a group has, which --kv-heads sum does not tell: take "
      "softmax, gqa or per-kv-head");
}

// What says how much is selected, and what is drawn besides.
Status CheckReading(const KvOptions& options, const KvPlan& plan) {
  if (options.hide && (options.select_entries || options.reuse_groups)) {
    return Invalid(
        fmt::format("--kv-hide chooses how much is selected, and --kv-{} says it: leave one of them out",
                    options.select_entries ? "select" : "reuse"));
  }
  if (options.hide && plan.budget.bytes == UINT64_MAX) {
    return Invalid("--kv-hide chooses how much is selected within a budget: give one (--kv-budget)");
  }
  KVRUN_RETURN_IF_ERROR(CheckReads(options, plan));
  if (options.sample_entries.value_or(0) == 0) return Status::Ok();
  if (*options.sample_entries / plan.record.group_tokens > KVRUN_MAX_SAMPLED) {
    return Invalid(fmt::format("a sample of {} entries in groups of {} was asked for; it can have {} groups",
                               *options.sample_entries, plan.record.group_tokens, KVRUN_MAX_SAMPLED));
  }
  if (const StaticShare share = plan.static_share(); share.share > 0.0 || share.by_prompt) {
    return Invalid("--kv-sample does not go with a static set: leave --kv-static out");
  }
  if (!(*FindReplacementPolicy(plan.slots.policy))->needs_equal_capacity) return Status::Ok();
  return Invalid(fmt::format("--kv-sample does not go with the replacement policy {}, which has no pool",
                             plan.slots.policy));
}

}  // namespace

std::string BytesText(uint64_t bytes) {
  if (bytes < kKiB) return FormatBytes(bytes);
  return fmt::format("{} ({} bytes)", FormatBytes(bytes), bytes);
}

Status CheckSizes(const KvModelShape& model, uint32_t n_ctx, uint32_t n_sequences) {
  KVRUN_CHECK(model.n_layers > 0 && model.head_dim > 0 && model.n_embd > 0 && model.n_kv_heads > 0);
  KVRUN_CHECK(model.n_heads >= model.n_kv_heads && model.n_heads % model.n_kv_heads == 0);
  if (n_ctx == 0 || n_ctx > kMaxContext) {
    return Invalid(
        fmt::format("a context of {} tokens was asked for; it can have 1 to {}", n_ctx, kMaxContext));
  }
  if (n_sequences == 0 || n_sequences > kMostSequences) {
    return Invalid(
        fmt::format("{} sequences were asked for; there can be 1 to {}", n_sequences, kMostSequences));
  }
  const uint64_t key_dim = uint64_t{model.n_kv_heads} * model.head_dim;
  // Above all parts together: an entry's records and index (f32 K and V, f16 index of full rank), tile,
  // scores, tables for each head, hidden states.
  const double entry_bytes = 32.0 * static_cast<double>(key_dim) + 128.0 * model.n_kv_heads +
                             8.0 * model.n_heads + 4.0 * model.n_embd;
  const double bytes = entry_bytes * model.n_layers * n_sequences * (double{kMaxGroupTokens} + n_ctx);
  if (model.n_layers > kMaxLayers || model.n_heads > kMaxHeads || key_dim > kMaxKeyDim || bytes > 0x1p60) {
    return Invalid(fmt::format(
        "the KV of {} tokens in {} of a model with {} layers and {} KV heads of {} elements is more than "
        "kvrun can plan for: shorten the context",
        n_ctx, Counted(n_sequences, "sequence"), model.n_layers, model.n_kv_heads, model.head_dim));
  }
  return Status::Ok();
}

Status CheckKvOptions(const KvOptions& options, const KvModelShape& model) {
  if (options.budget_bytes && options.budget_fraction) {
    return Invalid("the KV budget was given twice, in bytes and as a share: give one of them");
  }
  if (options.budget_fraction && !(std::isfinite(*options.budget_fraction) && *options.budget_fraction > 0)) {
    return Invalid(fmt::format("a KV budget of {} times the f16 KV was asked for; the share must be above 0",
                               *options.budget_fraction));
  }
  KVRUN_RETURN_IF_ERROR(CheckMethodHasOptions(options));
  if (options.group_tokens && (*options.group_tokens == 0 || *options.group_tokens > kMaxGroupTokens)) {
    return Invalid(fmt::format("groups of {} entries were asked for; they can have 1 to {}",
                               *options.group_tokens, kMaxGroupTokens));
  }
  if (options.mass_share && !(*options.mass_share > 0.0 && *options.mass_share <= 1.0)) {
    return Invalid(
        fmt::format("a mass of {} was asked for; it is a share above 0 and at most 1", *options.mass_share));
  }
  KVRUN_RETURN_IF_ERROR(CheckClusterOptions(options));
  const uint32_t key_dim = model.n_kv_heads * model.head_dim;
  if (options.rank && (*options.rank == 0 || *options.rank > key_dim)) {
    return Invalid(fmt::format("an index of rank {} was asked for; this model's keys have ranks from 1 to {}",
                               *options.rank, key_dim));
  }
  if (options.rank && options.adapter_kind && IsOfHeads(*options.adapter_kind) &&
      *options.rank % model.n_kv_heads != 0) {
    return Invalid(fmt::format(
        "an index of rank {} was asked for; with adapter-kind {} each of this model's {} KV "
        "heads has as many columns: ask for a multiple of {}",
        *options.rank, AdapterKindName(*options.adapter_kind), model.n_kv_heads, model.n_kv_heads));
  }
  if (options.index_type && *options.index_type != KvType::kF16 && *options.index_type != KvType::kInt8 &&
      *options.index_type != KvType::kInt4) {
    return Invalid(fmt::format("an index of type {} was asked for; it can be f16, int8 or int4",
                               KvTypeName(*options.index_type)));
  }
  if (options.policy.empty()) return Status::Ok();
  return FindReplacementPolicy(options.policy).status();
}

Status CheckChoice(const KvOptions& options, const KvPlan& plan, std::optional<uint32_t> n_chosen) {
  if (plan.choice.group_score == GroupScore::kMass && plan.choice.heads == HeadReduction::kSum) {
    return Invalid(fmt::format(
        "{} goes by the mass of groups, a softmax of their scores, which --kv-heads sum does not make: take "
        "softmax, gqa or per-kv-head",
        options.mass_share       ? "--kv-mass"
        : options.sample_entries ? "--kv-sample"
                                 : fmt::format("the KV method {}", plan.method.name)));
  }
  const uint32_t group = plan.slots.record.group_tokens;
  if (n_chosen && *n_chosen == 0) {
    return Invalid(
        fmt::format("nothing would be selected: {} entries are less than a group of {}, and no sinks "
                    "are pinned",
                    options.select_entries.value_or(0), group));
  }
  return Status::Ok();
}

Status CheckCounts(const KvOptions& options, const KvPlan& plan, std::optional<uint32_t> n_chosen,
                   std::optional<uint32_t> n_cache_slots) {
  KVRUN_RETURN_IF_ERROR(CheckReading(options, plan));
  if (!n_cache_slots) return Status::Ok();
  const ReplacementPolicy* policy = *FindReplacementPolicy(plan.slots.policy);
  const uint32_t least = std::min(plan.choice.n_pinned + 1, plan.n_choosable());
  const uint32_t n_total = n_chosen.value_or(std::max(*n_cache_slots, least));
  const uint32_t selected = FamilyOf(plan.method).ChosenOf(plan, n_total);
  if (policy->needs_equal_capacity && *n_cache_slots != selected) {
    return Invalid(
        fmt::format("the replacement policy {} needs as many slots as groups are selected, {}, not {}: leave "
                    "--kv-reuse out",
                    plan.slots.policy, selected, *n_cache_slots));
  }
  return Status::Ok();
}

uint64_t KvBudgetBytes(const KvOptions& options, uint64_t full_bytes) {
  if (options.budget_bytes) return *options.budget_bytes;
  if (!options.budget_fraction) return UINT64_MAX;
  const double bytes = *options.budget_fraction * static_cast<double>(full_bytes);
  return bytes < 0x1p63 ? static_cast<uint64_t>(bytes) : UINT64_MAX;
}

}  // namespace kvrun
