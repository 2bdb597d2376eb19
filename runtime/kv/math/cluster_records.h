// A cluster's entries in records: one after another, the last record filled in part. Bytes alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "runtime/device/kv_record.h"

namespace kvrun {

// Copies an entry from a record to a record of the same types and heads, whatever group_tokens are; with its
// position, where both have positions. Both may be one record.
void CopyEntry(const KvRecordShape& from_shape, std::span<const std::byte> from, uint32_t from_entry,
               const KvRecordShape& to_shape, std::span<std::byte> to, uint32_t to_entry);

// The position of a place in a record that no entry takes.
inline constexpr uint32_t kNoPosition = UINT32_MAX;

// Of a record with positions.
uint32_t PositionOf(const KvRecordShape& shape, std::span<const std::byte> record, uint32_t entry);
void SetPosition(const KvRecordShape& shape, std::span<std::byte> record, uint32_t entry, uint32_t position);

}  // namespace kvrun
