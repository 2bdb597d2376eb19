#include "runtime/kv/plan/clusters_plan.h"

#include <algorithm>

#include "runtime/kv/plan/kv_plan.h"

namespace kvrun {

ClusterMapShape ClustersPlan::map_shape(const KvPlan& plan) const {
  return {.dim = plan.record.head_dim,
          .max_clusters = n_clusters,
          .max_entries = max_entries,
          .max_pending = max_pending,
          .update = update};
}

uint32_t ClustersPlan::records_per_extent(const KvPlan& plan) const {
  const uint32_t slot_tokens = plan.slots.record.group_tokens;
  return (max_entries + slot_tokens - 1) / slot_tokens;
}

uint32_t ClustersPlan::n_choosable(const KvPlan& plan) const {
  // Each cluster leaves one record unfilled at most.
  const uint64_t slot_tokens = plan.slots.record.group_tokens;
  return static_cast<uint32_t>((plan.n_ctx + n_clusters * (slot_tokens - 1)) / slot_tokens);
}

uint32_t ClustersPlan::EntriesOfSlots(const KvPlan& plan, uint32_t n_slots) const {
  if (n_slots == n_choosable(plan)) return plan.n_ctx;
  const uint32_t slot_tokens = plan.slots.record.group_tokens;
  const double filled = 1.0 / (1.0 + (slot_tokens - 1) / (2.0 * mean_entries));
  const uint64_t most = uint64_t{n_slots} * slot_tokens;
  return static_cast<uint32_t>(
      std::min(static_cast<double>(most) * filled + 0.5, static_cast<double>(plan.n_ctx)));
}

uint32_t ClustersPlan::selected_entries(const KvPlan& plan) const {
  return EntriesOfSlots(plan, plan.choice.n_chosen);
}

}  // namespace kvrun
