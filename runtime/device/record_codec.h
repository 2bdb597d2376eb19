// KV records on the host, for the few entries that leave the recent window: what EncodeRecords and
// DecodeRecords (runtime/device/device.h) do on the device for whole tiles, and keys that an index is made of
// where no prefill makes it. Elements and scales are those of runtime/device/kv_record.h, rounded to nearest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "runtime/device/kv_record.h"

namespace kvrun {

// Records of up to so many elements to a row.
inline constexpr uint32_t kMaxCodecHeadDim = 256;

// The record `from` in other types, with its positions where both shapes have them (else zeros). Heads,
// head_dim and group_tokens of both shapes are equal; memory is aligned to words. Allocates nothing.
void TranscodeRecord(const KvRecordShape& from_shape, std::span<const std::byte> from,
                     const KvRecordShape& to_shape, std::span<std::byte> to);

// One entry of `record` (of `shape`, f16 or f32) as it would come back from a record of `stored`.
void RoundEntry(const KvRecordShape& shape, const KvRecordShape& stored, uint32_t entry,
                std::span<std::byte> record);

// Takes `shifts`, float [n_heads, 2 (K, V), head_dim], off each entry's K and V, and rounds anew. Allocates
// nothing.
void ShiftRecord(const KvRecordShape& shape, std::span<const float> shifts, std::span<std::byte> record);

// K of the record's entries: float [group_tokens, n_heads * head_dim], rows `row_stride` elements apart.
// Allocates nothing.
void DecodeKeys(const KvRecordShape& shape, std::span<const std::byte> record, uint32_t row_stride,
                std::span<float> keys);
// The same of V.
void DecodeValues(const KvRecordShape& shape, std::span<const std::byte> record, uint32_t row_stride,
                  std::span<float> values);

}  // namespace kvrun
