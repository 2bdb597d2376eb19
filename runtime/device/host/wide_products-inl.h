// Products of weights of 8 bits with full tiles of activations of 16. To be included once per target.
//
// Where there is no dot product of bytes, pairs of 16 bits are multiplied and added by one instruction, which
// takes signed numbers and cannot overflow: 32 * 128 * 32639 fits in 32 bits. A block with a fine one takes
// no second pass.

#if defined(KVRUN_WIDE_PRODUCTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVRUN_WIDE_PRODUCTS_INL_H_
#undef KVRUN_WIDE_PRODUCTS_INL_H_
#else
#define KVRUN_WIDE_PRODUCTS_INL_H_
#endif

#include "runtime/device/host/block_products-inl.h"
#include "runtime/device/host/int8_dot-inl.h"
#include "runtime/device/host/matmul_kernels.h"
#include "runtime/device/host/panel_formats-inl.h"
#include "runtime/device/host/quantize_activations-inl.h"

#if !KVRUN_HAS_NEON

KVRUN_BEFORE_NAMESPACE();
namespace kvrun::host::HWY_NAMESPACE {

template <TensorType kType, typename Dot>
constexpr bool TakesWide() {
  if constexpr (requires { &Dot::MulPairs; })
    return PanelFormat<kType>::kBits == 8;  // then nothing is subtracted from quants or added to products
  else
    return false;
}

template <TensorType kType>
constexpr bool HasPlainScales() {
  using Format = PanelFormat<kType>;
  return !Format::kHalves && !Format::kHasMinimum && Format::kOffset == 0;
}

using DI16 = hn::Repartition<int16_t, DI>;
using VI16 = hn::Vec<DI16>;

// Columns of even index, then the others: 256 times `quants`, plus `fine`, where that is not null.
inline void WidenQuants(const int8_t* quants, const int8_t* fine, int16_t* to) {
  const hn::CappedTag<int16_t, kBlockColumns / 2> d;
  const hn::Repartition<int8_t, decltype(d)> d8;
  for (size_t i = 0; i < kBlockColumns / 2; i += hn::Lanes(d)) {
    const auto pairs = hn::BitCast(d, hn::LoadU(d8, quants + 2 * i));
    auto evens = hn::ShiftRight<8>(hn::ShiftLeft<8>(pairs));
    auto odds = hn::ShiftRight<8>(pairs);
    if (fine != nullptr) {
      const auto more = hn::BitCast(d, hn::LoadU(d8, fine + 2 * i));
      evens = hn::Add(hn::ShiftLeft<8>(evens), hn::ShiftRight<8>(hn::ShiftLeft<8>(more)));
      odds = hn::Add(hn::ShiftLeft<8>(odds), hn::ShiftRight<8>(more));
    }
    hn::StoreU(evens, d, to + i);
    hn::StoreU(odds, d, to + kBlockColumns / 2 + i);
  }
}

inline void QuantizeWide(const float* x, size_t n_rows, size_t n_blocks, WideBlock* blocks) {
  for (size_t r = 0; r < n_rows; ++r, blocks += n_blocks) {
    const float fine_from = MeasureBlocks(x, n_blocks, blocks);
    for (size_t b = 0; b < n_blocks; ++b, x += kBlockColumns) {
      WideBlock& block = blocks[b];
      const float largest = block.scale;
      if (IsNothing(largest)) {
        block = {};
        block.scale = ScaleOfNothing(largest);
        continue;
      }
      const float inverse = 127.0F / largest;
      const bool is_fine = largest * largest > fine_from;
      int8_t quants[kBlockColumns];
      int8_t fine[kBlockColumns];
      int32_t sums[2];
      RoundBlock(x, inverse, quants, sums);
      if (is_fine) RoundFineBlock(x, inverse, quants, fine, sums);
      WidenQuants(quants, is_fine ? fine : nullptr, block.quants);
      block.scale = is_fine ? largest / 127.0F / 256.0F : largest / 127.0F;
    }
  }
}

// A group's weights: columns of even index, then the others.
using WideGroup = VI16[2][kTileVectors];
// What UnpackWidePanel writes: [n_blocks, kBlockGroups, even or odd, kPanelRows, 2].
inline constexpr size_t kWideGroupBytes = 2 * 2 * kPanelRows * sizeof(int16_t);
inline constexpr size_t kWideBlockBytes = kBlockGroups * kWideGroupBytes;
static_assert(kWideBlockBytes <= kMaxUnpackedBytes);

template <TensorType kType, size_t kGroup>
HWY_INLINE void LoadWideGroup(const PackedBlock& at, WideGroup& w) {
  KVRUN_UNROLL
  for (size_t v = 0; v < kTileVectors; ++v) {
    const VI16 pairs = hn::BitCast(DI16(), PanelFormat<kType>::template LoadGroup<kGroup>(
                                               at.layout, at.panel, at.block, at.row + v * kLanes));
    w[0][v] = hn::ShiftRight<8>(hn::ShiftLeft<8>(pairs));
    w[1][v] = hn::ShiftRight<8>(pairs);
  }
}

// Where UnpackWidePanel puts a vector of a group.
HWY_INLINE size_t WideGroupAt(const PackedBlock& at, size_t group, size_t odd, size_t v) {
  return kWideBlockBytes * at.block + kWideGroupBytes * group + kWideGroupBytes / 2 * odd +
         4 * (at.row + v * kLanes);
}

template <TensorType kType, size_t kGroup = 0>
HWY_INLINE void UnpackWideGroups(const PackedBlock& at, std::byte* to) {
  WideGroup w;
  LoadWideGroup<kType, kGroup>(at, w);
  KVRUN_UNROLL
  for (size_t odd = 0; odd < 2; ++odd) {
    KVRUN_UNROLL
    for (size_t v = 0; v < kTileVectors; ++v) {
      hn::Store(w[odd][v], DI16(), reinterpret_cast<int16_t*>(to + WideGroupAt(at, kGroup, odd, v)));
    }
  }
  if constexpr (kGroup + 1 < kBlockGroups) UnpackWideGroups<kType, kGroup + 1>(at, to);
}

template <TensorType kType>
void UnpackWidePanel(const PanelLayout& layout, const std::byte* panel, std::byte* to) {
  for (size_t b = 0; b < layout.n_blocks; ++b) {
    for (size_t row = 0; row < kPanelRows; row += kTileVectors * kLanes)
      UnpackWideGroups<kType>({layout, panel, b, row}, to);
  }
}

// Adds the products of groups from kGroup on. unpacked: null where !kIsUnpacked.
template <TensorType kType, typename Dot, bool kIsUnpacked, size_t kGroup, uint32_t kTokens>
HWY_INLINE void AddWideGroups(const PackedBlock& at, const std::byte* unpacked, const WideBlock* first,
                              TileOf<VI, kTokens>& sums) {
  WideGroup w;
  if constexpr (!kIsUnpacked) LoadWideGroup<kType, kGroup>(at, w);
  KVRUN_UNROLL
  for (size_t odd = 0; odd < 2; ++odd) {
    if constexpr (kIsUnpacked) {
      KVRUN_UNROLL
      for (size_t v = 0; v < kTileVectors; ++v) {
        const std::byte* const from = unpacked + WideGroupAt(at, kGroup, odd, v);
        w[odd][v] = hn::Load(DI16(), reinterpret_cast<const int16_t*>(from));
      }
    }
    KVRUN_UNROLL
    for (uint32_t t = 0; t < kTokens; ++t) {
      const int16_t* const of_token = first[t * at.layout.n_blocks].quants + kBlockColumns / 2 * odd;
      const auto two = hn::BitCast(DI16(), FourOf(reinterpret_cast<const int8_t*>(of_token + 2 * kGroup)));
      KVRUN_UNROLL
      for (size_t v = 0; v < kTileVectors; ++v) {
        const VI products = Dot::MulPairs(w[odd][v], two);
        sums[v][t] = kGroup == 0 && odd == 0 ? products : hn::Add(sums[v][t], products);
        AddNow(sums[v][t]);
      }
    }
  }
  if constexpr (kGroup + 1 < kBlockGroups)
    AddWideGroups<kType, Dot, kIsUnpacked, kGroup + 1, kTokens>(at, unpacked, first, sums);
}

// Adds a block's products, which are whole numbers.
template <uint32_t kTokens>
HWY_INLINE void AddScaled(const TileOf<VI, kTokens>& products, const BlockScales (&scales)[kTileVectors],
                          const float (&of_tokens)[kTokens], TileOf<VF, kTokens>& sum) {
  KVRUN_UNROLL
  for (uint32_t t = 0; t < kTokens; ++t) {
    const VF scale = hn::Set(DF(), of_tokens[t]);
    KVRUN_UNROLL
    for (size_t v = 0; v < kTileVectors; ++v) {
      const VF scaled = hn::Mul(hn::ConvertTo(DF(), products[v][t]), scales[v].scale);
      sum[v][t] = hn::MulAdd(scaled, scale, sum[v][t]);
    }
  }
}

template <TensorType kType, typename Dot, uint32_t kTokens, bool kIsUnpacked>
void MultiplyWideTile(const PanelLayout& layout, const std::byte* panel, const std::byte* unpacked,
                      const WideBlock* blocks, TileSums& sums) {
  static_assert(HasPlainScales<kType>());
  for (size_t row = 0; row < kPanelRows; row += kTileVectors * kLanes) {
    TileOf<VF, kTokens> sum;
    SetToZero<kTokens>(sum);
    for (size_t b = 0; b < layout.n_blocks; ++b) {
      const PackedBlock at{layout, panel, b, row};
      TileOf<VI, kTokens> products;
      AddWideGroups<kType, Dot, kIsUnpacked, 0, kTokens>(at, unpacked, blocks + b, products);
      BlockScales scales[kTileVectors];
      LoadScalesOfRows<kType>(at, scales);
      float of_tokens[kTokens];
      KVRUN_UNROLL
      for (uint32_t t = 0; t < kTokens; ++t) of_tokens[t] = blocks[t * layout.n_blocks + b].scale;
      AddScaled<kTokens>(products, scales, of_tokens, sum);
    }
    StoreTile<kTokens>(sum, row, sums);
  }
}

// As MultiplyWideTile, but activations are in 8 bits. The results are the same bits.
template <TensorType kType, typename Dot, uint32_t kTokens>
void MultiplyNarrowTile(const PanelLayout& layout, const std::byte* panel, const ActivationTile& x,
                        TileSums& sums) {
  static_assert(HasPlainScales<kType>());
  for (size_t row = 0; row < kPanelRows; row += kTileVectors * kLanes) {
    TileOf<VF, kTokens> sum;
    SetToZero<kTokens>(sum);
    for (size_t b = 0; b < layout.n_blocks; ++b) {
      const PackedBlock at{layout, panel, b, row};
      if constexpr (kTokens == 1)
        PanelFormat<kType>::PrefetchBlock(layout, panel + layout.panel_bytes, b, row);
      QuantsOf<kTokens> quants;
      float of_tokens[kTokens];
      TileOf<VI, kTokens> products;
      KVRUN_UNROLL
      for (uint32_t t = 0; t < kTokens; ++t) {
        const ActivationBlock& block = x.blocks[t * layout.n_blocks + b];
        quants[t] = block.quants;
        of_tokens[t] = block.scale;
        KVRUN_UNROLL
        for (size_t v = 0; v < kTileVectors; ++v) products[v][t] = hn::Zero(DI());
      }
      AddGroups<kType, Dot, 0, kBlockGroups, kTokens>(at, quants, products);
      const uint32_t has_fine = static_cast<uint32_t>(x.has_fine[b]) >> x.first_bit;
      KVRUN_UNROLL
      for (uint32_t t = 0; t < kTokens; ++t) {
        if (HWY_LIKELY((has_fine >> t & 1U) == 0)) continue;
        TileOf<VI, 1> fine;
        KVRUN_UNROLL
        for (size_t v = 0; v < kTileVectors; ++v) fine[v][0] = hn::ShiftLeft<8>(products[v][t]);
        AddGroups<kType, Dot, 0, kBlockGroups, 1>(at, {x.fine[t * layout.n_blocks + b].quants}, fine);
        KVRUN_UNROLL
        for (size_t v = 0; v < kTileVectors; ++v) products[v][t] = fine[v][0];
        of_tokens[t] /= 256.0F;
      }
      BlockScales scales[kTileVectors];
      LoadScalesOfRows<kType>(at, scales);
      AddScaled<kTokens>(products, scales, of_tokens, sum);
    }
    StoreTile<kTokens>(sum, row, sums);
  }
}

}  // namespace kvrun::host::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // NEON has instructions of its own

#endif  // KVRUN_WIDE_PRODUCTS_INL_H_
