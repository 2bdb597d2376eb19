// What one worker's memory for attention of rows holds.
#pragma once

#include <cstddef>
#include <cstdint>

#include "platform/base/units.h"
#include "runtime/device/host/attend_rows.h"

namespace kvrun::host {

// Up to so many rows have lanes along dimensions.
constexpr uint32_t kFewRows = 8;
// Rows of floats are padded to this, which is a multiple of every vector.
constexpr uint32_t kPadFloats = 16;
static_assert(DecodedRowFloats(1) == kPadFloats);
constexpr uint32_t kMaxRowScales = kMaxHeadDim / kInt4BlockElements;

// What AttendRows::memory holds, in floats.
struct Layout {
  explicit Layout(const AttendRows& rows)
      : dims(static_cast<uint32_t>(DecodedRowFloats(rows.head_dim))),
        lanes(rows.n_rows > kFewRows ? RoundUp(rows.n_rows, kPadFloats) : 0),
        memory(reinterpret_cast<float*>(rows.memory)) {}

  // Scaled by 1 / sqrt(head_dim). [n_rows, dims] where rows are few, else [dims, lanes].
  float* queries() const { return memory; }
  float* sums() const { return memory + kMaxAttendRows * dims; }  // likewise
  float* keys() const {
    return memory + 2 * kMaxAttendRows * dims;
  }  // a block's, decoded: [kBlockEntries, dims]
  float* values() const { return keys() + kBlockEntries * dims; }
  // Of few rows [n_rows, kBlockEntries], else [kBlockEntries, lanes]; then weights.
  float* scores() const { return values() + kBlockEntries * dims; }
  float* maximum() const { return scores() + kBlockEntries * kMaxAttendRows; }
  float* weight() const { return maximum() + kMaxAttendRows; }
  float* correction() const { return weight() + kMaxAttendRows; }
  float* k_scales() const { return correction() + kMaxAttendRows; }  // [kBlockEntries, scales of a row]
  float* v_scales() const { return k_scales() + kBlockEntries * kMaxRowScales; }
  size_t count() const {
    return size_t{2} * (kMaxAttendRows + kBlockEntries) * dims + kBlockEntries * kMaxAttendRows +
           3 * kMaxAttendRows + 2 * kBlockEntries * kMaxRowScales;
  }

  uint32_t dims;
  uint32_t lanes;
  float* memory;
};

constexpr uint32_t RowScales(KvType type, uint32_t head_dim) {
  if (type == KvType::kF16 || type == KvType::kF32) return 0;
  return type == KvType::kInt4 ? CeilDiv(head_dim, kInt4BlockElements) : 1;
}

constexpr size_t RowBytes(KvType type, uint32_t head_dim) {
  return CeilDiv(size_t{head_dim} * KvElementBits(type), size_t{8});
}

}  // namespace kvrun::host
