// Softmax attention of a few query rows over blocks of entries, with running maxima: what attention over KV
// in memory and over KV in slots have in common.
//
// Few rows (decoding): lanes lie along the head's dimensions, and K and V are decoded in registers. More
// (prompts): lanes lie along the rows, and each block is decoded once for all of them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/device/kv_record.h"

namespace kvrun::host {

inline constexpr uint32_t kBlockEntries = 64;
inline constexpr uint32_t kMaxAttendRows = 192;
inline constexpr uint32_t kMaxHeadDim = 256;

// Where K and V of up to kBlockEntries entries lie. What follows a row for 64 bytes can be read. Scales: f16,
// as in kv_record.h.
struct KvBlock {
  KvType k_type = KvType::kF16;
  KvType v_type = KvType::kF16;
  uint32_t n_entries = 0;
  const std::byte* k[kBlockEntries];
  const std::byte* v[kBlockEntries];
  const std::byte* k_scales[kBlockEntries];
  const std::byte* v_scales[kBlockEntries];
  // What is added to each entry's scores, and zeros after the last; not read without has_biases, with which
  // many rows are not rounded.
  bool has_biases = false;
  float biases[kBlockEntries];
  // How many of the entries each row sees: the first ones, but for those that are hidden from it. Nothing is
  // hidden, and `hidden` is not read, without has_hidden, which is a prompt's alone.
  uint32_t visible[kMaxAttendRows];
  bool has_hidden = false;
  uint32_t hidden[kMaxAttendRows];
  // Of few rows: where each entry's weight goes, as it is beside the largest score so far, [n_rows,
  // kBlockEntries], and that score, [n_rows]. Null: nowhere.
  float* kept_weights = nullptr;
  float* kept_maxima = nullptr;
};

// One worker's rows. `memory` is laid out by whoever begins.
struct AttendRows {
  uint32_t n_rows = 0;  // at most kMaxAttendRows
  uint32_t head_dim = 0;
  // Q, K, V and weights may be rounded to 13 to 16 bits, where this is faster. Of a prompt: a row's in blocks
  // of which it sees all entries. Of few rows: Q where K is int8 or int4, weights where V is.
  bool rounds = false;
  // Rows are computed as many rows are, though they may be few: what a row becomes does not depend on how
  // many others there are.
  bool is_prompt = false;
  float score_cap = 0.0F;  // these as in AttentionArgs
  float score_scale = 0.0F;
  std::byte* memory = nullptr;  // AttendRowsBytes(head_dim), 64-byte aligned
};

size_t AttendRowsBytes(uint32_t head_dim);
// Of a row's result: weighted sums of V, the largest score (as a power of 2 where rows are many, else of e),
// the sum of weights.
constexpr uint32_t AttendPartFloats(uint32_t head_dim) { return head_dim + 2; }

// queries: of each row, head_dim floats. before: of each row what EndAttend left of it after earlier blocks,
// AttendPartFloats, as if these had been attended to here; null: there were none.
void BeginAttend(const AttendRows& rows, const float* const* queries, const float* const* before);
// next: what comes after it, for prefetches; null: nothing.
void AttendBlock(const AttendRows& rows, const KvBlock& block, const KvBlock* next);
// parts: of each row, AttendPartFloats.
void EndAttend(const AttendRows& rows, float* const* parts);

// Rows of K or V as numbers: [n_entries (up to kBlockEntries), DecodedRowFloats], 64-byte aligned. Exact.
constexpr size_t DecodedRowFloats(uint32_t head_dim) { return (size_t{head_dim} + 15) / 16 * 16; }
void DecodeRows(KvType type, uint32_t head_dim, uint32_t n_entries, const std::byte* const* rows,
                const std::byte* const* scales, float* to);

// Of a block's weights, [n_rows, kBlockEntries], each row's times its factor: their first n_moments (1 or 2)
// powers are added to `moments`, [n_moments, kBlockEntries], row after row, or, where they are larger, take
// the place of what is there.
void JoinWeights(const float* weights, const float* factors, uint32_t n_rows, uint32_t n_moments, bool adds,
                 float* moments);

// The highest score of a row that saw nothing.
inline constexpr float kMaskedScore = -1e30F;

}  // namespace kvrun::host
