// The kernels of matmul_kernels.h with vectors. To be included once per target.
//
// Lanes are rows: a vector of weights meets one activation (or four, of 8 bits) in all lanes, and no sum is
// ever taken across lanes. A tile keeps the sums of several tokens in registers, so that a vector of weights
// is read and unpacked once for all of them.

#if defined(KVRUN_MATMUL_VECTOR_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVRUN_MATMUL_VECTOR_INL_H_
#undef KVRUN_MATMUL_VECTOR_INL_H_
#else
#define KVRUN_MATMUL_VECTOR_INL_H_
#endif

#include <cstring>
#include <type_traits>

#include "platform/base/check.h"
#include "runtime/device/host/int8_dot-inl.h"
#include "runtime/device/host/int8_tiles-inl.h"
#include "runtime/device/host/matmul_tile-inl.h"
#include "runtime/device/host/panel_formats-inl.h"
#include "runtime/device/host/quantize_activations-inl.h"
#include "runtime/device/host/wide_products-inl.h"

KVRUN_BEFORE_NAMESPACE();
namespace kvrun::host::HWY_NAMESPACE {

// Half the registers for sums, the others for eight vectors of weights and what comes and goes.
inline constexpr uint32_t kTileTokensOfTarget = HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_SSE4 ? 4 : 8;

#if KVRUN_HAS_NEON
constexpr bool TakesPairs(TensorType type);
inline void InterleavePairs(size_t n_rows, size_t n_blocks, ActivationBlock* blocks);
#endif

template <typename Dot>
void Quantize(TensorType type, const float* x, size_t n_rows, size_t n_blocks, ActivationBlock* blocks,
              FineBlock* fine, uint8_t* has_fine) {
  QuantizeActivations(type, {.q8_bias = Dot::kBias, .base = SumBase<Dot>()}, x, n_rows, n_blocks, blocks,
                      fine, has_fine);
#if KVRUN_HAS_NEON
  if (std::is_same_v<Dot, SmmlaDot> && TakesPairs(type)) InterleavePairs(n_rows, n_blocks, blocks);
#endif
}

#if KVRUN_HAS_TILES

// Sixteen tokens. What goes to the matrix instruction and comes from it goes through memory, and takes its
// time: so a turn unpacks a block's weights, has those of the one before multiplied, takes the sums of the
// one before that, and scales those of the turn before.
template <TensorType kType, typename Dot>
class TileProduct {
 public:
  TileProduct(const PanelLayout& layout, const std::byte* panel, const ActivationTile& x)
      : layout_(layout), panel_(panel), x_(x), n_blocks_(layout.n_blocks) {}

  HWY_INLINE void Run(TileSums& sums) {
    VF sum[kTokens];
    KVRUN_UNROLL
    for (VF& one : sum) one = hn::Zero(DF());
    for (size_t b = 0; b < n_blocks_ + 3; b += 2) {
      Turn<0>(b, sum);
      Turn<1>(b + 1, sum);
    }
    KVRUN_UNROLL
    for (size_t t = 0; t < kTokens; ++t) {
      if (fine_.are_any) sum[t] = hn::Add(sum[t], hn::Load(DF(), fine_.sums[t]));
      hn::StoreU(sum[t], DF(), sums[t]);
    }
  }

 private:
  using Format = PanelFormat<kType>;
  static constexpr bool kSigned = Format::kBits == 8;
  static constexpr size_t kTokens = Tiles::kTokens;
  static constexpr size_t kBuffers = 4;
  static_assert(kTokens == kTileTokens && kLanes == kPanelRows && !Format::kHalves);

  // Blocks that are not there are left out.
  template <int kTile>
  HWY_INLINE void Turn(size_t b, VF (&sum)[kTokens]) {
    if (b - 2 < n_blocks_) Tiles::Store<kTile>(products_[(b - 2) % kBuffers]);
    if (b - 1 < n_blocks_) Multiply<1 - kTile>(b - 1);
    if (b < n_blocks_) Unpack(b);
    if (b - 3 < n_blocks_) Scale(b - 3, sum);
  }

  HWY_INLINE void Unpack(size_t b) {
    VU8 w[kBlockGroups];
    Format::LoadQuants(layout_, panel_, b, 0, w);
    KVRUN_UNROLL
    for (size_t g = 0; g < kBlockGroups; ++g) hn::Store(w[g], DU8(), weights_[b % kBuffers] + 64 * g);
  }

  template <int kTile>
  HWY_INLINE void Multiply(size_t b) {
    Tiles::Multiply<kTile, kSigned>(x_.blocks[b].quants, n_blocks_ * sizeof(ActivationBlock),
                                    weights_[b % kBuffers]);
  }

  HWY_INLINE void Scale(size_t b, VF (&sum)[kTokens]) {
    const BlockScales scales = Format::LoadScales(layout_, panel_, b, 0);
    const ActivationBlock* of_token = x_.blocks + b;
    KVRUN_UNROLL
    for (size_t t = 0; t < kTokens; ++t, of_token += n_blocks_) {
      VI whole = hn::Load(DI(), products_[b % kBuffers] + t * kPanelRows);
      if constexpr (Format::kOffset != 0) whole = hn::Add(whole, hn::Set(DI(), of_token->start[0]));
      const VF scaled = hn::Mul(hn::ConvertTo(DF(), whole), scales.scale);
      sum[t] = hn::MulAdd(scaled, hn::Set(DF(), of_token->scale), sum[t]);
      if constexpr (Format::kHasMinimum) {
        sum[t] = hn::MulAdd(scales.minimum, hn::Set(DF(), of_token->scaled_sum), sum[t]);
      }
    }
    const uint32_t has_fine = x_.has_fine[b] | static_cast<uint32_t>(x_.has_fine[n_blocks_ + b]) << 8;
    if (HWY_UNLIKELY(has_fine != 0)) AddFine<kType, Dot>(layout_, panel_, x_, b, 0, has_fine, fine_);
  }

  const PanelLayout& layout_;
  const std::byte* panel_;
  const ActivationTile& x_;
  size_t n_blocks_;
  alignas(64) uint8_t weights_[kBuffers][512];
  alignas(64) int32_t products_[kBuffers][kTokens * kPanelRows];
  FineSums fine_;
};

template <TensorType kType, typename Dot>
void MultiplySixteen(const PanelLayout& layout, const std::byte* panel, const ActivationTile& x,
                     TileSums& sums) {
  if constexpr (PanelFormat<kType>::kHalves) {
    // Half a block makes too small a tile.
    const size_t next = size_t{8} * layout.n_blocks;
    alignas(64) TileSums second;
    MultiplyTile<kType, Dot, 8>(layout, panel, x, sums);
    MultiplyTile<kType, Dot, 8>(
        layout, panel,
        {x.blocks + next, x.fine + next, x.has_fine + layout.n_blocks, x.first_bit, x.unpacked}, second);
    std::memcpy(sums[8], second, 8 * sizeof(second[0]));
  } else {
    TileProduct<kType, Dot>(layout, panel, x).Run(sums);
  }
}

#endif  // KVRUN_HAS_TILES

template <TensorType kType, typename Dot>
void MultiplyType(const PanelLayout& layout, const std::byte* panel, const ActivationTile& x,
                  uint32_t n_tokens, TileSums& sums) {
#if !KVRUN_HAS_NEON
  if constexpr (kUnpacks<kType>) {
    if (n_tokens == kTileTokensOfTarget && x.unpacked != nullptr) {
      return MultiplyTile<kType, Dot, kTileTokensOfTarget, true>(layout, panel, x, sums);
    }
  }
#endif
  switch (n_tokens) {
    case 1: return MultiplyTile<kType, Dot, 1>(layout, panel, x, sums);
    case 2: return MultiplyTile<kType, Dot, 2>(layout, panel, x, sums);
    case 4: return MultiplyTile<kType, Dot, 4>(layout, panel, x, sums);
#if KVRUN_HAS_TILES
    case Tiles::kTokens: return MultiplySixteen<kType, Dot>(layout, panel, x, sums);
#endif
    default: break;
  }
  if constexpr (kTileTokensOfTarget == 8) {
    KVRUN_CHECK(n_tokens == 8);
    MultiplyTile<kType, Dot, 8>(layout, panel, x, sums);
  } else {
    KVRUN_CHECK(false);
  }
}

#if !KVRUN_HAS_NEON

// Fewer tokens than a full tile has.
template <TensorType kType, typename Dot>
void MultiplyNarrow(const PanelLayout& layout, const std::byte* panel, const ActivationTile& x,
                    uint32_t n_tokens, TileSums& sums) {
  if (n_tokens == 1) return MultiplyNarrowTile<kType, Dot, 1>(layout, panel, x, sums);
  if (n_tokens == 2) return MultiplyNarrowTile<kType, Dot, 2>(layout, panel, x, sums);
  KVRUN_CHECK(n_tokens == 4 && n_tokens < kTileTokensOfTarget);
  if constexpr (kTileTokensOfTarget > 4) MultiplyNarrowTile<kType, Dot, 4>(layout, panel, x, sums);
}

#endif

// run of the type as a template parameter.
template <typename F>
HWY_INLINE void WithQuants(TensorType type, const F& run) {
  switch (type) {
    case TensorType::kQ8_0: return run.template operator()<TensorType::kQ8_0>();
    case TensorType::kQ4_0: return run.template operator()<TensorType::kQ4_0>();
    case TensorType::kQ4_1: return run.template operator()<TensorType::kQ4_1>();
    case TensorType::kQ5_0: return run.template operator()<TensorType::kQ5_0>();
    case TensorType::kQ5_1: return run.template operator()<TensorType::kQ5_1>();
    case TensorType::kQ2_K: return run.template operator()<TensorType::kQ2_K>();
    case TensorType::kQ3_K: return run.template operator()<TensorType::kQ3_K>();
    case TensorType::kQ4_K: return run.template operator()<TensorType::kQ4_K>();
    case TensorType::kQ5_K: return run.template operator()<TensorType::kQ5_K>();
    case TensorType::kQ6_K: return run.template operator()<TensorType::kQ6_K>();
    case TensorType::kIQ4_NL: return run.template operator()<TensorType::kIQ4_NL>();
    case TensorType::kIQ4_XS: return run.template operator()<TensorType::kIQ4_XS>();
    default: KVRUN_CHECK(false);  // float types have no quants
  }
}

template <typename Dot>
void MultiplyInt8(const PanelLayout& layout, const std::byte* panel, const ActivationTile& x,
                  uint32_t n_tokens, TileSums& sums) {
  WithQuants(layout.type, [&]<TensorType kType>() {
#if !KVRUN_HAS_NEON
    if constexpr (TakesWide<kType, Dot>())
      MultiplyNarrow<kType, Dot>(layout, panel, x, n_tokens, sums);
    else
#endif
      MultiplyType<kType, Dot>(layout, panel, x, n_tokens, sums);
  });
}

#if !KVRUN_HAS_NEON

template <typename Dot>
bool Unpack(const PanelLayout& layout, const std::byte* panel, std::byte* to) {
  bool is_unpacked = false;
  WithQuants(layout.type, [&]<TensorType kType>() {
    if constexpr (TakesWide<kType, Dot>())
      UnpackWidePanel<kType>(layout, panel, to);
    else if constexpr (kUnpacks<kType>)
      UnpackPanel<kType, Dot>(layout, panel, to);
    is_unpacked = TakesWide<kType, Dot>() || kUnpacks<kType>;
  });
  return is_unpacked;
}

template <typename Dot>
bool TypeTakesWide(TensorType type) {
  bool takes_wide = false;
  WithQuants(type, [&]<TensorType kType>() { takes_wide = TakesWide<kType, Dot>(); });
  return takes_wide;
}

template <typename Dot>
void MultiplyWide(const PanelLayout& layout, const std::byte* panel, const std::byte* unpacked,
                  const WideBlock* blocks, TileSums& sums) {
  WithQuants(layout.type, [&]<TensorType kType>() {
    if constexpr (TakesWide<kType, Dot>()) {
      if (unpacked != nullptr)
        MultiplyWideTile<kType, Dot, kTileTokensOfTarget, true>(layout, panel, unpacked, blocks, sums);
      else
        MultiplyWideTile<kType, Dot, kTileTokensOfTarget, false>(layout, panel, nullptr, blocks, sums);
    }
  });
}

#endif

// Byte kByte of every lane: as the number that it is.
template <bool kSigned, int kByte>
HWY_INLINE VF ByteOfLanes(VU8 w, VF offset) {
  VI q = hn::BitCast(DI(), w);
  if constexpr (kSigned) {
    if constexpr (kByte < 3) q = hn::ShiftLeft<24 - 8 * kByte>(q);
    return hn::ConvertTo(DF(), hn::ShiftRight<24>(q));
  }
  if constexpr (kByte > 0) q = hn::ShiftRight<8 * kByte>(q);
  return hn::Sub(hn::ConvertTo(DF(), hn::And(q, hn::Set(DI(), 255))), offset);
}

template <TensorType kType>
void DecodeQuants(const PanelLayout& layout, const std::byte* panel, float* out) {
  using Format = PanelFormat<kType>;
  constexpr bool kSigned = Format::kBits == 8;
  const VF offset = hn::Set(DF(), static_cast<float>(Format::kOffset));
  for (size_t b = 0; b < layout.n_blocks; ++b) {
    for (size_t row = 0; row < kPanelRows; row += kLanes) {
      VU8 w[kBlockGroups];
      Format::LoadQuants(layout, panel, b, row, w);
      const BlockScales scales = Format::LoadScales(layout, panel, b, row);
      float* to = out + b * kBlockColumns * kPanelRows + row;
      KVRUN_UNROLL
      for (size_t g = 0; g < kBlockGroups; ++g, to += 4 * kPanelRows) {
        const bool second = Format::kHalves && g >= 4;
        const VF scale = second ? scales.second : scales.scale;
        VF v0 = hn::Mul(ByteOfLanes<kSigned, 0>(w[g], offset), scale);
        VF v1 = hn::Mul(ByteOfLanes<kSigned, 1>(w[g], offset), scale);
        VF v2 = hn::Mul(ByteOfLanes<kSigned, 2>(w[g], offset), scale);
        VF v3 = hn::Mul(ByteOfLanes<kSigned, 3>(w[g], offset), scale);
        if constexpr (Format::kHasMinimum) {
          const VF minimum = second ? scales.second_minimum : scales.minimum;
          v0 = hn::Add(v0, minimum);
          v1 = hn::Add(v1, minimum);
          v2 = hn::Add(v2, minimum);
          v3 = hn::Add(v3, minimum);
        }
        hn::StoreU(v0, DF(), to);
        hn::StoreU(v1, DF(), to + kPanelRows);
        hn::StoreU(v2, DF(), to + 2 * kPanelRows);
        hn::StoreU(v3, DF(), to + 3 * kPanelRows);
      }
    }
  }
}

inline void Decode(const PanelLayout& layout, const std::byte* panel, float* out) {
  WithQuants(layout.type, [&]<TensorType kType>() { DecodeQuants<kType>(layout, panel, out); });
}

HWY_INLINE VF LoadFloats(const float* from) { return hn::LoadU(DF(), from); }

HWY_INLINE VF LoadFloats(const hwy::float16_t* from) {
  return FromHalves(DF(), hn::LoadU(hn::Rebind<hwy::float16_t, DF>(), from));
}
HWY_INLINE VF LoadFloats(const hwy::bfloat16_t* from) {
  return hn::PromoteTo(DF(), hn::LoadU(hn::Rebind<hwy::bfloat16_t, DF>(), from));
}

#if KVRUN_HAS_NEON

template <uint32_t kTokens, typename T>
HWY_NOINLINE void MultiplyFloatTile(const T* panel, size_t n_cols, const float* x, TileSums& sums);

#else

// How far ahead floats are prefetched.
inline constexpr size_t kAheadBytes = 4096;

template <uint32_t kTokens, typename T>
void MultiplyFloatTile(const T* panel, size_t n_cols, const float* x, TileSums& sums) {
  // As many for any number of tokens: a token's sum does not depend on the others.
  constexpr size_t kParts = 2;
  for (size_t row = 0; row < kPanelRows; row += kLanes) {
    VF sum[kTokens * kParts];
    KVRUN_UNROLL
    for (VF& part : sum) part = hn::Zero(DF());
    const T* w = panel + row;
    size_t c = 0;
    for (; c + kParts <= n_cols; c += kParts) {
      if constexpr (kTokens == 1) {
        const auto* ahead = reinterpret_cast<const std::byte*>(w + c * kPanelRows) + kAheadBytes;
        KVRUN_UNROLL
        for (size_t i = 0; i < kParts * kPanelRows * sizeof(T); i += 64) PrefetchFar(ahead + i);
      }
      KVRUN_UNROLL
      for (size_t i = 0; i < kParts; ++i) {
        const VF values = LoadFloats(w + (c + i) * kPanelRows);
        KVRUN_UNROLL
        for (uint32_t t = 0; t < kTokens; ++t) {
          sum[i * kTokens + t] =
              hn::MulAdd(values, hn::Set(DF(), x[t * n_cols + c + i]), sum[i * kTokens + t]);
        }
      }
    }
    for (; c < n_cols; ++c) {
      const VF values = LoadFloats(w + c * kPanelRows);
      KVRUN_UNROLL
      for (uint32_t t = 0; t < kTokens; ++t) {
        sum[t] = hn::MulAdd(values, hn::Set(DF(), x[t * n_cols + c]), sum[t]);
      }
    }
    KVRUN_UNROLL
    for (uint32_t t = 0; t < kTokens; ++t) {
      KVRUN_UNROLL
      for (size_t i = 1; i < kParts; ++i) sum[t] = hn::Add(sum[t], sum[i * kTokens + t]);
      hn::StoreU(sum[t], DF(), sums[t] + row);
    }
  }
}

#endif

template <typename T>
void MultiplyFloats(const std::byte* panel, uint32_t n_cols, const float* x, uint32_t n_tokens,
                    TileSums& sums) {
  const auto* values = reinterpret_cast<const T*>(panel);
  switch (n_tokens) {
    case 1: return MultiplyFloatTile<1>(values, n_cols, x, sums);
    case 2: return MultiplyFloatTile<2>(values, n_cols, x, sums);
    case 4: return MultiplyFloatTile<4>(values, n_cols, x, sums);
    case 8: return MultiplyFloatTile<8>(values, n_cols, x, sums);
    default: KVRUN_CHECK(false);
  }
}

inline void MultiplyFloat(TensorType type, const std::byte* panel, uint32_t n_cols, const float* x,
                          uint32_t n_tokens, TileSums& sums) {
  switch (type) {
    case TensorType::kF32: return MultiplyFloats<float>(panel, n_cols, x, n_tokens, sums);
    case TensorType::kF16: return MultiplyFloats<hwy::float16_t>(panel, n_cols, x, n_tokens, sums);
    case TensorType::kBF16: return MultiplyFloats<hwy::bfloat16_t>(panel, n_cols, x, n_tokens, sums);
    default: KVRUN_CHECK(false);  // others are decoded first
  }
}

template <typename Dot>
MatMulKernels KernelsWith(Int8Products products) {
  return {
    .target = hwy::TargetName(HWY_TARGET), .products = products, .tile_tokens = kTileTokensOfTarget,
    .int8_tile_tokens = kTileTokensOfTarget, .quantize = Quantize<Dot>,
#if KVRUN_HAS_NEON
    .takes_wide = nullptr, .quantize_wide = nullptr, .multiply_wide = nullptr, .unpack = nullptr,
#else
    .takes_wide = TypeTakesWide<Dot>, .quantize_wide = QuantizeWide, .multiply_wide = MultiplyWide<Dot>,
    .unpack = Unpack<Dot>,
#endif
    .begin_int8 = nullptr, .end_int8 = nullptr, .multiply_int8 = MultiplyInt8<Dot>, .decode = Decode,
    .multiply_float = MultiplyFloat
  };
}

#if KVRUN_HAS_TILES
template <typename Dot>
MatMulKernels KernelsWithTiles() {
  MatMulKernels kernels = KernelsWith<Dot>(Int8Products::kTiles);
  kernels.unpack = nullptr;  // tiles have their own way
  kernels.int8_tile_tokens = Tiles::kTokens;
  kernels.begin_int8 = Tiles::Begin;
  kernels.end_int8 = Tiles::End;
  return kernels;
}
#endif

// The dot instruction is part of AVX3_DL; of AVX2 and NEON, it depends.
inline MatMulKernels MatMulKernelsOfTarget([[maybe_unused]] Int8Products most) {
#if KVRUN_HAS_TILES
  if (most == Int8Products::kTiles && Tiles::AreThere()) return KernelsWithTiles<Vnni512Dot>();
  return KernelsWith<Vnni512Dot>(Int8Products::kDot);
#elif HWY_TARGET == HWY_AVX3_DL
  return KernelsWith<Vnni512Dot>(Int8Products::kDot);
#elif HWY_TARGET == HWY_AVX2
  static const bool has_dot = AvxVnniDot::IsThere();
  if (has_dot && most != Int8Products::kPlain) return KernelsWith<AvxVnniDot>(Int8Products::kDot);
  return KernelsWith<MaddubsDot>(Int8Products::kPlain);
#elif HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_SSE4
  return KernelsWith<MaddubsDot>(Int8Products::kPlain);
#elif KVRUN_HAS_NEON
  static const bool has_tiles = SmmlaDot::IsThere();
  static const bool has_dot = SdotDot::IsThere();
  if (has_tiles && most == Int8Products::kTiles) return KernelsWith<SmmlaDot>(Int8Products::kTiles);
  if (has_dot && most != Int8Products::kPlain) return KernelsWith<SdotDot>(Int8Products::kDot);
  return KernelsWith<NeonMullDot>(Int8Products::kPlain);
#else
  return KernelsWith<PortableDot>(Int8Products::kPlain);
#endif
}

}  // namespace kvrun::host::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if KVRUN_HAS_NEON
#include "runtime/device/host/matmul_neon-inl.h"
#endif

#endif  // KVRUN_MATMUL_VECTOR_INL_H_
