// Records that stay in memory: each group has a slot of its own, where the device attends to it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/device/device.h"
#include "runtime/store/record_store.h"
#include "runtime/store/state_visitor.h"

namespace kvrun {

class SlotRecordStore final : public RecordStore {
 public:
  // shape: with as many slots as a stream has groups.
  SlotRecordStore(const SlotShape& shape, uint32_t n_layers) : shape_(shape), slots_(n_layers) {}

  // A layer's slots, kShared and of shape.size_bytes(): not owned, and in use until others are set. Before
  // any other call for this layer.
  void SetSlots(uint32_t layer, Buffer* slots) { slots_[layer] = slots; }

  Status Append(uint32_t layer, uint32_t stream, uint32_t first_group,
                std::span<const std::byte> records) override;
  Status Flush() override { return Status::Ok(); }
  Status Fetch(uint32_t layer, std::span<const GroupFetch> fetches) override;
  // The first groups of each stream, so many: [n_streams]. The slots are set.
  Status VisitState(StateVisitor& visitor, std::span<const uint32_t> n_groups);
  Status Truncate(uint32_t /*stream*/, uint32_t /*n_groups*/) override { return Status::Ok(); }

 private:
  uint64_t Place(uint32_t stream, uint32_t group) const {
    return (uint64_t{stream} * shape_.n_slots + group) * shape_.record.size_bytes();
  }

  SlotShape shape_;
  std::vector<Buffer*> slots_;
};

}  // namespace kvrun
