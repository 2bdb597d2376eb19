// The inner loops of matmul_vector-inl.h on 64-bit Arm, whose vectors hold four rows: of one token, all
// sixteen rows of a panel go by at a time, so that activations are read once and lines of the cache once.
// That file includes it, once per target.

#if defined(KVRUN_MATMUL_NEON_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVRUN_MATMUL_NEON_INL_H_
#undef KVRUN_MATMUL_NEON_INL_H_
#else
#define KVRUN_MATMUL_NEON_INL_H_
#endif

#include <hwy/highway.h>

#include <cstring>
#include <type_traits>

#include "runtime/device/host/int8_tiles_neon-inl.h"
#include "runtime/device/host/matmul_vector-inl.h"
#include "runtime/device/host/panel_formats_neon-inl.h"

KVRUN_BEFORE_NAMESPACE();
namespace kvrun::host::HWY_NAMESPACE {

// How many vectors of rows a tile has: as many as leave half the registers for sums and scales.
constexpr size_t TileVectors(uint32_t n_tokens) {
  return n_tokens == 8 ? 1 : n_tokens == 4 ? 2 : kPanelRows / kLanes;
}

// kSums products of a block of four rows each: sum i is of vector i / kSame of rows, from kVector on, and of
// token kToken
// + i % kSame.
template <TensorType kType, typename Dot, size_t kVectors>
struct BlockProducts {
  using Format = NeonPanelFormat<kType, kVectors>;
  static constexpr bool kMinima = Format::kHasMinimum;
  static constexpr bool kHalves = Format::kHalves;
  static constexpr bool kStarts = Format::kOffset != 0;

  const PanelLayout& layout;
  const std::byte* panel;
  size_t block;
  size_t row;
  const RowScales<kVectors>& scales;

  // The same as ScaledProducts, of kSums, and then the products of MultiplyTile.
  template <size_t kSums, size_t kSame>
  HWY_INLINE void Add(const ActivationBlock* const* tokens, size_t vector, VF* to) const {
    constexpr int kFirstGroups = kHalves ? 4 : 8;
    VF scaled[kSums];
    Products<0, kFirstGroups, kSums, kSame>(tokens, vector, scaled);
    KVRUN_UNROLL
    for (size_t i = 0; i < kSums; ++i) scaled[i] = hn::Mul(scaled[i], scales.scale[vector + i / kSame]);
    if constexpr (kHalves) {
      VF second[kSums];
      Products<4, 4, kSums, kSame>(tokens, vector, second);
      KVRUN_UNROLL
      for (size_t i = 0; i < kSums; ++i) {
        const size_t v = vector + i / kSame;
        scaled[i] = hn::MulAdd(second[i], scales.second[v], scaled[i]);
        if constexpr (kMinima) {
          const float32x2_t sums = vcvt_f32_s32(vld1_s32(tokens[i % kSame]->start));
          scaled[i].raw = vfmaq_lane_f32(scaled[i].raw, scales.minimum[v].raw, sums, 0);
          scaled[i].raw = vfmaq_lane_f32(scaled[i].raw, scales.second_minimum[v].raw, sums, 1);
        }
      }
    }
    KVRUN_UNROLL
    for (size_t i = 0; i < kSums; ++i) {
      const ActivationBlock& a = *tokens[i % kSame];
      to[i] = hn::MulAdd(scaled[i], hn::Set(DF(), a.scale), to[i]);
      if constexpr (kMinima && !kHalves) {
        to[i] = hn::MulAdd(scales.minimum[vector + i / kSame], hn::Set(DF(), a.scaled_sum), to[i]);
      }
    }
  }

 private:
  template <int kFirst, int kGroups, size_t kSums, size_t kSame>
  HWY_INLINE void Products(const ActivationBlock* const* tokens, size_t vector, VF* out) const {
    VI sums[kSums];
    const int8_t* quants[kSums];
    KVRUN_UNROLL
    for (size_t i = 0; i < kSums; ++i) {
      const ActivationBlock& a = *tokens[i % kSame];
      quants[i] = a.quants;
      sums[i] = hn::Set(DI(), kStarts ? a.start[kFirst / 4] : Dot::kSumBase);
    }
    const auto weights = [&](auto g, size_t i) {
      return Format::template LoadGroup<decltype(g)::value>(layout, panel, block,
                                                            row + (vector + i / kSame) * kLanes);
    };
    Dot::template AddColumns<Format::kBits, kFirst, kGroups, kSums>(sums, weights, quants);
    KVRUN_UNROLL
    for (size_t i = 0; i < kSums; ++i) out[i] = Dot::ToFloats(sums[i]);
  }
};

// AddFine of kVectors vectors of rows. pairs: the tokens' blocks are those of pairs.
template <TensorType kType, typename Dot, size_t kVectors>
HWY_NOINLINE void AddFineRows(const PanelLayout& layout, const std::byte* panel, const ActivationTile& x,
                              size_t b, size_t row, uint32_t has_fine, bool pairs, FineSums& to) {
  using Format = NeonPanelFormat<kType, kVectors>;
  if (!to.are_any) std::memset(to.sums, 0, sizeof(to.sums));
  to.are_any = true;
  RowSupers<kVectors> supers;
  Format::LoadSupers(layout, panel, b, row, supers);
  RowScales<kVectors> scales;
  Format::LoadScales(layout, panel, b, row, supers, scales);
  const BlockProducts<kType, Dot, kVectors> products{layout, panel, b, row, scales};
  for (; has_fine != 0; has_fine &= has_fine - 1) {
    const auto t = static_cast<size_t>(hwy::Num0BitsBelowLS1Bit_Nonzero32(has_fine));
    const FineBlock& fine = x.fine[t * layout.n_blocks + b];
    const ActivationBlock& block = x.blocks[(pairs ? t / 2 * 2 : t) * layout.n_blocks + b];
    ActivationBlock as_block;
    std::memcpy(as_block.quants, fine.quants, sizeof(fine.quants));
    std::memcpy(as_block.start, fine.start, sizeof(fine.start));
    as_block.scale = (pairs && t % 2 != 0 ? block.scaled_sum : block.scale) / 256.0F;
    as_block.scaled_sum = 0.0F;  // the block's own has these as well
    const ActivationBlock* const tokens[] = {&as_block};
    VF sums[kVectors];
    KVRUN_UNROLL
    for (size_t v = 0; v < kVectors; ++v) sums[v] = hn::Load(DF(), to.sums[t] + row + v * kLanes);
    products.template Add<kVectors, 1>(tokens, 0, sums);
    KVRUN_UNROLL
    for (size_t v = 0; v < kVectors; ++v) hn::Store(sums[v], DF(), to.sums[t] + row + v * kLanes);
  }
}

// For compilers, activations depend on `sum`: without this they begin with all tokens, for which there are
// not enough registers.
HWY_INLINE void WaitFor(VF sum, const ActivationBlock** tokens, size_t n_tokens) {
  KVRUN_UNROLL
  for (size_t t = 0; t < n_tokens; ++t) asm("" : "+r"(tokens[t]) : "w"(sum.raw));
}

// kVectors vectors of rows from `row` on.
template <TensorType kType, typename Dot, uint32_t kTokens, size_t kVectors>
HWY_INLINE void MultiplyRows(const PanelLayout& layout, const std::byte* panel, const ActivationTile& x,
                             size_t row, FineSums& fine, TileSums& sums) {
  using Format = NeonPanelFormat<kType, kVectors>;
  constexpr size_t kSums = kVectors * kTokens;
  constexpr size_t kAtATime = Dot::SumsAtATime(kTokens);
  constexpr size_t kSame = kTokens < kAtATime ? kTokens : kAtATime;
  const size_t n_blocks = layout.n_blocks;
  const size_t run = Format::kHasSupers ? size_t{kSuperBlocks} : n_blocks;
  VF sum[kSums];  // [kVectors, kTokens]
  KVRUN_UNROLL
  for (VF& one : sum) one = hn::Zero(DF());
  for (size_t first = 0; first < n_blocks; first += run) {
    RowSupers<kVectors> supers;
    Format::LoadSupers(layout, panel, first, row, supers);
    for (size_t b = first; b < first + run; ++b) {
      RowScales<kVectors> scales;
      Format::LoadScales(layout, panel, b, row, supers, scales);
      if constexpr (kTokens == 1) Format::PrefetchBlock(layout, panel + layout.panel_bytes, b, row);
      const ActivationBlock* tokens[kTokens];
      KVRUN_UNROLL
      for (uint32_t t = 0; t < kTokens; ++t) tokens[t] = x.blocks + t * n_blocks + b;
      const BlockProducts<kType, Dot, kVectors> products{layout, panel, b, row, scales};
      KVRUN_UNROLL
      for (size_t i = 0; i < kSums; i += kAtATime) {
        if constexpr (Dot::kInTurn && kTokens > kAtATime) {
          if (i != 0) WaitFor(sum[i - 1], tokens + i % kTokens, kSame);
        }
        products.template Add<kAtATime, kSame>(tokens + i % kTokens, i / kTokens, sum + i);
      }
      const uint32_t has_fine = static_cast<uint32_t>(x.has_fine[b]) >> x.first_bit & ((1U << kTokens) - 1);
      if (HWY_UNLIKELY(has_fine != 0)) {
        AddFineBlock<kType, Dot, kVectors>(layout, panel, x, b, row, has_fine, false, fine);
      }
    }
  }
  KVRUN_UNROLL
  for (size_t i = 0; i < kSums; ++i) {
    const size_t at = row + i / kTokens * kLanes;
    if (fine.are_any) sum[i] = hn::Add(sum[i], hn::Load(DF(), fine.sums[i % kTokens] + at));
    hn::StoreU(sum[i], DF(), sums[i % kTokens] + at);
  }
}

template <TensorType kType, typename Dot, uint32_t kTokens, bool kIsUnpacked>
void MultiplyTile(const PanelLayout& layout, const std::byte* panel, const ActivationTile& x,
                  TileSums& sums) {
  constexpr bool kUsesPairs = std::is_same_v<Dot, SmmlaDot> && kTokens > 1 && TakesPairs(kType);
  if constexpr (std::is_same_v<Dot, SmmlaDot> && !kUsesPairs) {
    MultiplyTile<kType, SdotDot, kTokens>(layout, panel, x, sums);
  } else {
    constexpr size_t kVectors = TileVectors(kTokens);
    FineSums fine;
    for (size_t row = 0; row < kPanelRows; row += kVectors * kLanes) {
      if constexpr (kUsesPairs)
        MultiplyRowPairs<kType, kTokens, kVectors>(layout, panel, x, row, fine, sums);
      else
        MultiplyRows<kType, Dot, kTokens, kVectors>(layout, panel, x, row, fine, sums);
    }
  }
}

// Vector v of a column's, which begins with row 8 n if kVectors is even.
template <size_t kVectors, typename T>
HWY_INLINE VF LoadRows(const T* column, size_t v) {
  if constexpr (std::is_same_v<T, hwy::bfloat16_t>) {
    const auto* halves = reinterpret_cast<const uint16_t*>(column);
    if constexpr (kVectors == 1) return VF{vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(halves), 16))};
    const uint16x8_t eight = vld1q_u16(halves + v / 2 * 8);
    const uint16x8_t zero = vdupq_n_u16(0);  // shifts would be for one of the pipes alone
    return VF{vreinterpretq_f32_u16(v % 2 == 0 ? vzip1q_u16(zero, eight) : vzip2q_u16(zero, eight))};
  } else {
    return LoadFloats(column + v * kLanes);
  }
}

// Columns [c, c + kColumns) of vectors of rows.
template <uint32_t kTokens, size_t kVectors, size_t kColumns, typename T>
HWY_INLINE void AddFloatColumns(const T* w, size_t n_cols, const float* x, VF* sum) {
  VF values[kTokens];
  KVRUN_UNROLL
  for (uint32_t t = 0; t < kTokens; ++t) {
    const float* from = x + t * n_cols;
    values[t].raw = kColumns == 4   ? vld1q_f32(from)
                    : kColumns == 2 ? vcombine_f32(vld1_f32(from), vdup_n_f32(0))
                                    : vdupq_n_f32(*from);
  }
  KVRUN_UNROLL
  for (size_t i = 0; i < kColumns; ++i) {
    KVRUN_UNROLL
    for (size_t v = 0; v < kVectors; ++v) {
      const VF weights = LoadRows<kVectors>(w + i * kPanelRows, v);
      KVRUN_UNROLL
      for (uint32_t t = 0; t < kTokens; ++t) {
        VF& to = sum[(i % 2 * kVectors + v) * kTokens + t];
        to.raw = i == 0   ? vfmaq_laneq_f32(to.raw, weights.raw, values[t].raw, 0)
                 : i == 1 ? vfmaq_laneq_f32(to.raw, weights.raw, values[t].raw, 1)
                 : i == 2 ? vfmaq_laneq_f32(to.raw, weights.raw, values[t].raw, 2)
                          : vfmaq_laneq_f32(to.raw, weights.raw, values[t].raw, 3);
      }
    }
  }
}

// Even and odd columns have their own sums, for any number of tokens.
template <uint32_t kTokens, typename T>
HWY_NOINLINE void MultiplyFloatTile(const T* panel, size_t n_cols, const float* x, TileSums& sums) {
  constexpr size_t kVectors = kTokens == 8 ? 1 : kTokens == 4 ? 2 : kPanelRows / kLanes;
  constexpr size_t kSums = kVectors * kTokens;
  for (size_t row = 0; row < kPanelRows; row += kVectors * kLanes) {
    VF sum[2 * kSums];
    KVRUN_UNROLL
    for (VF& part : sum) part = hn::Zero(DF());
    const T* w = panel + row;
    size_t c = 0;
    for (; c + 4 <= n_cols; c += 4) {
      AddFloatColumns<kTokens, kVectors, 4>(w + c * kPanelRows, n_cols, x + c, sum);
    }
    if (c + 2 <= n_cols) {
      AddFloatColumns<kTokens, kVectors, 2>(w + c * kPanelRows, n_cols, x + c, sum);
      c += 2;
    }
    if (c < n_cols) AddFloatColumns<kTokens, kVectors, 1>(w + c * kPanelRows, n_cols, x + c, sum);
    KVRUN_UNROLL
    for (size_t i = 0; i < kSums; ++i) {
      const size_t at = row + i / kTokens * kLanes;
      hn::StoreU(hn::Add(sum[i], sum[kSums + i]), DF(), sums[i % kTokens] + at);
    }
  }
}

}  // namespace kvrun::host::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // KVRUN_MATMUL_NEON_INL_H_
