#include "runtime/kv/math/key_rows.h"

#include <cstring>

#include "platform/base/check.h"
#include "runtime/device/record_codec.h"

namespace kvrun {

KeyRows::KeyRows(const KvRecordShape& record) : shape_(record), record_(record.size_bytes()) {
  KVRUN_CHECK(record.n_rows() == 1);
}

uint64_t KeyRows::MemoryBytes(const KvRecordShape& record, uint32_t n_entries) {
  return n_entries * RowBytes(record) + record.size_bytes();
}

void KeyRows::Reset(uint32_t n_entries) { rows_.resize(n_entries * RowBytes(shape_)); }

void KeyRows::Put(uint32_t first, std::span<const std::byte> records) {
  const uint64_t scales = uint64_t{4} * shape_.scales_begin_words();
  std::byte* row = rows_.data() + first * RowBytes(shape_);
  for (uint64_t at = 0; at < records.size(); at += shape_.size_bytes()) {
    std::memcpy(row, records.data() + at, CodeBytes(shape_));
    std::memcpy(row + CodeBytes(shape_), records.data() + at + scales, ScaleBytes(shape_));
    row += RowBytes(shape_);
  }
}

void KeyRows::Decode(uint32_t entry, std::span<float> key) {
  const std::byte* const row = rows_.data() + entry * RowBytes(shape_);
  std::memcpy(record_.data(), row, CodeBytes(shape_));
  std::memcpy(record_.data() + uint64_t{4} * shape_.scales_begin_words(), row + CodeBytes(shape_),
              ScaleBytes(shape_));
  DecodeKeys(shape_, record_, shape_.head_dim, key);
}

}  // namespace kvrun
