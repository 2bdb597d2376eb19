// Products of a block of a panel's weights with several tokens' activations. To be included once per target.
//
// A group of columns is unpacked, multiplied with all tokens and forgotten: a whole block's weights in
// registers would leave none for the sums. Where vectors are short, two of rows share what is read of the
// activations.

#if defined(KVRUN_BLOCK_PRODUCTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVRUN_BLOCK_PRODUCTS_INL_H_
#undef KVRUN_BLOCK_PRODUCTS_INL_H_
#else
#define KVRUN_BLOCK_PRODUCTS_INL_H_
#endif

#include <algorithm>

#include "runtime/device/host/int8_dot-inl.h"
#include "runtime/device/host/matmul_kernels.h"
#include "runtime/device/host/panel_formats-inl.h"

#if !KVRUN_HAS_NEON

KVRUN_BEFORE_NAMESPACE();
namespace kvrun::host::HWY_NAMESPACE {

// Of rows, that are multiplied together.
inline constexpr size_t kTileVectors = kPanelRows / kLanes < 2 ? 1 : 2;

// A block of the rows of kTileVectors vectors: as it is packed, or with its quants unpacked by UnpackPanel.
struct PackedBlock {
  static constexpr bool kIsUnpacked = false;
  const PanelLayout& layout;
  const std::byte* panel;
  size_t block;
  size_t row;
};
struct UnpackedRows : PackedBlock {
  static constexpr bool kIsUnpacked = true;
  const std::byte* quants;  // of the panel
};

// Of kTokens tokens and the rows of kTileVectors vectors.
template <typename V, uint32_t kTokens>
using TileOf = V[kTileVectors][kTokens];
template <uint32_t kTokens>
using QuantsOf = const int8_t* [kTokens];

// What UnpackPanel writes for a block.
inline constexpr size_t kUnpackedBytes = kPanelRows * kBlockColumns;
// Q8_0's bytes are as they will be read.
template <TensorType kType>
inline constexpr bool kUnpacks = kType != TensorType::kQ8_0;

template <TensorType kType, typename Dot, size_t kGroup, typename Block>
HWY_INLINE void LoadGroupOfRows(const Block& at, VU8 (&w)[kTileVectors]) {
  KVRUN_UNROLL
  for (size_t v = 0; v < kTileVectors; ++v) {
    const size_t row = at.row + v * kLanes;
    if constexpr (Block::kIsUnpacked) {
      const std::byte* from = at.quants + kUnpackedBytes * at.block + 64 * kGroup + 4 * row;
      w[v] = hn::Load(DU8(), reinterpret_cast<const uint8_t*>(from));
    } else {
      w[v] = PanelFormat<kType>::template LoadGroup<kGroup, Dot::kBias>(at.layout, at.panel, at.block, row);
    }
  }
}

template <TensorType kType, typename Dot, size_t kGroup>
HWY_INLINE void UnpackGroups(const PackedBlock& at, std::byte* to) {
  VU8 w[kTileVectors];
  LoadGroupOfRows<kType, Dot, kGroup>(at, w);
  KVRUN_UNROLL
  for (size_t v = 0; v < kTileVectors; ++v) {
    hn::Store(w[v], DU8(), reinterpret_cast<uint8_t*>(to + 64 * kGroup + 4 * (at.row + v * kLanes)));
  }
  if constexpr (kGroup + 1 < kBlockGroups) UnpackGroups<kType, Dot, kGroup + 1>(at, to);
}

template <TensorType kType, typename Dot>
void UnpackPanel(const PanelLayout& layout, const std::byte* panel, std::byte* to) {
  for (size_t b = 0; b < layout.n_blocks; ++b, to += kUnpackedBytes) {
    for (size_t row = 0; row < kPanelRows; row += kTileVectors * kLanes) {
      UnpackGroups<kType, Dot, 0>({layout, panel, b, row}, to);
    }
  }
}

template <TensorType kType>
HWY_INLINE void LoadScalesOfRows(const PackedBlock& at, BlockScales (&scales)[kTileVectors]) {
  KVRUN_UNROLL
  for (size_t v = 0; v < kTileVectors; ++v) {
    scales[v] = PanelFormat<kType>::LoadScales(at.layout, at.panel, at.block, at.row + v * kLanes);
  }
}

template <uint32_t kTokens>
HWY_INLINE void SetToZero(TileOf<VF, kTokens>& sum) {
  KVRUN_UNROLL
  for (size_t v = 0; v < kTileVectors; ++v) {
    KVRUN_UNROLL
    for (uint32_t t = 0; t < kTokens; ++t) sum[v][t] = hn::Zero(DF());
  }
}

// Of rows from first_row on.
template <uint32_t kTokens>
HWY_INLINE void StoreTile(const TileOf<VF, kTokens>& sum, size_t first_row, TileSums& sums) {
  KVRUN_UNROLL
  for (uint32_t t = 0; t < kTokens; ++t) {
    KVRUN_UNROLL
    for (size_t v = 0; v < kTileVectors; ++v) hn::StoreU(sum[v][t], DF(), sums[t] + first_row + v * kLanes);
  }
}

// GCC would put off additions until all products are there, and these into memory.
template <typename V>
HWY_INLINE void AddNow([[maybe_unused]] V& sum) {
#if HWY_ARCH_X86 && defined(__GNUC__)
  asm("" : "+v"(sum.raw));
#endif
}

// Sums of pairs, in 16 bits, of groups kGroup to kEnd - 1.
template <TensorType kType, typename Dot, size_t kGroup, size_t kEnd, bool kIsFirst, uint32_t kTokens,
          typename Block>
HWY_INLINE void AddPairs(const Block& at, const QuantsOf<kTokens>& quants,
                         TileOf<typename Dot::VI16, kTokens>& pairs) {
  VU8 w[kTileVectors];
  LoadGroupOfRows<kType, Dot, kGroup>(at, w);
  KVRUN_UNROLL
  for (uint32_t t = 0; t < kTokens; ++t) {
    const VI four = FourOf(quants[t] + 4 * kGroup);
    KVRUN_UNROLL
    for (size_t v = 0; v < kTileVectors; ++v) {
      const auto products = Dot::template Pairs<false>(w[v], four);  // at most 5 bits
      pairs[v][t] = kIsFirst ? products : hn::Add(pairs[v][t], products);
      AddNow(pairs[v][t]);
    }
  }
  if constexpr (kGroup + 1 < kEnd) AddPairs<kType, Dot, kGroup + 1, kEnd, false, kTokens>(at, quants, pairs);
}

// Adds the products of groups kGroup to kEnd - 1.
template <TensorType kType, typename Dot, size_t kGroup, size_t kEnd, uint32_t kTokens, typename Block>
HWY_INLINE void AddGroups(const Block& at, const QuantsOf<kTokens>& quants, TileOf<VI, kTokens>& sums) {
  constexpr int kBits = PanelFormat<kType>::kBits;
  constexpr size_t kRun = std::min<size_t>(GroupsIn16Bits<Dot, kBits>(), kEnd - kGroup);
  if constexpr (kRun > 2) {
    TileOf<typename Dot::VI16, kTokens> pairs;
    AddPairs<kType, Dot, kGroup, kGroup + kRun, true, kTokens>(at, quants, pairs);
    KVRUN_UNROLL
    for (size_t v = 0; v < kTileVectors; ++v) {
      KVRUN_UNROLL
      for (uint32_t t = 0; t < kTokens; ++t) sums[v][t] = hn::Add(sums[v][t], Dot::Widen(pairs[v][t]));
    }
  } else {
    VU8 w[kTileVectors];
    VU8 next[kTileVectors];
    LoadGroupOfRows<kType, Dot, kGroup>(at, w);
    if constexpr (kRun == 2) LoadGroupOfRows<kType, Dot, kGroup + 1>(at, next);
    KVRUN_UNROLL
    for (uint32_t t = 0; t < kTokens; ++t) {
      KVRUN_UNROLL
      for (size_t v = 0; v < kTileVectors; ++v) {
        const VU8 both[2] = {w[v], kRun == 2 ? next[v] : w[v]};
        sums[v][t] = Dot::template Columns<kBits, kRun>(sums[v][t], both, quants[t] + 4 * kGroup);
        AddNow(sums[v][t]);
      }
    }
  }
  if constexpr (kGroup + kRun < kEnd) AddGroups<kType, Dot, kGroup + kRun, kEnd, kTokens>(at, quants, sums);
}

// What a block is multiplied with: as an ActivationBlock or a FineBlock has them.
template <uint32_t kTokens>
struct BlockOperands {
  QuantsOf<kTokens> quants;
  const int32_t* starts[kTokens];
};

// The products, times the weights' scales; plus the minima times the activations' sums where halves have
// minima: then `starts` holds those sums.
template <TensorType kType, typename Dot, uint32_t kTokens, typename Block>
HWY_INLINE void MultiplyBlock(const Block& at, const BlockOperands<kTokens>& a,
                              const BlockScales (&scales)[kTileVectors], TileOf<VF, kTokens>& out) {
  using Format = PanelFormat<kType>;
  constexpr bool kMinima = Format::kHalves && Format::kHasMinimum;
  TileOf<VI, kTokens> sums;
  KVRUN_UNROLL
  for (uint32_t t = 0; t < kTokens; ++t) {
    KVRUN_UNROLL
    for (size_t v = 0; v < kTileVectors; ++v) {
      sums[v][t] = hn::Set(DI(), kMinima ? 0 : a.starts[t][0]);
    }
  }
  AddGroups<kType, Dot, 0, Format::kHalves ? 4 : kBlockGroups, kTokens>(at, a.quants, sums);
  KVRUN_UNROLL
  for (uint32_t t = 0; t < kTokens; ++t) {
    KVRUN_UNROLL
    for (size_t v = 0; v < kTileVectors; ++v) {
      out[v][t] = hn::Mul(hn::ConvertTo(DF(), sums[v][t]), scales[v].scale);
      if constexpr (Format::kHalves) sums[v][t] = hn::Set(DI(), kMinima ? 0 : a.starts[t][1]);
    }
  }
  if constexpr (Format::kHalves) {
    AddGroups<kType, Dot, 4, kBlockGroups, kTokens>(at, a.quants, sums);
    KVRUN_UNROLL
    for (uint32_t t = 0; t < kTokens; ++t) {
      KVRUN_UNROLL
      for (size_t v = 0; v < kTileVectors; ++v) {
        VF& scaled = out[v][t];
        scaled = hn::MulAdd(hn::ConvertTo(DF(), sums[v][t]), scales[v].second, scaled);
        if constexpr (kMinima) {
          const VF first_sum = hn::Set(DF(), static_cast<float>(a.starts[t][0]));
          const VF second_sum = hn::Set(DF(), static_cast<float>(a.starts[t][1]));
          scaled = hn::MulAdd(scales[v].minimum, first_sum, scaled);
          scaled = hn::MulAdd(scales[v].second_minimum, second_sum, scaled);
        }
      }
    }
  }
}

}  // namespace kvrun::host::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // matmul_neon-inl.h has its own

#endif  // KVRUN_BLOCK_PRODUCTS_INL_H_
