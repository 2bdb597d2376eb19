// Attention of many rows: lanes lie along the rows, and each block is decoded once for all of them.
// Compiled once for each instruction set, hence the guard.
#if defined(KVRUN_HOST_ATTEND_MANY_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVRUN_HOST_ATTEND_MANY_INL_H_
#undef KVRUN_HOST_ATTEND_MANY_INL_H_
#else
#define KVRUN_HOST_ATTEND_MANY_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "runtime/device/host/attend_elements-inl.h"
#include "runtime/device/host/vector_math-inl.h"

// Loops over arrays of vectors must be unrolled, or the arrays lie in memory.
#undef KVRUN_UNROLL_ATTEND
#if defined(__clang__)
#define KVRUN_UNROLL_ATTEND _Pragma("clang loop unroll(full)")
#else
#define KVRUN_UNROLL_ATTEND _Pragma("GCC unroll 4")
#endif

HWY_BEFORE_NAMESPACE();
namespace kvrun::host::HWY_NAMESPACE {

// A tile's rows, and how many of a block's entries these see.
struct Tile {
  uint32_t index = 0;
  uint32_t lanes = 0;
  size_t n_entries = 0;
  const float* visible = nullptr;  // of each lane, as a number
  const float* hidden = nullptr;   // likewise; null: nothing is
};

// Lanes that see all entries need no mask.
HWY_INLINE bool SeesAll(const Tile& tile, size_t lane) {
  const Floats d;
  return hn::AllTrue(
      d, hn::Ge(hn::Load(d, tile.visible + lane), hn::Set(d, static_cast<float>(tile.n_entries))));
}

// What is hidden from lanes.
HWY_NOINLINE void MaskHidden(const Tile& tile, size_t lane, float* HWY_RESTRICT scores) {
  const Floats d;
  const Vector hidden = hn::Load(d, tile.hidden + lane);
  const auto most = static_cast<size_t>(hn::GetLane(hn::MaxOfLanes(d, hidden)));
  for (size_t entry = 0; entry < HWY_MIN(most, tile.n_entries); ++entry) {
    const auto is_hidden = hn::Lt(hn::Set(d, static_cast<float>(entry)), hidden);
    const Vector score = hn::Load(d, scores + entry * kTileRows);
    hn::Store(hn::IfThenElse(is_hidden, hn::Set(d, kMaskedScore), score), d, scores + entry * kTileRows);
  }
}

// Masks what is not seen; the largest score, for rows that see nothing more than any of theirs.
HWY_INLINE Vector MaskAndFindLargest(const Tile& tile, size_t lane, float* HWY_RESTRICT scores) {
  const Floats d;
  const Vector last = hn::Load(d, tile.visible + lane);
  const Vector masked = hn::Set(d, kMaskedScore);
  const bool sees_all = SeesAll(tile, lane);
  if (HWY_UNLIKELY(tile.hidden != nullptr)) MaskHidden(tile, lane, scores);
  Vector largest = hn::Set(d, 0.5F * kMaskedScore);
  for (size_t entry = 0; entry < tile.n_entries; ++entry) {
    Vector score = hn::Load(d, scores + entry * kTileRows);
    if (!sees_all) {
      score = hn::IfThenElse(hn::Lt(hn::Set(d, static_cast<float>(entry)), last), score, masked);
      hn::Store(score, d, scores + entry * kTileRows);
    }
    largest = hn::Max(largest, score);
  }
  return largest;
}

// Products of four rows of numbers from `left` (one number after the other) with vectors of `right`:
// to[j][v] += left[j * left_stride + i * left_step] * right[i][v], for i below `count`.
template <size_t kVectors>
HWY_INLINE void Multiply(const float* HWY_RESTRICT left, size_t left_stride, size_t left_step,
                         const float* HWY_RESTRICT right, size_t count, Vector (&to)[4][kVectors]) {
  const Floats d;
  for (size_t i = 0; i < count; ++i) {
    Vector vectors[kVectors];
    KVRUN_UNROLL_ATTEND
    for (size_t v = 0; v < kVectors; ++v) vectors[v] = hn::Load(d, right + i * kTileRows + v * kLanes);
    KVRUN_UNROLL_ATTEND
    for (size_t j = 0; j < 4; ++j) {
      const Vector number = hn::Set(d, left[j * left_stride + i * left_step]);
      KVRUN_UNROLL_ATTEND
      for (size_t v = 0; v < kVectors; ++v) to[j][v] = hn::MulAdd(number, vectors[v], to[j][v]);
    }
  }
}

// scores[entry][lane], of kVectors vectors of rows from `lane` on. Keys beyond the last entry are zeros.
template <size_t kVectors>
HWY_NOINLINE void ScoreMany(const ManyLayout& at, const Tile& tile, size_t head_dim, size_t lane) {
  const Floats d;
  for (size_t entry = 0; entry < tile.n_entries; entry += 4) {
    Vector scores[4][kVectors];
    KVRUN_UNROLL_ATTEND
    for (size_t j = 0; j < 4; ++j) KVRUN_UNROLL_ATTEND
    for (size_t v = 0; v < kVectors; ++v) scores[j][v] = hn::Zero(d);
    Multiply<kVectors>(at.keys() + entry * at.dims, at.dims, 1, at.queries(tile.index) + lane, head_dim,
                       scores);
    KVRUN_UNROLL_ATTEND
    for (size_t j = 0; j < 4; ++j) KVRUN_UNROLL_ATTEND
    for (size_t v = 0; v < kVectors; ++v)
      hn::Store(scores[j][v], d, at.scores() + (entry + j) * kTileRows + lane + v * kLanes);
  }
}

template <size_t kVectors>
HWY_NOINLINE void AccumulateMany(const ManyLayout& at, const Tile& tile, size_t head_dim, size_t lane) {
  const Floats d;
  for (size_t i = 0; i < head_dim; i += 4) {
    Vector sums[4][kVectors];
    float* HWY_RESTRICT to = at.sums(tile.index) + i * kTileRows + lane;
    KVRUN_UNROLL_ATTEND
    for (size_t v = 0; v < kVectors; ++v) {
      const Vector correction = hn::Load(d, at.correction() + lane + v * kLanes);
      KVRUN_UNROLL_ATTEND
      for (size_t j = 0; j < 4; ++j)
        sums[j][v] = hn::Mul(hn::Load(d, to + j * kTileRows + v * kLanes), correction);
    }
    Multiply<kVectors>(at.values() + i, 1, at.dims, at.scores() + lane, tile.n_entries, sums);
    KVRUN_UNROLL_ATTEND
    for (size_t j = 0; j < 4; ++j) KVRUN_UNROLL_ATTEND
    for (size_t v = 0; v < kVectors; ++v) hn::Store(sums[j][v], d, to + j * kTileRows + v * kLanes);
  }
}

// A vector of rows from `lane` on: scores to weights.
HWY_NOINLINE void SoftmaxMany(const ManyLayout& at, const Tile& tile, size_t lane) {
  const Floats d;
  float* HWY_RESTRICT scores = at.scores() + lane;
  const Vector before = hn::Load(d, at.maximum(tile.index) + lane);
  const Vector maximum = hn::Max(before, MaskAndFindLargest(tile, lane, scores));
  const Vector correction = Exp2(d, hn::Sub(before, maximum));
  const Vector unseen = hn::Set(d, 0.5F * kMaskedScore);
  Vector weight = hn::Mul(hn::Load(d, at.weight(tile.index) + lane), correction);
  for (size_t entry = 0; entry < tile.n_entries; ++entry) {
    const Vector score = hn::Load(d, scores + entry * kTileRows);
    // Exactly nothing of what is not seen; what is not a number stays so.
    const Vector one = hn::IfThenZeroElse(hn::Lt(score, unseen), Exp2(d, hn::Sub(score, maximum)));
    hn::Store(one, d, scores + entry * kTileRows);
    weight = hn::Add(weight, one);
  }
  hn::Store(maximum, d, at.maximum(tile.index) + lane);
  hn::Store(weight, d, at.weight(tile.index) + lane);
  hn::Store(correction, d, at.correction() + lane);
}

// Calls function.template operator()<vectors>(lane) for all lanes of a tile.
template <class F>
HWY_INLINE void ForLanes(uint32_t lanes, const F& function) {
  constexpr size_t kMost = kManyRegisters ? 4 : 2;
  size_t lane = 0;
  const auto run = [&]<size_t kVectors>() {
    for (; lane + kVectors * kLanes <= lanes; lane += kVectors * kLanes)
      function.template operator()<kVectors>(lane);
  };
  run.template operator()<kMost>();
  if constexpr (kMost > 2) run.template operator()<2>();
  run.template operator()<1>();
}

// biases: of each entry.
void AddBiasesMany(const ManyLayout& at, const Tile& tile, const float* biases) {
  const Floats d;
  for (size_t entry = 0; entry < tile.n_entries; ++entry) {
    const Vector bias = hn::Set(d, biases[entry] * std::numbers::log2e_v<float>);
    float* HWY_RESTRICT scores = at.scores() + entry * kTileRows;
    for (size_t lane = 0; lane < tile.lanes; lane += kLanes)
      hn::Store(hn::Add(hn::Load(d, scores + lane), bias), d, scores + lane);
  }
}

// score_cap is above 0.
HWY_NOINLINE void CapMany(const ManyLayout& at, const Tile& tile, float score_cap) {
  const Floats d;
  const float cap = score_cap * std::numbers::log2e_v<float>;
  for (size_t entry = 0; entry < tile.n_entries; ++entry) {
    float* HWY_RESTRICT scores = at.scores() + entry * kTileRows;
    for (size_t lane = 0; lane < tile.lanes; lane += kLanes)
      hn::Store(Capped(d, hn::Load(d, scores + lane), cap), d, scores + lane);
  }
}

// biases: null where there are none.
void AttendTile(const AttendRows& rows, const ManyLayout& at, const Tile& tile, const float* biases) {
  const size_t head_dim = rows.head_dim;
  ForLanes(tile.lanes, [&]<size_t kVectors>(size_t lane) { ScoreMany<kVectors>(at, tile, head_dim, lane); });
  if (rows.score_cap > 0.0F) CapMany(at, tile, rows.score_cap);
  if (biases != nullptr) AddBiasesMany(at, tile, biases);
  for (size_t lane = 0; lane < tile.lanes; lane += kLanes) SoftmaxMany(at, tile, lane);
  ForLanes(tile.lanes,
           [&]<size_t kVectors>(size_t lane) { AccumulateMany<kVectors>(at, tile, head_dim, lane); });
}

// A block's keys and values to numbers; rows of zeros up to a multiple of four.
void DecodeKeysAndValues(const ManyLayout& at, const KvBlock& block, size_t head_dim) {
  const size_t n = block.n_entries;
  const size_t missing = RoundUp<size_t>(n, 4) - n;
  DecodeBlock(block.k_type, block.k, at.k_scales(), n, head_dim, at.keys());
  DecodeBlock(block.v_type, block.v, at.v_scales(), n, head_dim, at.values());
  std::memset(at.keys() + n * at.dims, 0, missing * at.dims * sizeof(float));
  std::memset(at.values() + n * at.dims, 0, missing * at.dims * sizeof(float));
}

// Which rows of a block: those that see all of it, those that see a part, or both.
enum class Seen { kAny, kWhole, kPart };

// How many entries a row is taken to see. What is hidden from it counts, but where it is all.
HWY_INLINE uint32_t VisibleAs(Seen seen, uint32_t visible, uint32_t hidden) {
  if (hidden >= visible) return 0;
  const bool sees_whole = visible >= kBlockEntries && hidden == 0;
  return seen == Seen::kAny || (seen == Seen::kWhole) == sees_whole ? visible : 0;
}

// function(Tile) for each tile that sees anything of a block; rows other than `seen` are as if they saw
// nothing.
template <class F>
HWY_INLINE void ForTiles(const ManyLayout& at, const KvBlock& block, Seen seen, const F& function) {
  alignas(64) float visible[kTileRows];
  alignas(64) float hidden[kTileRows];
  for (uint32_t index = 0; index < at.n_tiles(); ++index) {
    const uint32_t first = index * kTileRows;
    const uint32_t n_rows = std::min(at.n_rows - first, kTileRows);
    uint32_t n_entries = 0;
    uint32_t most_hidden = 0;
    for (uint32_t r = 0; r < n_rows; ++r) {
      const uint32_t of_row_hidden = block.has_hidden ? block.hidden[first + r] : 0;
      const uint32_t of_row = VisibleAs(seen, block.visible[first + r], of_row_hidden);
      n_entries = std::max(n_entries, of_row);
      visible[r] = static_cast<float>(of_row);
      if (!block.has_hidden) continue;
      if (of_row > 0) most_hidden = std::max(most_hidden, of_row_hidden);
      hidden[r] = static_cast<float>(of_row_hidden);
    }
    n_entries = std::min(n_entries, block.n_entries);
    if (n_entries == 0) continue;
    std::fill(visible + n_rows, visible + kTileRows, static_cast<float>(kBlockEntries));
    if (most_hidden > 0) std::fill(hidden + n_rows, hidden + kTileRows, 0.0F);
    function(Tile{.index = index,
                  .lanes = at.lanes(index),
                  .n_entries = n_entries,
                  .visible = visible,
                  .hidden = most_hidden > 0 ? hidden : nullptr});
  }
}

void AttendMany(const AttendRows& rows, const KvBlock& block) {
  const ManyLayout at(rows);
  DecodeKeysAndValues(at, block, rows.head_dim);
  const float* biases = block.has_biases ? block.biases : nullptr;
  ForTiles(at, block, Seen::kAny, [&](const Tile& tile) { AttendTile(rows, at, tile, biases); });
}

void BeginTile(const ManyLayout& at, uint32_t tile) {
  std::fill_n(at.sums(tile), kTileRows * at.dims, 0.0F);
  std::fill_n(at.maximum(tile), kTileRows, kMaskedScore);
  std::fill_n(at.weight(tile), kTileRows, 0.0F);
}

// Four rows of four numbers each, at strides of their own, to columns. What is between 1 and 4 vectors wide
// elsewhere is four numbers wide here: on every target, and a line of the cache is written in few turns.
HWY_INLINE void TransposeFour(const float* const* from, float scale, size_t to_stride,
                              float* HWY_RESTRICT to) {
#if HWY_TARGET == HWY_SCALAR
  for (size_t i = 0; i < 4; ++i) {
    for (size_t r = 0; r < 4; ++r) to[i * to_stride + r] = from[r][i] * scale;
  }
#else
  const hn::FixedTag<float, 4> d;
  const auto factor = hn::Set(d, scale);
  const auto a = hn::Mul(hn::LoadU(d, from[0]), factor);
  const auto b = hn::Mul(hn::LoadU(d, from[1]), factor);
  const auto c = hn::Mul(hn::LoadU(d, from[2]), factor);
  const auto e = hn::Mul(hn::LoadU(d, from[3]), factor);
  const auto ac_low = hn::InterleaveLower(d, a, c);  // a0 c0 a1 c1
  const auto be_low = hn::InterleaveLower(d, b, e);
  const auto ac_high = hn::InterleaveUpper(d, a, c);
  const auto be_high = hn::InterleaveUpper(d, b, e);
  hn::StoreU(hn::InterleaveLower(d, ac_low, be_low), d, to);  // a0 b0 c0 e0
  hn::StoreU(hn::InterleaveUpper(d, ac_low, be_low), d, to + to_stride);
  hn::StoreU(hn::InterleaveLower(d, ac_high, be_high), d, to + 2 * to_stride);
  hn::StoreU(hn::InterleaveUpper(d, ac_high, be_high), d, to + 3 * to_stride);
#endif
}

// rows of `count` numbers, n (up to kTileRows) of them, times `scale`, to [count, kTileRows].
HWY_NOINLINE void RowsToLanes(const float* const* rows, uint32_t n, uint32_t count, float scale,
                              float* HWY_RESTRICT to) {
  const uint32_t whole = count / 4 * 4;
  uint32_t r = 0;
  for (; r + 4 <= n; r += 4) {
    const float* from[4] = {rows[r], rows[r + 1], rows[r + 2], rows[r + 3]};
    for (uint32_t i = 0; i < whole; i += 4) {
      TransposeFour(from, scale, kTileRows, to + size_t{i} * kTileRows + r);
      for (const float*& row : from) row += 4;
    }
    for (uint32_t i = whole; i < count; ++i) {
      for (uint32_t k = 0; k < 4; ++k) to[size_t{i} * kTileRows + r + k] = rows[r + k][i] * scale;
    }
  }
  for (; r < n; ++r) {
    for (uint32_t i = 0; i < count; ++i) to[size_t{i} * kTileRows + r] = rows[r][i] * scale;
  }
}

// And back: lanes of [count, kTileRows] to rows.
HWY_NOINLINE void LanesToRows(const float* HWY_RESTRICT from, uint32_t n, uint32_t count,
                              float* const* rows) {
  alignas(16) float turned[16];
  const uint32_t whole = count / 4 * 4;
  uint32_t r = 0;
  for (; r + 4 <= n; r += 4) {
    for (uint32_t i = 0; i < whole; i += 4) {
      const float* const at = from + size_t{i} * kTileRows + r;
      const float* const columns[4] = {at, at + kTileRows, at + 2 * kTileRows, at + 3 * kTileRows};
      TransposeFour(columns, 1.0F, 4, turned);
      for (uint32_t k = 0; k < 4; ++k) std::copy_n(turned + size_t{4} * k, 4, rows[r + k] + i);
    }
    for (uint32_t i = whole; i < count; ++i) {
      for (uint32_t k = 0; k < 4; ++k) rows[r + k][i] = from[size_t{i} * kTileRows + r + k];
    }
  }
  for (; r < n; ++r) {
    for (uint32_t i = 0; i < count; ++i) rows[r][i] = from[size_t{i} * kTileRows + r];
  }
}

// before: what rows had before, as EndMany left it; null: nothing.
void BeginMany(const AttendRows& rows, const float* const* queries, const float* const* before) {
  const ManyLayout at(rows);
  const uint32_t dim = rows.head_dim;
  const float scale = ScoreFactor(rows, std::numbers::log2e_v<float>);
  for (uint32_t tile = 0; tile < at.n_tiles(); ++tile) {
    const uint32_t first = tile * kTileRows;
    const uint32_t n = std::min(at.n_rows - first, kTileRows);
    BeginTile(at, tile);
    float* const to = at.queries(tile);
    RowsToLanes(queries + first, n, dim, scale, to);
    const uint32_t missing = at.lanes(tile) - n;
    for (uint32_t i = 0; missing > 0 && i < dim; ++i)
      std::fill_n(to + size_t{i} * kTileRows + n, missing, 0.0F);
    if (before == nullptr) continue;
    RowsToLanes(before + first, n, dim, 1.0F, at.sums(tile));
    for (uint32_t r = 0; r < n; ++r) {
      at.maximum(tile)[r] = before[first + r][dim];
      at.weight(tile)[r] = before[first + r][dim + 1];
    }
  }
}

void EndMany(const AttendRows& rows, float* const* parts) {
  const ManyLayout at(rows);
  const uint32_t dim = rows.head_dim;
  for (uint32_t tile = 0; tile < at.n_tiles(); ++tile) {
    const uint32_t first = tile * kTileRows;
    const uint32_t n = std::min(at.n_rows - first, kTileRows);
    LanesToRows(at.sums(tile), n, dim, parts + first);
    for (uint32_t r = 0; r < n; ++r) {
      parts[first + r][dim] = at.maximum(tile)[r];
      parts[first + r][dim + 1] = at.weight(tile)[r];
    }
  }
}

}  // namespace kvrun::host::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // KVRUN_HOST_ATTEND_MANY_INL_H_
