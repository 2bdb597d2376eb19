#include "runtime/kv/planner/kv_plan_reading.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/kv/plan/kv_names.h"

namespace kvrun {

std::string DescribeReading(const KvPlan& plan) {
  const ReadingPlan& reading = *plan.reading();
  if (plan.choice.n_chosen == plan.n_choosable()) return "";
  const std::string_view worth = "as many as are worth the time that attention takes";
  if (plan.limits_reads()) {
    return fmt::format(
        " ({}; of those without a slot a layer reads {:.3g} groups a token, in {:.2f} ms; a layer takes "
        "{:.2f} "
        "ms)",
        plan.choice.is_limited_by_attention ? worth : "as many as have slots", plan.slots.reads_per_layer,
        reading.read_us / 1e3, reading.layer_us / 1e3);
  }
  if (plan.choice.is_limited_by_attention) return fmt::format(" ({})", worth);
  if (!reading.is_limited_by_time) return " (as many as the budget has room for)";
  return fmt::format(
      " (as many as flash has time for: {:.0f} reads take {:.2f} ms, of which {:.2g} are to be hidden, and a "
      "layer takes {:.2f} ms{})",
      reading.reads, reading.read_us / 1e3, reading.hide, reading.layer_us / 1e3,
      reading.layer_share < 1.0
          ? fmt::format(", {:.2g} of which they may take, as they take time from the same cores",
                        reading.layer_share)
          : "");
}

std::string SameAgain(const KvPlan& plan) {
  const std::string statics =
      plan.has_statics() ? fmt::format(" --kv-static {}", plan.static_share().share) : "";
  return fmt::format(
             "--kv-group {} --kv-type {},{} --kv-rank {} --kv-index {} --kv-window {} --kv-select {} "
             "--kv-reuse {}",
             plan.record.group_tokens, KvTypeName(plan.record.k_type), KvTypeName(plan.record.v_type),
             plan.index.rank, KvTypeName(plan.index.type), plan.window.n_entries, plan.selected_entries(),
             plan.slots.n_cache_slots) +
         statics + (plan.limits_reads() ? fmt::format(" --kv-reads {}", plan.slots.reads_per_layer) : "");
}

std::string NoteOfReading(const KvPlan& plan) {
  if (plan.choice.n_usual > 0) {
    return fmt::format(
        "a token attends to {} of {} entries at first{}, and as reads allow from then on: {} to {}",
        plan.EntriesOfSlots(plan.choice.n_usual - plan.choice.n_pinned), plan.n_ctx, DescribeReading(plan),
        plan.EntriesOfSlots(plan.n_least() - plan.choice.n_pinned), plan.selected_entries());
  }
  return fmt::format("a token attends to {} of {} entries{}; as options, for the same on any machine: {}",
                     plan.selected_entries(), plan.n_ctx, DescribeReading(plan), SameAgain(plan));
}

}  // namespace kvrun
