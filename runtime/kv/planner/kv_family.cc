#include "runtime/kv/planner/kv_family.h"

#include <fmt/format.h>

namespace kvrun {

std::vector<uint32_t> KvFamily::Sizes(const PlanDraft& /*draft*/) const { return {0}; }

std::string KvFamily::AdviseLess(const PlanDraft& draft, const KvPlan& most) const {
  const uint32_t entries =
      most.EntriesOfSlots(most.choice.n_chosen - most.choice.n_pinned) + most.n_statics();
  if (!draft.n_cache_slots) return fmt::format("select at most {} entries", entries);
  return fmt::format("select at most {} entries and reuse at most {} groups", entries,
                     most.slots.n_cache_slots);
}

const KvFamily& FamilyOf(const KvMethod& method) {
  switch (method.store) {
    case KvStoreKind::kResident: break;
    case KvStoreKind::kGroups: return GroupsFamily();
    case KvStoreKind::kClusters: return ClustersFamily();
    case KvStoreKind::kKept: return KeptFamily();
  }
  return ResidentFamily();
}

}  // namespace kvrun
