// Attention of many rows with Q, K, V and weights rounded to whole numbers of 16 bits, two products of which
// one instruction adds in 32: half as many as of floats. Compiled once for each instruction set, hence the
// guard.
//
// No sum can overflow: a query and a key are scaled to a length of 32,700, which bounds their product; the
// weights of a block are at most 8,191 and its values 4,095, and there are 64 of them. Rounding is finer than
// that of f16 for what matters: of Q and K 2^-15 of the vector's length, of weights 2^-14 of the row's
// largest in the block, of V 2^-13 of the dimension's largest in the block.
#if defined(KVRUN_HOST_ATTEND_ROUNDED_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVRUN_HOST_ATTEND_ROUNDED_INL_H_
#undef KVRUN_HOST_ATTEND_ROUNDED_INL_H_
#else
#define KVRUN_HOST_ATTEND_ROUNDED_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "runtime/device/host/attend_many-inl.h"
#include "runtime/device/host/rounded_pairs-inl.h"

#if KVRUN_ATTENDS_ROUNDED

HWY_BEFORE_NAMESPACE();
namespace kvrun::host::HWY_NAMESPACE {

constexpr float kRoundedWeight = 8191.0F;
constexpr float kRoundedValue = 4095.0F;
static_assert(int64_t{8191} * 4095 * kBlockEntries < int64_t{1} << 31);

// [n_entries (even), dims] to pairs [n_entries / 2, dims, 2].
void RoundValues(const float* HWY_RESTRICT from, size_t n_entries, size_t dims, int16_t* HWY_RESTRICT to,
                 float* HWY_RESTRICT steps) {
  const Floats d;
  const Vector to_low_bits = hn::Set(d, kToLowBits);
  for (size_t i = 0; i < dims; i += kLanes) {
    Vector largest = hn::Zero(d);
    Vector zeros = hn::Zero(d);  // not a number where one of them is none
    for (size_t entry = 0; entry < n_entries; ++entry) {
      const Vector value = hn::Load(d, from + entry * dims + i);
      largest = hn::Max(hn::Abs(value), largest);
      zeros = hn::MulAdd(value, hn::Zero(d), zeros);
    }
    const Vector step = hn::MulAdd(largest, hn::Set(d, 1.0F / kRoundedValue), zeros);
    hn::Store(step, d, steps + i);
    const Vector inverse = InverseOf(step);
    for (size_t entry = 0; entry < n_entries; entry += 2) {
      const Vector first = hn::MulAdd(hn::Load(d, from + entry * dims + i), inverse, to_low_bits);
      const Vector second = hn::MulAdd(hn::Load(d, from + (entry + 1) * dims + i), inverse, to_low_bits);
      hn::Store(MakePairs(first, second), Ints(), reinterpret_cast<int32_t*>(to) + entry / 2 * dims + i);
    }
  }
}

// to[j * kVectors + v] = sum of the pairs left[j * left_stride + i * left_step] times right[i][v], for i
// below `count`. Strides are of pairs.
template <size_t kVectors>
HWY_INLINE void MultiplyPairs(const int16_t* HWY_RESTRICT left, size_t left_stride, size_t left_step,
                              const int32_t* HWY_RESTRICT right, size_t count,
                              IntVector (&to)[4 * kVectors]) {
  const Ints d;
  IntVector sums[4 * kVectors];
  ForConstants<4 * kVectors>([&](auto k) { sums[k] = hn::Zero(d); });
  for (size_t i = 0; i < count; ++i) {
    IntVector vectors[kVectors];
    ForConstants<kVectors>([&](auto v) { vectors[v] = hn::Load(d, right + i * kTileRows + v * kLanes); });
    ForConstants<4>([&](auto j) {
      const IntVector pair = PairOf(left + 2 * (j * left_stride + i * left_step));
      ForConstants<kVectors>(
          [&](auto v) { sums[j * kVectors + v] = AddPairs(sums[j * kVectors + v], vectors[v], pair); });
    });
  }
  ForConstants<4 * kVectors>([&](auto k) { to[k] = sums[k]; });
}

template <size_t kVectors>
HWY_NOINLINE void ScoreRounded(const ManyLayout& at, const Tile& tile, size_t head_dim, size_t lane) {
  const Floats d;
  Vector query_steps[kVectors];
  KVRUN_UNROLL_ATTEND
  for (size_t v = 0; v < kVectors; ++v)
    query_steps[v] = hn::Load(d, at.query_steps(tile.index) + lane + v * kLanes);
  for (size_t entry = 0; entry < tile.n_entries; entry += 4) {
    IntVector products[4 * kVectors];
    MultiplyPairs<kVectors>(at.rounded_keys() + entry * at.dims, at.dims / 2, 1,
                            reinterpret_cast<const int32_t*>(at.rounded_queries(tile.index)) + lane,
                            CeilDiv<size_t>(head_dim, 2), products);
    KVRUN_UNROLL_ATTEND
    for (size_t j = 0; j < 4; ++j) {
      const Vector key_step = hn::Set(d, at.key_steps()[entry + j]);
      KVRUN_UNROLL_ATTEND
      for (size_t v = 0; v < kVectors; ++v) {
        const Vector score =
            hn::Mul(hn::ConvertTo(d, products[j * kVectors + v]), hn::Mul(query_steps[v], key_step));
        hn::Store(score, d, at.scores() + (entry + j) * kTileRows + lane + v * kLanes);
      }
    }
  }
}

// A vector of rows from `lane` on: scores to pairs of weights that are relative to the block's largest.
HWY_NOINLINE void SoftmaxRounded(const ManyLayout& at, const Tile& tile, size_t lane) {
  const Floats d;
  float* HWY_RESTRICT scores = at.scores() + lane;
  const Vector largest = MaskAndFindLargest(tile, lane, scores);
  const Vector before = hn::Load(d, at.maximum(tile.index) + lane);
  const Vector maximum = hn::Max(before, largest);
  const Vector correction = Exp2(d, hn::Sub(before, maximum));
  // So small weighs nothing beside a row's largest; any smaller, products would not be normal numbers, which
  // take some processors a hundred times as long.
  const Vector least = hn::Set(d, -80.0F);
  const Vector below = hn::Sub(largest, maximum);
  const Vector bounded = hn::IfThenElse(hn::Lt(below, least), least, below);
  Vector factor = hn::Mul(Exp2(d, bounded), hn::Set(d, 1.0F / kRoundedWeight));
  const Vector to_low_bits = hn::Set(d, kToLowBits);
  const Vector weight_one = hn::Set(d, kRoundedWeight);
  Vector zeros = hn::Zero(d);  // not a number where a score is none: whole numbers cannot say so
  const auto round = [&](size_t entry) HWY_ATTR {
    const Vector score = hn::Load(d, scores + entry * kTileRows);
    zeros = hn::MulAdd(score, hn::Zero(d), zeros);
    return hn::MulAdd(Exp2Near(d, hn::Sub(score, largest)), weight_one, to_low_bits);
  };
  const IntVector ones = hn::Set(Ints(), 0x10001);
  IntVector sum = hn::Zero(Ints());
  for (size_t entry = 0; entry < tile.n_entries; entry += 2) {
    const Vector first = round(entry);
    // Beyond the last: a weight of 0.
    const Vector second = entry + 1 < tile.n_entries ? round(entry + 1) : to_low_bits;
    const IntVector pair = MakePairs(first, second);
    sum = AddPairs(sum, pair, ones);
    hn::Store(pair, Ints(), reinterpret_cast<int32_t*>(scores) + entry / 2 * kTileRows);
  }
  factor = hn::Add(factor, zeros);
  const Vector weight = hn::MulAdd(hn::Load(d, at.weight(tile.index) + lane), correction,
                                   hn::Mul(hn::ConvertTo(d, sum), factor));
  hn::Store(maximum, d, at.maximum(tile.index) + lane);
  hn::Store(weight, d, at.weight(tile.index) + lane);
  hn::Store(correction, d, at.correction() + lane);
  hn::Store(factor, d, at.factor() + lane);
}

template <size_t kVectors>
HWY_NOINLINE void AccumulateRounded(const ManyLayout& at, const Tile& tile, size_t head_dim, size_t lane) {
  const Floats d;
  Vector corrections[kVectors];
  Vector factors[kVectors];
  KVRUN_UNROLL_ATTEND
  for (size_t v = 0; v < kVectors; ++v) {
    corrections[v] = hn::Load(d, at.correction() + lane + v * kLanes);
    factors[v] = hn::Load(d, at.factor() + lane + v * kLanes);
  }
  for (size_t i = 0; i < head_dim; i += 4) {
    IntVector products[4 * kVectors];
    MultiplyPairs<kVectors>(at.rounded_values() + 2 * i, 1, at.dims,
                            reinterpret_cast<const int32_t*>(at.scores()) + lane,
                            CeilDiv<size_t>(tile.n_entries, 2), products);
    float* HWY_RESTRICT to = at.sums(tile.index) + i * kTileRows + lane;
    KVRUN_UNROLL_ATTEND
    for (size_t j = 0; j < 4; ++j, to += kTileRows) {
      const Vector step = hn::Set(d, at.value_steps()[i + j]);
      KVRUN_UNROLL_ATTEND
      for (size_t v = 0; v < kVectors; ++v) {
        const Vector sum = hn::Mul(hn::Load(d, to + v * kLanes), corrections[v]);
        const Vector product = hn::Mul(hn::ConvertTo(d, products[j * kVectors + v]), step);
        hn::Store(hn::MulAdd(product, factors[v], sum), d, to + v * kLanes);
      }
    }
  }
}

// Values are rounded to steps of the block's largest, and entries that a row does not see must not matter to
// it. So a row is rounded in the blocks of which it sees all, and not in its last one, nor in a window's
// first, of which it sees a part.
void AttendRounded(const AttendRows& rows, const KvBlock& block) {
  const ManyLayout at(rows);
  const size_t head_dim = rows.head_dim;
  DecodeKeysAndValues(at, block, head_dim);
  ForTiles(at, block, Seen::kPart, [&](const Tile& tile) { AttendTile(rows, at, tile, nullptr); });
  if (block.n_entries < kBlockEntries) return;
  RoundRows(at.keys(), kBlockEntries, at.dims, at.rounded_keys(), at.key_steps());
  RoundValues(at.values(), kBlockEntries, at.dims, at.rounded_values(), at.value_steps());
  ForTiles(at, block, Seen::kWhole, [&](const Tile& tile) {
    ForLanes(tile.lanes,
             [&]<size_t kVectors>(size_t lane) { ScoreRounded<kVectors>(at, tile, head_dim, lane); });
    if (rows.score_cap > 0.0F) CapMany(at, tile, rows.score_cap);
    for (size_t lane = 0; lane < tile.lanes; lane += kLanes) SoftmaxRounded(at, tile, lane);
    ForLanes(tile.lanes,
             [&]<size_t kVectors>(size_t lane) { AccumulateRounded<kVectors>(at, tile, head_dim, lane); });
  });
}

// Beside BeginMany. Room for what it needs is where a block will be.
void BeginRounded(const AttendRows& rows, const float* const* queries) {
  const ManyLayout at(rows);
  const float scale = ScoreFactor(rows, std::numbers::log2e_v<float>);
  const size_t n_pairs = CeilDiv<size_t>(rows.head_dim, 2);
  for (uint32_t tile = 0; tile < at.n_tiles(); ++tile) {
    const uint32_t first = tile * kTileRows;
    const uint32_t n = std::min(at.n_rows - first, kTileRows);
    std::fill_n(at.keys(), kTileRows * at.dims, 0.0F);
    for (uint32_t r = 0; r < n; ++r) std::copy_n(queries[first + r], rows.head_dim, at.keys() + r * at.dims);
    RoundRows(at.keys(), kTileRows, at.dims, at.rounded_keys(), at.query_steps(tile));
    for (uint32_t r = 0; r < kTileRows; ++r) at.query_steps(tile)[r] *= scale;
    const auto* HWY_RESTRICT from = reinterpret_cast<const int32_t*>(at.rounded_keys());
    auto* HWY_RESTRICT to = reinterpret_cast<int32_t*>(at.rounded_queries(tile));
    for (size_t i = 0; i < n_pairs; ++i, to += kTileRows) {
      for (size_t r = 0; r < kTileRows; ++r) to[r] = from[r * at.dims / 2 + i];
    }
  }
}

}  // namespace kvrun::host::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // KVRUN_ATTENDS_ROUNDED

#endif  // KVRUN_HOST_ATTEND_ROUNDED_INL_H_
