#include "runtime/kv/planner/describe_plan.h"

#include <fmt/format.h>

#include "platform/base/units.h"
#include "runtime/kv/planner/kv_plan_kept.h"
#include "runtime/kv/planner/kv_plan_reading.h"
#include "runtime/kv/planner/kv_plan_statics.h"

namespace kvrun {

std::string DescribePlan(const KvPlan& plan) {
  const std::string budget =
      plan.budget_bytes == UINT64_MAX ? "no budget" : "budget " + FormatBytes(plan.budget_bytes);
  const double part = 100.0 * static_cast<double>(plan.decode_bytes()) / static_cast<double>(plan.full_bytes);
  std::string text =
      fmt::format("{}: {} in decoding ({:.1f} % of f16), {} in prefill, {}; K {}, V {}", plan.method.name,
                  FormatBytes(plan.decode_bytes()), part, FormatBytes(plan.prefill_bytes()), budget,
                  KvTypeName(plan.record.k_type), KvTypeName(plan.record.v_type));
  if (plan.rotates) text += ", rotated";
  if (plan.method.evicts()) return text + DescribeKept(plan);
  if (!plan.method.is_on_flash()) return text;
  const auto entries = [&plan](uint32_t n_some) { return plan.EntriesOfSlots(n_some); };
  text += plan.n_chosen == plan.n_choosable()
              ? fmt::format("; all {} entries", plan.n_ctx)
              : fmt::format("; {} of {} entries", entries(plan.n_chosen), plan.n_ctx);
  if (!plan.layer_extra.empty()) {
    text += fmt::format(" on average, {} to {} by layer", entries(plan.least_chosen()),
                        entries(plan.most_chosen()));
  }
  if (plan.reuse_limits_selection) {
    text += fmt::format(" (no more, as the reuse buffer was given {} groups)", plan.n_cache_slots);
  }
  if (plan.n_usual > 0) text += fmt::format(" at most, {} at first", entries(plan.n_usual));
  if (plan.reading) text += DescribeReading(plan);
  if (!plan.reading && plan.is_limited_by_attention)
    text += " (as many as are worth the time that attention takes)";
  if (plan.limits_reads() && !plan.reading)
    text += fmt::format(" (a layer reads {:.3g} groups a token)", plan.reads_per_layer);
  if (plan.method.has_clusters()) {
    text += fmt::format(
        " in clusters of {} on average, {} at most ({} sinks, up to {} pending), and a window of {}",
        plan.clusters.mean_entries, plan.clusters.max_entries, plan.clusters.n_sinks,
        plan.clusters.max_pending, plan.window_entries);
  } else {
    text += fmt::format(" in groups of {} ({} pinned)", plan.record.group_tokens, entries(plan.n_pinned));
    if (plan.has_statics()) text += DescribeStatics(plan);
    if (plan.n_sampled > 0) text += fmt::format(", {} more drawn at random", entries(plan.n_sampled));
    text += fmt::format(" and a window of {}", plan.window_entries);
  }
  if (plan.method.selects()) {
    const std::string cached =
        plan.n_cache_slots == plan.n_choosable() ? "all" : fmt::format("{}", entries(plan.n_cache_slots));
    text += fmt::format(", {} in the cache ({})", cached, plan.policy);
    if (plan.n_pool_slots > 0) {
      text += fmt::format(", a pool of {} x {} for the rest", plan.pool_parts(), entries(plan.n_pool_slots));
    }
  }
  if (plan.method.has_index()) {
    text += fmt::format("; index {} x {}", plan.index.rank, KvTypeName(plan.index.type));
    if (plan.clusters.rows_on_flash) text += " on flash";
    if (plan.method.has_adapters()) text += fmt::format(", {}", AdapterKindName(plan.adapter_kind));
    text += fmt::format(", heads {}", HeadReductionName(plan.heads));
    if (plan.mass_share > 0.0F) text += fmt::format(", to a mass of {}", plan.mass_share);
  }
  return text + fmt::format("; prefill in tiles of {}{}", plan.prefill_tile_tokens,
                            plan.spills_hidden ? ", hidden states on flash" : "");
}

}  // namespace kvrun
