// What the tests of EncodeRecords and DecodeRecords share: shapes, KV and records, and what must come of
// them (tests/support/slot_reference.h).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/device/device.h"
#include "runtime/device/kv_record.h"

namespace kvrun::testing {

// Entries [first_token, first_token + n_groups * group_tokens) of one layer's KV of one sequence, as records.
struct CopyCase {
  KvRecordShape record;
  KvShape kv;
  uint32_t first_token = 0;
  uint32_t n_groups = 0;
  bool in_space = false;  // records hold entries in a space of their own, whose means are Means(c)

  // Means of other sequences come before.
  uint32_t means_begin() const { return 3 * kv.n_kv_heads * 2 * kv.head_dim; }
  EntrySpace Space(const Buffer* means) const {
    return in_space ? EntrySpace{means, means_begin()} : EntrySpace();
  }
  uint32_t n_records() const { return kv.n_kv_heads / record.n_heads * n_groups; }
  size_t record_words() const { return size_t{n_records()} * record.size_words(); }
};

// Every pair of types, by turns in a space of their own; the other dimensions of the shape take turns.
std::vector<CopyCase> CopyCases(KvType kv_type);
// One record of one entry.
CopyCase OneRow(KvType type, uint32_t head_dim, KvType kv_type = KvType::kF32);

// The KV as the device stores it. Values of very different size, zeros, and rows of nothing but zeros, of
// what is too small for a scale, and of what is too large for halves.
std::vector<uint32_t> KvWords(const CopyCase& c);
// From means_begin() on those of the records: of the size of the values.
std::vector<float> Means(const CopyCase& c);
// What EncodeRow makes of other such values; garbage in words that hold no row.
std::vector<uint32_t> MakeRecords(const CopyCase& c);

// KV of a OneRow of f32 KV: K are numbers halfway between two neighbours, in rows whose scale is 1; V is 0.
std::vector<uint32_t> HalvesOfAStep(const CopyCase& c);
// The record that must come of them: halves go to the even neighbour.
std::vector<uint32_t> RoundedHalves(const CopyCase& c);
// Of a OneRow of fp8, int8 or int4: every number there is, with this scale (two halves) for all.
std::vector<uint32_t> EveryElement(const CopyCase& c, uint32_t scale);

// Whether `records` are what EncodeRecords must make of KvWords, with zeros in what belongs to no row. Empty:
// they are; else what differs.
std::string CheckEncoded(const CopyCase& c, std::span<const uint32_t> records);
// Whether DecodeRecords of `records` into KvWords must give `kv_words`: each row's elements as DecodeRow
// says, and nothing else changed. Products of a half and at most 8 bits are exact in a float; what comes out
// of a space is not.
std::string CheckDecoded(const CopyCase& c, std::span<const uint32_t> records,
                         std::span<const uint32_t> kv_words);

}  // namespace kvrun::testing
