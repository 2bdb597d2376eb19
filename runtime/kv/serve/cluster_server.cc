#include "runtime/kv/serve/cluster_server.h"

#include <algorithm>

#include "runtime/kv/math/cluster_records.h"

namespace kvrun {

ReadingServer::Wanted ClusterServer::RecordsOf(const StreamStep& step, std::span<const uint32_t> chosen,
                                               const GroupSample& /*sample*/) {
  const std::span<const uint32_t> records = extents_.Records(step, chosen);
  return {.records = records, .weights = extents_.Weights(step)};
}

void ClusterServer::AddPositionsOf(const StreamStep& step, std::vector<uint32_t>* positions) {
  const SlotCache::PlanResult& plan = planned(step.row, step.head);
  const auto add = [&](uint32_t record, const std::byte* at) {
    const std::span<const std::byte> bytes(at, plan_.slots.record.size_bytes());
    for (uint32_t i = 0; i < extents_.n_entries(step, record); ++i) {
      positions->push_back(PositionOf(plan_.slots.record, bytes, i));
    }
  };
  for (const uint32_t slot : plan.slots) {
    add(slots_.cache(step.layer, step.stream)->extent(slot),
        slots_.own(step.layer)->Record(step.stream, slot));
  }
  for (uint32_t i = 0; i < plan.rest.size(); ++i) {
    add(plan.rest[i], slots_.pool(step.layer)->Record(step.stream, i));
  }
}

bool ClusterServer::IsRecord(const StreamStep& step, uint32_t record) {
  const uint32_t cluster = record / plan_.records_per_extent();
  if (cluster >= extents_.n_extents(step) || plan_.records_per_extent() > plan_.choice.n_chosen) return false;
  const std::span<const uint32_t> records = extents_.Records(step, {&cluster, 1});
  return std::find(records.begin(), records.end(), record) != records.end();
}

}  // namespace kvrun
