// Memory for chosen groups while decoding: each layer's slots, what they hold, and the mapping tables that
// tell the device where chosen groups lie.
//
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "platform/base/status.h"
#include "runtime/device/device.h"
#include "runtime/kv/kv_plan.h"
#include "runtime/kv/slot_cache.h"

namespace kvrun {

class SlotPool {
 public:
  // The plan must outlive it. Nothing is made yet.
  SlotPool(Device& device, const KvPlan& plan, uint32_t n_layers)
      : device_(device), plan_(plan), layers_(n_layers) {}

  // Makes slots and tables, or gives them up. Making them twice has no effect.
  Status Make();
  void Drop();
  bool is_made() const { return is_made_; }

  SlotShape shape() const;
  Buffer* slots(uint32_t layer) const { return layers_[layer].slots.get(); }
  Buffer* table(uint32_t layer) const { return layers_[layer].table.get(); }
  std::byte* SlotBytes(uint32_t layer, uint32_t stream, uint32_t slot) const {
    return layers_[layer].slots->host().data() +
           (uint64_t{stream} * plan_.n_cache_slots + slot) * plan_.record.size_bytes();
  }
  // A stream's mapping table (SlotShape).
  std::span<uint32_t> TableOf(uint32_t layer, uint32_t stream) const;
  // What a stream's slots hold. Where nothing is selected there are none: group i lies in slot i.
  SlotCache& cache(uint32_t layer, uint32_t stream) { return layers_[layer].caches[stream]; }
  // Forgets groups from `first` on.
  void Truncate(uint32_t stream, uint32_t first);

 private:
  struct Layer {
    std::shared_ptr<Buffer> slots;  // kShared; one for all layers where the plan shares slots
    std::unique_ptr<Buffer> table;  // kShared
    std::vector<SlotCache> caches;  // of each stream
  };

  Status MakeAll();

  Device& device_;
  const KvPlan& plan_;
  std::vector<Layer> layers_;
  bool is_made_ = false;
};

}  // namespace kvrun
