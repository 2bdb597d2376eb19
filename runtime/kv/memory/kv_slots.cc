#include "runtime/kv/memory/kv_slots.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <numeric>
#include <utility>

#include "runtime/kv/memory/host_buffer.h"

namespace kvrun {

Result<SlotBuffers> SlotBuffers::Create(Device& device, const SlotShape& shape) {
  SlotBuffers made;
  made.shape_ = shape;
  KVRUN_ASSIGN_OR_RETURN(made.slots_, device.CreateBuffer(shape.size_bytes(), BufferUse::kShared, "kv"));
  KVRUN_ASSIGN_OR_RETURN(made.table_, device.CreateBuffer(shape.table_bytes(), BufferUse::kShared, "kv"));
  return made;
}

std::span<uint32_t> SlotBuffers::Table(uint32_t stream) const {
  const size_t words = shape_.table_words();
  return Words(*table_).subspan(stream * words, words);
}

void SlotBuffers::Empty(uint32_t stream) const { Name(stream, {}); }

void SlotBuffers::Name(uint32_t stream, std::span<const uint32_t> slots) const {
  const std::span<uint32_t> table = Table(stream);
  std::copy(slots.begin(), slots.end(), table.begin() + 2);
  table[0] = static_cast<uint32_t>(slots.size());
  table[1] = shape_.record.group_tokens;
}

void SlotBuffers::NameFirst(uint32_t stream, uint32_t n, uint32_t begin) const {
  const std::span<uint32_t> table = Table(stream);
  std::iota(table.begin() + 2, table.begin() + 2 + n - begin, begin);
  table[0] = n - begin;
  table[1] = shape_.record.group_tokens;
}

void SlotBuffers::Add(uint32_t stream, uint32_t slot, uint32_t n_entries, float bias) const {
  const std::span<uint32_t> table = Table(stream);
  const uint32_t i = table[0]++;
  table[2 + i] = SlotShape::BiasedSlot(slot, n_entries);
  table[2 + shape_.table_slots + i] = std::bit_cast<uint32_t>(bias);
}

bool SlotBuffers::Holds(const std::byte* record) const {
  const std::byte* const begin = slots_->host().data();
  return std::less_equal<>()(begin, record) && std::less<>()(record, begin + shape_.size_bytes());
}

// Records that lie side by side are flushed together.
Status SlotBuffers::FlushFetched(std::span<const GroupFetch> fetches) const {
  const uint64_t record_bytes = shape_.record.size_bytes();
  const std::byte* const slots = slots_->host().data();
  for (size_t i = 0; i < fetches.size();) {
    const std::byte* const first = fetches[i++].memory;
    if (!Holds(first)) continue;
    uint64_t bytes = record_bytes;
    while (i < fetches.size() && fetches[i].memory == first + bytes && Holds(first + bytes)) {
      bytes += record_bytes;
      ++i;
    }
    KVRUN_RETURN_IF_ERROR(slots_->Flush(static_cast<uint64_t>(first - slots), bytes));
  }
  return Status::Ok();
}

SlotShape KvSlots::Shape(uint32_t n_slots, uint32_t n_needed) const {
  return {.record = plan_.slots.record,
          .n_streams = plan_.n_streams,
          .n_slots = n_slots,
          .n_window_slots = 0,
          .table_slots = std::min(n_slots, n_needed),
          .has_biases = plan_.has_slot_biases()};
}

Status KvSlots::Make() {
  if (is_made_) return Status::Ok();
  const Status made = MakeAll();
  if (!made.ok()) Drop();  // those of some layers would stay beside the next ones
  return made;
}

Status KvSlots::MakeAll() {
  const ReplacementPolicy* policy = nullptr;
  if (!plan_.slots.policy.empty()) {
    KVRUN_ASSIGN_OR_RETURN(policy, FindReplacementPolicy(plan_.slots.policy));
  }
  for (uint32_t i = 0; i < n_layers_ && plan_.n_own_slots(0) > 0; ++i) {
    KVRUN_ASSIGN_OR_RETURN(SlotBuffers own, SlotBuffers::Create(device_, own_shape(i)));
    own_.push_back(std::move(own));
  }
  for (uint32_t i = 0; i < plan_.pool_parts(); ++i) {
    KVRUN_ASSIGN_OR_RETURN(SlotBuffers part, SlotBuffers::Create(device_, Shape(plan_.slots.n_pool_slots,
                                                                                plan_.slots.n_pool_slots)));
    parts_.push_back(std::move(part));
  }
  for (uint32_t i = 0; i < n_layers_ && policy != nullptr && plan_.n_own_slots(0) > 0; ++i) {
    caches_.insert(caches_.end(), plan_.n_streams, SlotCache(plan_.slot_cache_shape(i), policy));
  }
  is_made_ = true;
  return Status::Ok();
}

void KvSlots::Drop() {
  is_made_ = false;
  remembered_.clear();
  own_.clear();
  caches_.clear();
  parts_.clear();
}

void KvSlots::Empty(uint32_t layer, uint32_t stream) {
  if (const SlotBuffers* slots = own(layer); slots != nullptr) slots->Empty(stream);
  if (const SlotBuffers* part = pool(layer); part != nullptr) part->Empty(stream);
}

Status KvSlots::FlushFetched(uint32_t layer, std::span<const GroupFetch> fetches) {
  if (const SlotBuffers* slots = own(layer); slots != nullptr) {
    KVRUN_RETURN_IF_ERROR(slots->FlushFetched(fetches));
  }
  const SlotBuffers* const part = pool(layer);
  return part != nullptr ? part->FlushFetched(fetches) : Status::Ok();
}

Status KvSlots::FlushTables(uint32_t layer) {
  if (const SlotBuffers* slots = own(layer); slots != nullptr) KVRUN_RETURN_IF_ERROR(slots->FlushTable());
  const SlotBuffers* const part = pool(layer);
  return part != nullptr ? part->FlushTable() : Status::Ok();
}

void KvSlots::Truncate(uint32_t stream, uint32_t first) {
  for (size_t i = stream; i < caches_.size(); i += plan_.n_streams) caches_[i].Truncate(first);
}

Status KvSlots::VisitMemory(StateVisitor& visitor, uint32_t layer, uint32_t stream,
                            SlotCache::Memory* memory) const {
  enum Item : uint16_t {
    kStep = 1,
    kExtents,
    kByExtent,
    kLoadedAt,
    kUsedAt,
    kFrequency,
    kWeights,
    kTouchedAt
  };
  const auto key = [&](Item item) { return StateKey{StatePart::kSlots, item, layer, stream}; };
  const uint64_t most = plan_.n_record_ids();  // of slots, too: more would be of no use
  KVRUN_RETURN_IF_ERROR(visitor.Value(key(kStep), &memory->step));
  KVRUN_RETURN_IF_ERROR(visitor.Vector(key(kExtents), &memory->extents, most));
  KVRUN_RETURN_IF_ERROR(visitor.Vector(key(kByExtent), &memory->by_extent, most));
  KVRUN_RETURN_IF_ERROR(visitor.Vector(key(kLoadedAt), &memory->loaded_at, most));
  KVRUN_RETURN_IF_ERROR(visitor.Vector(key(kUsedAt), &memory->used_at, most));
  KVRUN_RETURN_IF_ERROR(visitor.Vector(key(kFrequency), &memory->frequency, most));
  KVRUN_RETURN_IF_ERROR(visitor.Vector(key(kWeights), &memory->weights, most));
  return visitor.Vector(key(kTouchedAt), &memory->touched_at, most);
}

Status KvSlots::VisitState(StateVisitor& visitor) {
  if (!plan_.limits_reads() && plan_.pool_parts() == 0) return Status::Ok();
  std::vector<SlotCache::Memory> memories = remembered_;
  if (memories.empty()) {
    for (const SlotCache& cache : caches_) memories.push_back(cache.Remember());
  }
  std::vector<bool> are_there{!memories.empty()};
  // A plan for which they decided nothing has not saved them.
  if (visitor.is_loading() && !visitor.Has({StatePart::kSlots, 0})) return Status::Ok();
  KVRUN_RETURN_IF_ERROR(visitor.Flags({StatePart::kSlots, 0}, &are_there));
  if (!are_there[0]) return Status::Ok();
  memories.resize(size_t{n_layers_} * plan_.n_streams);
  for (uint32_t layer = 0; layer < n_layers_; ++layer) {
    for (uint32_t stream = 0; stream < plan_.n_streams; ++stream) {
      SlotCache::Memory& memory = memories[size_t{layer} * plan_.n_streams + stream];
      KVRUN_RETURN_IF_ERROR(VisitMemory(visitor, layer, stream, &memory));
    }
  }
  if (visitor.is_loading()) remembered_ = std::move(memories);
  return Status::Ok();
}

// What is of another number of slots is as if nothing had been there.
Status KvSlots::Recall(const RecallFns& of_records) {
  const std::vector<SlotCache::Memory> memories = std::exchange(remembered_, {});
  for (uint32_t layer = 0; layer < n_layers_ && !memories.empty() && !caches_.empty(); ++layer) {
    const Status filled = RecallLayer(
        layer, std::span(memories).subspan(size_t{layer} * plan_.n_streams, plan_.n_streams), of_records);
    if (filled.ok()) continue;
    for (SlotCache& cache : caches_) cache.Clear();
    return filled;
  }
  return Status::Ok();
}

Status KvSlots::RecallLayer(uint32_t layer, std::span<const SlotCache::Memory> memories,
                            const RecallFns& of_records) {
  std::vector<GroupFetch> fetches;
  for (uint32_t stream = 0; stream < plan_.n_streams; ++stream) {
    const SlotCache::Memory& memory = memories[stream];
    const bool are_there = std::all_of(memory.extents.begin(), memory.extents.end(), [&](uint32_t extent) {
      return extent == kNoExtent || of_records.is_there(layer, stream, extent);
    });
    if (!are_there || !cache(layer, stream)->Recall(memory)) continue;
    for (const uint32_t slot : memory.by_extent) {
      if (memory.extents[slot] == kNoExtent) break;
      fetches.push_back({stream, memory.extents[slot], own(layer)->Record(stream, slot)});
    }
  }
  return of_records.fill(layer, fetches);
}

}  // namespace kvrun
