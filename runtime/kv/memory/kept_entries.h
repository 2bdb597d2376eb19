// *Kept* entries lie in memory one by one, and are always attended to: a source of attention beside slots and
// window. dynakv keeps the first entries of a text here, and those that have left the window while their
// cluster is on flash. A record of one entry each, in the types of what is stored.
//
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "platform/base/status.h"
#include "runtime/device/device.h"
#include "runtime/kv/plan/kv_plan.h"
#include "runtime/store/state_visitor.h"

namespace kvrun {

class KeptEntries {
 public:
  // Empty. The plan must outlive it.
  explicit KeptEntries(const KvPlan& plan) : plan_(&plan) {}
  static Result<KeptEntries> Create(Device& device, const KvPlan& plan, uint32_t n_layers);
  // Of a layer: ClustersPlan::n_kept places for each stream.
  static SlotShape ShapeOf(const KvPlan& plan);

  SlotSource source(uint32_t layer) const {
    return {layers_[layer].records.get(), ShapeOf(*plan_), layers_[layer].table.get()};
  }
  // An entry's record, KvPlan::record.
  std::span<std::byte> Record(uint32_t layer, uint32_t stream, uint32_t place) const;
  // Writes it, and the device sees it.
  Status Put(uint32_t layer, uint32_t stream, uint32_t place, std::span<const std::byte> record) const;
  // What was written of a record reaches the device.
  Status Flush(uint32_t layer, uint32_t stream, uint32_t place) const;
  // The stream attends to these places.
  Status Name(uint32_t layer, uint32_t stream, std::span<const uint32_t> places) const;
  // Records of the stream's first n_sinks places, and of these. The places are what they were.
  Status VisitState(StateVisitor& visitor, uint32_t layer, uint32_t stream, uint32_t n_sinks,
                    std::span<const uint32_t> places) const;

 private:
  struct Layer {
    std::unique_ptr<Buffer> records;  // kShared, [n_streams, n_kept]
    std::unique_ptr<Buffer> table;    // kShared
  };

  uint64_t Offset(uint32_t stream, uint32_t place) const {
    return (uint64_t{stream} * plan_->of_clusters().n_kept() + place) * plan_->record.size_bytes();
  }

  const KvPlan* plan_;
  std::vector<Layer> layers_;
};

}  // namespace kvrun
