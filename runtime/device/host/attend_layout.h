// What one worker's memory for attention of rows holds.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "platform/base/units.h"
#include "runtime/device/host/attend_rows.h"

namespace kvrun::host {

// Up to so many rows have lanes along dimensions.
constexpr uint32_t kFewRows = 8;
inline bool AreMany(const AttendRows& rows) { return rows.is_prompt || rows.n_rows > kFewRows; }
// What products are multiplied with, where scores are times `factor`.
inline float ScoreFactor(const AttendRows& rows, float factor) {
  return rows.score_scale != 0.0F ? factor * rows.score_scale
                                  : factor / std::sqrt(static_cast<float>(rows.head_dim));
}
// More of them are computed in tiles of so many, along which lanes lie.
constexpr uint32_t kTileRows = 64;
// Rows of floats are padded to this, which is a multiple of every vector.
constexpr uint32_t kPadFloats = 16;
static_assert(DecodedRowFloats(1) == kPadFloats && kMaxAttendRows % kTileRows == 0);
constexpr uint32_t kMaxRowScales = kMaxHeadDim / kInt4BlockElements;

// What AttendRows::memory holds, in floats, where rows are few.
struct FewLayout {
  explicit FewLayout(const AttendRows& rows)
      : dims(static_cast<uint32_t>(DecodedRowFloats(rows.head_dim))),
        memory(reinterpret_cast<float*>(rows.memory)) {}

  float* queries() const { return memory; }  // scaled for scores: [n_rows, dims]
  float* sums() const { return memory + kFewRows * dims; }
  float* scores() const { return sums() + kFewRows * dims; }  // [n_rows, kBlockEntries], then weights
  float* maximum() const { return scores() + kBlockEntries * kFewRows; }
  float* weight() const { return maximum() + kPadFloats; }
  float* correction() const { return weight() + kPadFloats; }
  float* k_scales() const { return correction() + kPadFloats; }  // [kBlockEntries, scales of a row]
  float* v_scales() const { return k_scales() + kBlockEntries * kMaxRowScales; }
  // Where queries and weights are rounded. Queries, [n_rows, rounded_dims], and what one stands for; of each
  // row weights for each scale of a value, [n_rows, kMaxRowScales, kBlockEntries], and what one stands for.
  size_t rounded_dims() const { return RoundUp(dims, 2 * kPadFloats); }
  int16_t* rounded_queries() const {
    return reinterpret_cast<int16_t*>(v_scales() + kBlockEntries * kMaxRowScales);
  }
  float* query_steps() const {
    return v_scales() + kBlockEntries * kMaxRowScales + kFewRows * rounded_dims() / 2;
  }
  int16_t* rounded_weights() const { return reinterpret_cast<int16_t*>(query_steps() + kPadFloats); }
  float* weight_steps() const {
    return query_steps() + kPadFloats + kFewRows * kMaxRowScales * kBlockEntries / 2;
  }
  // Rounded queries once more, for keys of int4: [n_rows, 2, pairs_of_four], of four dimensions the first and
  // the third, then the others.
  size_t pairs_of_four() const { return RoundUp(dims, 4 * kPadFloats) / 4; }
  int32_t* query_pairs() const {
    return reinterpret_cast<int32_t*>(weight_steps() + kFewRows * kMaxRowScales);
  }
  // Of all of it; there need be no memory yet.
  size_t count() const {
    return size_t{2} * kFewRows * dims + kBlockEntries * kFewRows + 3 * kPadFloats +
           2 * kBlockEntries * kMaxRowScales + kFewRows * rounded_dims() / 2 + kPadFloats +
           kFewRows * kMaxRowScales * (kBlockEntries / 2 + 1) + kFewRows * 2 * pairs_of_four();
  }

  uint32_t dims;
  float* memory;
};

// And where they are many. Scores are logarithms to base 2.
struct ManyLayout {
  explicit ManyLayout(const AttendRows& rows)
      : dims(static_cast<uint32_t>(DecodedRowFloats(rows.head_dim))),
        n_rows(rows.n_rows),
        memory(reinterpret_cast<float*>(rows.memory)) {}

  uint32_t n_tiles() const { return CeilDiv(n_rows, kTileRows); }
  // Of one tile, whole vectors.
  uint32_t lanes(uint32_t tile) const {
    return RoundUp(std::min(n_rows - tile * kTileRows, kTileRows), kPadFloats);
  }

  // A block's, decoded: [kBlockEntries, dims].
  float* keys() const { return memory; }
  float* values() const { return keys() + kBlockEntries * dims; }
  // Rounded: [kBlockEntries, dims], and [kBlockEntries / 2, dims, 2]; what one stands for, of each key, and
  // of each dimension of the values.
  int16_t* rounded_keys() const { return reinterpret_cast<int16_t*>(values() + kBlockEntries * dims); }
  int16_t* rounded_values() const { return rounded_keys() + kBlockEntries * dims; }
  float* key_steps() const { return values() + 2 * kBlockEntries * dims; }
  float* value_steps() const { return key_steps() + kBlockEntries; }
  float* k_scales() const { return value_steps() + dims; }  // [kBlockEntries, scales of a row]
  float* v_scales() const { return k_scales() + kBlockEntries * kMaxRowScales; }
  // Of the tile that is computed: [kBlockEntries, kTileRows]; then weights, rounded ones as pairs of entries.
  float* scores() const { return v_scales() + kBlockEntries * kMaxRowScales; }
  float* correction() const { return scores() + kBlockEntries * kTileRows; }
  float* factor() const { return correction() + kTileRows; }  // of a block's rounded weights

  // Of each tile: queries scaled for scores, [dims, kTileRows] and, rounded, [dims / 2, kTileRows, 2].
  float* queries(uint32_t tile) const { return factor() + kTileRows + size_t{tile} * tile_floats(); }
  float* rounded_queries(uint32_t tile) const { return queries(tile) + kTileRows * dims; }
  float* sums(uint32_t tile) const { return rounded_queries(tile) + kTileRows * dims; }  // [dims, kTileRows]
  float* maximum(uint32_t tile) const { return sums(tile) + kTileRows * dims; }
  float* weight(uint32_t tile) const { return maximum(tile) + kTileRows; }
  float* query_steps(uint32_t tile) const { return weight(tile) + kTileRows; }
  // Of all of it; there need be no memory yet.
  size_t count() const {
    return size_t{3} * kBlockEntries * dims + kBlockEntries + dims + 2 * kBlockEntries * kMaxRowScales +
           (kBlockEntries + 2) * kTileRows + kMaxAttendRows / kTileRows * tile_floats();
  }

  uint32_t dims;
  uint32_t n_rows;
  float* memory;

 private:
  size_t tile_floats() const { return size_t{kTileRows} * (3 * dims + 3); }
};

constexpr uint32_t RowScales(KvType type, uint32_t head_dim) {
  if (type == KvType::kF16 || type == KvType::kF32) return 0;
  return type == KvType::kInt4 ? CeilDiv(head_dim, kInt4BlockElements) : 1;
}

constexpr size_t RowBytes(KvType type, uint32_t head_dim) {
  return CeilDiv(size_t{head_dim} * KvElementBits(type), size_t{8});
}

}  // namespace kvrun::host
