// Products of 8-bit numbers by Arm's matrix instruction (smmla), two rows by two tokens of eight columns at a
// time. To be included once per target, by matmul_neon-inl.h.
//
// The blocks of an even token and of the next lie as two of these instructions want them, InterleavePairs
// says how. Such a register of sums holds rows r and r + 1 of tokens t and t + 1: (r, t), (r, t + 1), (r + 1,
// t), (r + 1, t + 1).

#if defined(KVRUN_INT8_TILES_NEON_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVRUN_INT8_TILES_NEON_INL_H_
#undef KVRUN_INT8_TILES_NEON_INL_H_
#else
#define KVRUN_INT8_TILES_NEON_INL_H_
#endif

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "runtime/device/host/matmul_vector-inl.h"
#include "runtime/device/host/panel_formats_neon-inl.h"

KVRUN_BEFORE_NAMESPACE();
namespace kvrun::host::HWY_NAMESPACE {

// Halves with minima have so many sums to scale that pairs win nothing.
constexpr bool TakesPairs(TensorType type) { return type != TensorType::kQ2_K; }

// matmul_neon-inl.h
template <TensorType kType, typename Dot, size_t kVectors>
HWY_NOINLINE void AddFineRows(const PanelLayout& layout, const std::byte* panel, const ActivationTile& x,
                              size_t b, size_t row, uint32_t has_fine, bool pairs, FineSums& to);

// Of one vector or four, for which it is compiled.
template <TensorType kType, typename Dot, size_t kVectors>
HWY_INLINE void AddFineBlock(const PanelLayout& layout, const std::byte* panel, const ActivationTile& x,
                             size_t b, size_t row, uint32_t has_fine, bool pairs, FineSums& to) {
  constexpr size_t kAtATime = kVectors == 4 ? 4 : 1;
  for (size_t v = 0; v < kVectors; v += kAtATime)
    AddFineRows<kType, Dot, kAtATime>(layout, panel, x, b, row + v * kLanes, has_fine, pairs, to);
}

// Two of one kind, of the two tokens: in the first block their scales and start[0], in the second their
// scaled sums and start[1].
template <typename T>  // float or int32_t
HWY_INLINE hn::Vec<hn::Repartition<T, DI>> TwiceBoth(const void* at) {
  uint64_t both;
  std::memcpy(&both, at, sizeof(both));
  return hn::BitCast(hn::Repartition<T, DI>(), hn::Set(hn::Repartition<uint64_t, DI>(), both));
}

// Two vectors of two rows each, of one with four.
template <typename V>
struct RowPairs {
  V low;
  V high;
};
HWY_INLINE RowPairs<VF> TwiceEach(VF v) {
  return {VF{vzip1q_f32(v.raw, v.raw)}, VF{vzip2q_f32(v.raw, v.raw)}};
}

// Products of a block of four rows with kPairs pairs of tokens.
template <TensorType kType, size_t kPairs, size_t kVectors>
struct PairProducts {
  using Format = NeonPanelFormat<kType, kVectors>;
  static constexpr bool kMinima = Format::kHasMinimum;
  static constexpr bool kHalves = Format::kHalves;
  static_assert(!(kMinima && kHalves));
  static constexpr bool kStarts = Format::kOffset != 0;
  static constexpr size_t kEights = kHalves ? 2 : 4;  // that one scale holds for

  const PanelLayout& layout;
  const std::byte* panel;
  size_t block;
  size_t row;
  const ActivationBlock* tokens;
  size_t n_blocks;

  HWY_INLINE const ActivationBlock& Even(size_t pair) const { return tokens[2 * pair * n_blocks + block]; }
  HWY_INLINE const ActivationBlock& Odd(size_t pair) const {
    return tokens[(2 * pair + 1) * n_blocks + block];
  }

  // to: [kPairs, 2], of vector v of rows. As MultiplyTile, in the same order.
  HWY_INLINE void Add(const RowScales<kVectors>& scales, size_t v, VF* to) const {
    uint8x16_t weights[8];
    LoadWeights(row + v * kLanes, weights, std::make_integer_sequence<int, 4>());
    VF scaled[2 * kPairs];
    Multiply<0>(weights, scaled);
    Scale(TwiceEach(scales.scale[v]), scaled);
    if constexpr (kHalves) {
      VF second[2 * kPairs];
      Multiply<1>(weights + 4, second);
      AddScaled(TwiceEach(scales.second[v]), second, scaled);
    }
    const RowPairs<VF> minimum = TwiceEach(scales.minimum[v]);
    KVRUN_UNROLL
    for (size_t p = 0; p < kPairs; ++p) {
      const VF by = TwiceBoth<float>(&Even(p).scale);
      to[2 * p] = hn::MulAdd(scaled[2 * p], by, to[2 * p]);
      to[2 * p + 1] = hn::MulAdd(scaled[2 * p + 1], by, to[2 * p + 1]);
      if constexpr (kMinima) {
        const VF sums = TwiceBoth<float>(&Odd(p).scale);
        to[2 * p] = hn::MulAdd(minimum.low, sums, to[2 * p]);
        to[2 * p + 1] = hn::MulAdd(minimum.high, sums, to[2 * p + 1]);
      }
    }
  }

 private:
  template <int... kEight>
  HWY_INLINE void LoadWeights(size_t at, uint8x16_t* out, std::integer_sequence<int, kEight...>) const {
    (ZipGroups<kEight>(at, out), ...);
  }
  // out: [4 times 8 columns, 2]
  template <int kEight>
  HWY_INLINE void ZipGroups(size_t at, uint8x16_t* out) const {
    const uint32x4_t even =
        vreinterpretq_u32_u8(Format::template LoadGroup<2 * kEight>(layout, panel, block, at));
    const uint32x4_t odd =
        vreinterpretq_u32_u8(Format::template LoadGroup<2 * kEight + 1>(layout, panel, block, at));
    out[2 * kEight] = vreinterpretq_u8_u32(vzip1q_u32(even, odd));
    out[2 * kEight + 1] = vreinterpretq_u8_u32(vzip2q_u32(even, odd));
  }

  template <int kHalf>
  HWY_INLINE void Multiply(const uint8x16_t* weights, VF* out) const {
    VI sums[2 * kPairs];
    KVRUN_UNROLL
    for (size_t p = 0; p < kPairs; ++p) {
      const void* start = kHalf == 0 ? Even(p).start : Odd(p).start;
      sums[2 * p] = sums[2 * p + 1] = kStarts ? TwiceBoth<int32_t>(start) : hn::Set(DI(), SmmlaDot::kSumBase);
    }
    KVRUN_UNROLL
    for (size_t p = 0; p < kPairs; p += kPairs < 2 ? 1 : 2) {
      KVRUN_UNROLL
      for (size_t i = 0; i < kEights; ++i) {
        const uint8x16_t* w = weights + 2 * i;
        if constexpr (kPairs < 2)
          SmmlaDot::AddTwo(sums + 2 * p, w, Eight(p, kHalf * kEights + i));
        else
          SmmlaDot::AddFour(sums + 2 * p, w, Eight(p, kHalf * kEights + i),
                            Eight(p + 1, kHalf * kEights + i));
      }
    }
    KVRUN_UNROLL
    for (size_t i = 0; i < 2 * kPairs; ++i) out[i] = SmmlaDot::ToFloats(sums[i]);
  }
  HWY_INLINE int8x16_t Eight(size_t pair, size_t i) const {
    return vld1q_s8((i < 2 ? Even(pair) : Odd(pair)).quants + i % 2 * 16);
  }

  static HWY_INLINE void Scale(RowPairs<VF> by, VF* v) {
    KVRUN_UNROLL
    for (size_t i = 0; i < 2 * kPairs; ++i) v[i] = hn::Mul(v[i], i % 2 == 0 ? by.low : by.high);
  }
  static HWY_INLINE void AddScaled(RowPairs<VF> by, const VF* v, VF* to) {
    KVRUN_UNROLL
    for (size_t i = 0; i < 2 * kPairs; ++i) to[i] = hn::MulAdd(v[i], i % 2 == 0 ? by.low : by.high, to[i]);
  }
};

// kVectors vectors of rows from `row` on, of an even number of tokens.
template <TensorType kType, uint32_t kTokens, size_t kVectors>
HWY_INLINE void MultiplyRowPairs(const PanelLayout& layout, const std::byte* panel, const ActivationTile& x,
                                 size_t row, FineSums& fine, TileSums& sums) {
  using Format = NeonPanelFormat<kType, kVectors>;
  constexpr size_t kSums = kVectors * kTokens;
  const size_t n_blocks = layout.n_blocks;
  const size_t run = Format::kHasSupers ? size_t{kSuperBlocks} : n_blocks;
  VF sum[kSums];  // [kVectors, kTokens / 2, 2]
  KVRUN_UNROLL
  for (VF& one : sum) one = hn::Zero(DF());
  for (size_t first = 0; first < n_blocks; first += run) {
    RowSupers<kVectors> supers;
    Format::LoadSupers(layout, panel, first, row, supers);
    for (size_t b = first; b < first + run; ++b) {
      RowScales<kVectors> scales;
      Format::LoadScales(layout, panel, b, row, supers, scales);
      const PairProducts<kType, kTokens / 2, kVectors> products{layout, panel, b, row, x.blocks, n_blocks};
      KVRUN_UNROLL
      for (size_t v = 0; v < kVectors; ++v) products.Add(scales, v, sum + v * kTokens);
      const uint32_t has_fine = static_cast<uint32_t>(x.has_fine[b]) >> x.first_bit & ((1U << kTokens) - 1);
      if (HWY_UNLIKELY(has_fine != 0)) {
        AddFineBlock<kType, SdotDot, kVectors>(layout, panel, x, b, row, has_fine, true, fine);
      }
    }
  }
  KVRUN_UNROLL
  for (size_t i = 0; i < kSums; i += 2) {
    const size_t at = row + i / kTokens * kLanes;
    VF even{vuzp1q_f32(sum[i].raw, sum[i + 1].raw)};
    VF odd{vuzp2q_f32(sum[i].raw, sum[i + 1].raw)};
    if (fine.are_any) {
      even = hn::Add(even, hn::Load(DF(), fine.sums[i % kTokens] + at));
      odd = hn::Add(odd, hn::Load(DF(), fine.sums[i % kTokens + 1] + at));
    }
    hn::StoreU(even, DF(), sums[i % kTokens] + at);
    hn::StoreU(odd, DF(), sums[i % kTokens + 1] + at);
  }
}

// Turns blocks of a token and of the next into those of a pair: columns 0 to 7 of the one, 0 to 7 of the
// other, 8 to 15 of both, and in the second block those from 16 on.
inline void InterleavePair(ActivationBlock& even, ActivationBlock& odd) {
  const ActivationBlock first = even;
  const ActivationBlock second = odd;
  for (size_t i = 0; i < 2; ++i) {
    std::memcpy(even.quants + 16 * i, first.quants + 8 * i, 8);
    std::memcpy(even.quants + 16 * i + 8, second.quants + 8 * i, 8);
    std::memcpy(odd.quants + 16 * i, first.quants + 16 + 8 * i, 8);
    std::memcpy(odd.quants + 16 * i + 8, second.quants + 16 + 8 * i, 8);
  }
  even.scaled_sum = second.scale;
  odd.scale = first.scaled_sum;
  even.start[1] = second.start[0];
  odd.start[0] = first.start[1];
}

inline void InterleavePairs(size_t n_rows, size_t n_blocks, ActivationBlock* blocks) {
  for (size_t r = 0; r + 1 < n_rows; r += 2) {
    ActivationBlock* even = blocks + r * n_blocks;
    for (size_t b = 0; b < n_blocks; ++b) InterleavePair(even[b], even[n_blocks + b]);
  }
}

}  // namespace kvrun::host::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // KVRUN_INT8_TILES_NEON_INL_H_
