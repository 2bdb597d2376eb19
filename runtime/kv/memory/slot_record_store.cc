#include "runtime/kv/memory/slot_record_store.h"

#include <cstring>

#include "platform/base/check.h"

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

}  // namespace kvrun
