// A tile of a panel's rows and several tokens. To be included once per target.

#if defined(KVRUN_MATMUL_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVRUN_MATMUL_TILE_INL_H_
#undef KVRUN_MATMUL_TILE_INL_H_
#else
#define KVRUN_MATMUL_TILE_INL_H_
#endif

#include <cstring>

#include "runtime/device/host/block_products-inl.h"
#include "runtime/device/host/int8_dot-inl.h"
#include "runtime/device/host/matmul_kernels.h"
#include "runtime/device/host/panel_formats-inl.h"

KVRUN_BEFORE_NAMESPACE();
namespace kvrun::host::HWY_NAMESPACE {

// What fine blocks add, apart from the other sums: whatever the size of a tile, a token's are added up in the
// same order.
struct FineSums {
  bool are_any = false;
  alignas(64) float sums[kTileTokens][kPanelRows];  // where are_any
};

#if KVRUN_HAS_NEON

// In matmul_neon-inl.h.
template <TensorType kType, typename Dot, uint32_t kTokens, bool kIsUnpacked = false>
void MultiplyTile(const PanelLayout& layout, const std::byte* panel, const ActivationTile& x, TileSums& sums);

#else

// Block b of the tokens that has_fine names, of kTileVectors vectors of rows. Out of line, and in memory: the
// other sums stay in registers.
template <TensorType kType, typename Dot>
HWY_NOINLINE void AddFine(const PanelLayout& layout, const std::byte* panel, const ActivationTile& x,
                          size_t b, size_t row, uint32_t has_fine, FineSums& to) {
  if (!to.are_any) std::memset(to.sums, 0, sizeof(to.sums));
  to.are_any = true;
  const PackedBlock weights{layout, panel, b, row};
  BlockScales scales[kTileVectors];
  LoadScalesOfRows<kType>(weights, scales);
  for (; has_fine != 0; has_fine &= has_fine - 1) {
    const auto t = static_cast<size_t>(hwy::Num0BitsBelowLS1Bit_Nonzero32(has_fine));
    const FineBlock& fine = x.fine[t * layout.n_blocks + b];
    TileOf<VF, 1> scaled;
    MultiplyBlock<kType, Dot, 1>(weights, {{fine.quants}, {fine.start}}, scales, scaled);
    const VF scale = hn::Set(DF(), x.blocks[t * layout.n_blocks + b].scale / 256.0F);
    KVRUN_UNROLL
    for (size_t v = 0; v < kTileVectors; ++v) {
      float* const sum = to.sums[t] + row + v * kLanes;
      hn::Store(hn::MulAdd(scaled[v][0], scale, hn::Load(DF(), sum)), DF(), sum);
    }
  }
}

// Adds block b.
template <TensorType kType, typename Dot, uint32_t kTokens, typename Block>
HWY_INLINE void AddBlock(const Block& weights, const ActivationBlock* first, TileOf<VF, kTokens>& sum) {
  using Format = PanelFormat<kType>;
  const size_t n_blocks = weights.layout.n_blocks;
  BlockOperands<kTokens> operands;
  KVRUN_UNROLL
  for (uint32_t t = 0; t < kTokens; ++t) {
    operands.quants[t] = first[t * n_blocks].quants;
    operands.starts[t] = first[t * n_blocks].start;
  }
  BlockScales scales[kTileVectors];
  LoadScalesOfRows<kType>(weights, scales);
  TileOf<VF, kTokens> products;
  MultiplyBlock<kType, Dot, kTokens>(weights, operands, scales, products);
  KVRUN_UNROLL
  for (uint32_t t = 0; t < kTokens; ++t) {
    const VF scale = hn::Set(DF(), first[t * n_blocks].scale);
    KVRUN_UNROLL
    for (size_t v = 0; v < kTileVectors; ++v) {
      sum[v][t] = hn::MulAdd(products[v][t], scale, sum[v][t]);
      if constexpr (Format::kHasMinimum && !Format::kHalves) {
        sum[v][t] = hn::MulAdd(scales[v].minimum, hn::Set(DF(), first[t * n_blocks].scaled_sum), sum[v][t]);
      }
    }
  }
}

// kIsUnpacked: x.unpacked holds the panel's quants.
template <TensorType kType, typename Dot, uint32_t kTokens, bool kIsUnpacked = false>
void MultiplyTile(const PanelLayout& layout, const std::byte* panel, const ActivationTile& x,
                  TileSums& sums) {
  using Format = PanelFormat<kType>;
  const size_t n_blocks = layout.n_blocks;
  FineSums fine;
  for (size_t row = 0; row < kPanelRows; row += kTileVectors * kLanes) {
    TileOf<VF, kTokens> sum;
    SetToZero<kTokens>(sum);
    for (size_t b = 0; b < n_blocks; ++b) {
      if constexpr (kTokens == 1) Format::PrefetchBlock(layout, panel + layout.panel_bytes, b, row);
      const PackedBlock packed{layout, panel, b, row};
      if constexpr (kIsUnpacked)
        AddBlock<kType, Dot, kTokens>(UnpackedRows{packed, x.unpacked}, x.blocks + b, sum);
      else
        AddBlock<kType, Dot, kTokens>(packed, x.blocks + b, sum);
      const uint32_t has_fine = static_cast<uint32_t>(x.has_fine[b]) >> x.first_bit & ((1U << kTokens) - 1);
      if (HWY_UNLIKELY(has_fine != 0)) AddFine<kType, Dot>(layout, panel, x, b, row, has_fine, fine);
    }
    if (fine.are_any) {
      KVRUN_UNROLL
      for (uint32_t t = 0; t < kTokens; ++t) {
        KVRUN_UNROLL
        for (size_t v = 0; v < kTileVectors; ++v) {
          sum[v][t] = hn::Add(sum[v][t], hn::Load(DF(), fine.sums[t] + row + v * kLanes));
        }
      }
    }
    StoreTile<kTokens>(sum, row, sums);
  }
}

#endif

}  // namespace kvrun::host::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // KVRUN_MATMUL_TILE_INL_H_
