// Keys of a stream's entries in memory, as they are stored, but without V: what is divided into clusters
// reads them again and again.
//
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/device/kv_record.h"

namespace kvrun {

class KeyRows {
 public:
  // Of records of one entry of one head. None is there.
  explicit KeyRows(const KvRecordShape& record);
  static uint64_t MemoryBytes(const KvRecordShape& record, uint32_t n_entries);

  // Makes room for so many, of which nothing is known.
  void Reset(uint32_t n_entries);
  // Gives all memory of entries back.
  void Drop() { rows_ = {}; }
  // Records of entries that follow each other: the first is entry `first`.
  void Put(uint32_t first, std::span<const std::byte> records);
  // float [head_dim].
  void Decode(uint32_t entry, std::span<float> key);

 private:
  static uint64_t RowBytes(const KvRecordShape& record) { return CodeBytes(record) + ScaleBytes(record); }
  static uint64_t CodeBytes(const KvRecordShape& record) { return 4 * record.row_words(record.k_type); }
  static uint64_t ScaleBytes(const KvRecordShape& record) { return 2 * record.row_scales(record.k_type); }

  KvRecordShape shape_;
  std::vector<std::byte> rows_;    // [n_entries]: codes, then scales
  std::vector<std::byte> record_;  // one, whose V is zeros
};

}  // namespace kvrun
