#include "runtime/kv/memory/slot_record_store.h"

#include <cstring>

#include "platform/base/check.h"
#include "runtime/kv/memory/host_buffer.h"

namespace kvrun {

Status SlotRecordStore::Append(uint32_t layer, uint32_t stream, uint32_t first_group,
                               std::span<const std::byte> records) {
  if (records.empty()) return Status::Ok();
  const uint64_t begin = Place(stream, first_group);
  const std::span<std::byte> slots = slots_[layer]->host();
  KVRUN_CHECK(begin <= slots.size() && records.size() <= slots.size() - begin);
  std::memcpy(slots.data() + begin, records.data(), records.size());
  return slots_[layer]->Flush(begin, records.size());
}

Status SlotRecordStore::Fetch(uint32_t layer, std::span<const GroupFetch> fetches) {
  for (const GroupFetch& fetch : fetches) {
    const std::byte* const slot = slots_[layer]->host().data() + Place(fetch.stream, fetch.group);
    std::memcpy(fetch.memory, slot, shape_.record.size_bytes());
  }
  return Status::Ok();
}

Status SlotRecordStore::VisitState(StateVisitor& visitor, std::span<const uint32_t> n_groups) {
  for (uint32_t layer = 0; layer < slots_.size(); ++layer) {
    for (uint32_t stream = 0; stream < n_groups.size(); ++stream) {
      KVRUN_RETURN_IF_ERROR(VisitBytes(visitor, {StatePart::kStore, 0, layer, stream}, *slots_[layer],
                                       Place(stream, 0), n_groups[stream] * shape_.record.size_bytes()));
    }
  }
  return Status::Ok();
}

}  // namespace kvrun
