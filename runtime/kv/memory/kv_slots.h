// Memory for chosen groups while decoding. A *slot* holds one record. A layer has *own slots*, in which a
// group stays until another takes its place. What finds none of these goes into the *pool*, slots that layers
// share: of 500 chosen groups 160 may lie in own slots, and 340 are read into the pool. Mapping tables tell
// the device where chosen groups lie ("group 17 is in slot 3").
//
// The pool has parts, which layers take in turn (KvPlan::pool_parts): what lies there is read anew for each
// layer of each step. A method may have slots alone, the pool alone, or both.
//
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "platform/base/status.h"
#include "runtime/device/device.h"
#include "runtime/kv/math/slot_cache.h"
#include "runtime/kv/plan/kv_plan.h"
#include "runtime/store/record_store.h"
#include "runtime/store/state_visitor.h"

namespace kvrun {

// Slots of every stream, and the tables that name them.
class SlotBuffers {
 public:
  static Result<SlotBuffers> Create(Device& device, const SlotShape& shape);

  Buffer* slots() const { return slots_.get(); }
  SlotSource source() const { return {slots_.get(), shape_, table_.get()}; }
  std::byte* Record(uint32_t stream, uint32_t slot) const {
    return slots_->host().data() + (uint64_t{stream} * shape_.n_slots + slot) * shape_.record.size_bytes();
  }
  // A stream's mapping table names nothing now.
  void Empty(uint32_t stream) const;
  // Groups follow one another: all their entries count.
  void Name(uint32_t stream, std::span<const uint32_t> slots) const;
  // The first `n` slots, from `begin` on.
  void NameFirst(uint32_t stream, uint32_t n, uint32_t begin = 0) const;
  // Where slots have biases (SlotShape::has_biases): names one more, of which so many entries count.
  void Add(uint32_t stream, uint32_t slot, uint32_t n_entries, float bias) const;
  Status FlushTable() const { return table_->Flush(0, table_->size_bytes()); }
  Status FlushAll() const {
    KVRUN_RETURN_IF_ERROR(slots_->Flush(0, slots_->size_bytes()));
    return FlushTable();
  }
  // The device sees what was read into these slots; reads into other memory are passed over.
  Status FlushFetched(std::span<const GroupFetch> fetches) const;

 private:
  bool Holds(const std::byte* record) const;
  std::span<uint32_t> Table(uint32_t stream) const;

  SlotShape shape_;
  std::unique_ptr<Buffer> slots_;  // kShared
  std::unique_ptr<Buffer> table_;  // kShared
};

class KvSlots {
 public:
  // The plan must outlive it. Nothing is made yet.
  KvSlots(Device& device, const KvPlan& plan, uint32_t n_layers)
      : device_(device), plan_(plan), n_layers_(n_layers) {}

  // Makes slots, pool and tables, or gives them up. Making them twice has no effect.
  Status Make();
  void Drop();
  bool is_made() const { return is_made_; }

  // Of a layer's own slots: [n_streams, KvPlan::n_own_slots(layer)].
  SlotShape own_shape(uint32_t layer) const {
    return Shape(plan_.n_own_slots(layer), plan_.n_needed_in_slots(layer));
  }
  // Null where there are none.
  SlotBuffers* own(uint32_t layer) { return own_.empty() ? nullptr : &own_[layer]; }
  SlotBuffers* pool(uint32_t layer) { return parts_.empty() ? nullptr : &parts_[layer % parts_.size()]; }
  // What a stream's own slots hold. Where nothing is selected there is no such thing: group i lies in slot i.
  SlotCache* cache(uint32_t layer, uint32_t stream) {
    return caches_.empty() ? nullptr : &caches_[size_t{layer} * plan_.n_streams + stream];
  }
  // Of a layer's own slots and of its part of the pool, what SlotBuffers says of one of them.
  void Empty(uint32_t layer, uint32_t stream);
  Status FlushFetched(uint32_t layer, std::span<const GroupFetch> fetches);
  Status FlushTables(uint32_t layer);
  // Forgets groups from `first` on.
  void Truncate(uint32_t stream, uint32_t first);

  // What own slots hold, where results depend on it: where reads are limited, as what lies there stands in
  // for what is not read; and where there is a pool, as entries are added up in another order there. Loading:
  // it is remembered until slots are made, and Recall brings it there; or until a prompt needs their room.
  Status VisitState(StateVisitor& visitor);
  struct RecallFns {
    // Whether there is such a record, of any number.
    std::function<bool(uint32_t layer, uint32_t stream, uint32_t record)> is_there;
    // Reads a layer's; by stream, and those of a stream ascending.
    std::function<Status(uint32_t layer, std::span<const GroupFetch> fetches)> fill;
  };
  // Slots have just been made: reads what was remembered into them.
  Status Recall(const RecallFns& of_records);

 private:
  SlotShape Shape(uint32_t n_slots, uint32_t n_needed) const;
  Status MakeAll();
  Status RecallLayer(uint32_t layer, std::span<const SlotCache::Memory> memories,
                     const RecallFns& of_records);
  Status VisitMemory(StateVisitor& visitor, uint32_t layer, uint32_t stream, SlotCache::Memory* memory) const;

  Device& device_;
  const KvPlan& plan_;
  uint32_t n_layers_;
  std::vector<SlotBuffers> own_;               // [n_layers], or none
  std::vector<SlotCache> caches_;              // [n_layers, n_streams], or none
  std::vector<SlotBuffers> parts_;             // of the pool, or none
  std::vector<SlotCache::Memory> remembered_;  // [n_layers, n_streams], or none
  bool is_made_ = false;
};

}  // namespace kvrun
