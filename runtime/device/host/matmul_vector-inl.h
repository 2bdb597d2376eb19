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

#include "platform/base/check.h"
#include "runtime/device/host/int8_dot-inl.h"
#include "runtime/device/host/int8_tiles-inl.h"
#include "runtime/device/host/panel_formats-inl.h"
#include "runtime/device/host/quantize_activations-inl.h"

KVRUN_BEFORE_NAMESPACE();
namespace kvrun::host::HWY_NAMESPACE {

static_assert(kPanelRows % HWY_LANES(float) == 0);
inline constexpr size_t kLanes = HWY_LANES(float);

// Half the registers for sums, the others for eight vectors of weights and what comes and goes.
inline constexpr uint32_t kTileTokensOfTarget = HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_SSE4 ? 4 : 8;

template <typename Dot>
void Quantize(TensorType type, const float* x, size_t n_rows, size_t n_blocks, ActivationBlock* blocks,
              FineBlock* fine, uint8_t* has_fine) {
  QuantizeActivations(type, Dot::kBias, x, n_rows, n_blocks, blocks, fine, has_fine);
}

// The products of a block of weights and quants of activations, times the weights' scales; plus the minima
// times the activations' sums where halves have minima: then `start` holds those sums.
template <TensorType kType, typename Dot>
HWY_INLINE VF ScaledProducts(const VU8* w, const BlockScales& scales, const int8_t* quants,
                             const int32_t* start) {
  constexpr int kBits = PanelFormat<kType>::kBits;
  if constexpr (PanelFormat<kType>::kHalves) {
    constexpr bool kMinima = PanelFormat<kType>::kHasMinimum;
    const VI first = Dot::template Columns<kBits, 4>(hn::Set(DI(), kMinima ? 0 : start[0]), w, quants);
    const VI second =
        Dot::template Columns<kBits, 4>(hn::Set(DI(), kMinima ? 0 : start[1]), w + 4, quants + 16);
    VF scaled = hn::MulAdd(hn::ConvertTo(DF(), second), scales.second,
                           hn::Mul(hn::ConvertTo(DF(), first), scales.scale));
    if constexpr (kMinima) {
      scaled = hn::MulAdd(scales.minimum, hn::Set(DF(), static_cast<float>(start[0])), scaled);
      scaled = hn::MulAdd(scales.second_minimum, hn::Set(DF(), static_cast<float>(start[1])), scaled);
    }
    return scaled;
  } else {
    const VI products = Dot::template Columns<kBits, kBlockGroups>(hn::Set(DI(), start[0]), w, quants);
    return hn::Mul(hn::ConvertTo(DF(), products), scales.scale);
  }
}

// What fine blocks add, apart from the other sums: whatever the size of a tile, a token's are added up in the
// same order.
struct FineSums {
  bool are_any = false;
  alignas(64) float sums[kTileTokens][kPanelRows];  // where are_any
};

// Block b of the tokens that has_fine names, of a vector of rows. Out of line, and in memory: the other sums
// stay in registers.
template <TensorType kType, typename Dot>
HWY_NOINLINE void AddFine(const PanelLayout& layout, const std::byte* panel, const ActivationTile& x,
                          size_t b, size_t row, uint32_t has_fine, FineSums& to) {
  using Format = PanelFormat<kType>;
  if (!to.are_any) std::memset(to.sums, 0, sizeof(to.sums));
  to.are_any = true;
  VU8 w[kBlockGroups];
  Format::template LoadQuants<Dot::kBias>(layout, panel, b, row, w);
  const BlockScales scales = Format::LoadScales(layout, panel, b, row);
  for (; has_fine != 0; has_fine &= has_fine - 1) {
    const auto t = static_cast<size_t>(hwy::Num0BitsBelowLS1Bit_Nonzero32(has_fine));
    const FineBlock& fine = x.fine[t * layout.n_blocks + b];
    const VF scaled = ScaledProducts<kType, Dot>(w, scales, fine.quants, fine.start);
    const VF scale = hn::Set(DF(), x.blocks[t * layout.n_blocks + b].scale / 256.0F);
    float* const sum = to.sums[t] + row;
    hn::Store(hn::MulAdd(scaled, scale, hn::Load(DF(), sum)), DF(), sum);
  }
}

template <TensorType kType, typename Dot, uint32_t kTokens>
void MultiplyTile(const PanelLayout& layout, const std::byte* panel, const ActivationTile& x,
                  TileSums& sums) {
  using Format = PanelFormat<kType>;
  const size_t n_blocks = layout.n_blocks;
  FineSums fine;
  for (size_t row = 0; row < kPanelRows; row += kLanes) {
    VF sum[kTokens];
    KVRUN_UNROLL
    for (uint32_t t = 0; t < kTokens; ++t) sum[t] = hn::Zero(DF());
    for (size_t b = 0; b < n_blocks; ++b) {
      VU8 w[kBlockGroups];
      Format::template LoadQuants<Dot::kBias>(layout, panel, b, row, w);
      const BlockScales scales = Format::LoadScales(layout, panel, b, row);
      if constexpr (kTokens == 1) Format::PrefetchBlock(layout, panel + layout.panel_bytes, b, row);
      KVRUN_UNROLL
      for (uint32_t t = 0; t < kTokens; ++t) {
        const ActivationBlock& a = x.blocks[t * n_blocks + b];
        const VF products = ScaledProducts<kType, Dot>(w, scales, a.quants, a.start);
        sum[t] = hn::MulAdd(products, hn::Set(DF(), a.scale), sum[t]);
        if constexpr (Format::kHasMinimum && !Format::kHalves) {
          sum[t] = hn::MulAdd(scales.minimum, hn::Set(DF(), a.scaled_sum), sum[t]);
        }
      }
      const uint32_t has_fine = static_cast<uint32_t>(x.has_fine[b]) >> x.first_bit & ((1U << kTokens) - 1);
      if (HWY_UNLIKELY(has_fine != 0)) AddFine<kType, Dot>(layout, panel, x, b, row, has_fine, fine);
    }
    KVRUN_UNROLL
    for (uint32_t t = 0; t < kTokens; ++t) {
      if (fine.are_any) sum[t] = hn::Add(sum[t], hn::Load(DF(), fine.sums[t] + row));
      hn::StoreU(sum[t], DF(), sums[t] + row);
    }
  }
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
        layout, panel, {x.blocks + next, x.fine + next, x.has_fine + layout.n_blocks, x.first_bit}, second);
    std::memcpy(sums[8], second, 8 * sizeof(second[0]));
  } else {
    TileProduct<kType, Dot>(layout, panel, x).Run(sums);
  }
}

#endif  // KVRUN_HAS_TILES

template <TensorType kType, typename Dot>
void MultiplyType(const PanelLayout& layout, const std::byte* panel, const ActivationTile& x,
                  uint32_t n_tokens, TileSums& sums) {
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

template <typename Dot>
void MultiplyInt8(const PanelLayout& layout, const std::byte* panel, const ActivationTile& x,
                  uint32_t n_tokens, TileSums& sums) {
  switch (layout.type) {
    case TensorType::kQ8_0: return MultiplyType<TensorType::kQ8_0, Dot>(layout, panel, x, n_tokens, sums);
    case TensorType::kQ4_0: return MultiplyType<TensorType::kQ4_0, Dot>(layout, panel, x, n_tokens, sums);
    case TensorType::kQ4_1: return MultiplyType<TensorType::kQ4_1, Dot>(layout, panel, x, n_tokens, sums);
    case TensorType::kQ5_0: return MultiplyType<TensorType::kQ5_0, Dot>(layout, panel, x, n_tokens, sums);
    case TensorType::kQ5_1: return MultiplyType<TensorType::kQ5_1, Dot>(layout, panel, x, n_tokens, sums);
    case TensorType::kQ2_K: return MultiplyType<TensorType::kQ2_K, Dot>(layout, panel, x, n_tokens, sums);
    case TensorType::kQ3_K: return MultiplyType<TensorType::kQ3_K, Dot>(layout, panel, x, n_tokens, sums);
    case TensorType::kQ4_K: return MultiplyType<TensorType::kQ4_K, Dot>(layout, panel, x, n_tokens, sums);
    case TensorType::kQ5_K: return MultiplyType<TensorType::kQ5_K, Dot>(layout, panel, x, n_tokens, sums);
    case TensorType::kQ6_K: return MultiplyType<TensorType::kQ6_K, Dot>(layout, panel, x, n_tokens, sums);
    case TensorType::kIQ4_NL: return MultiplyType<TensorType::kIQ4_NL, Dot>(layout, panel, x, n_tokens, sums);
    case TensorType::kIQ4_XS: return MultiplyType<TensorType::kIQ4_XS, Dot>(layout, panel, x, n_tokens, sums);
    default: KVRUN_CHECK(false);  // float types have no quants
  }
}

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
  switch (layout.type) {
    case TensorType::kQ8_0: return DecodeQuants<TensorType::kQ8_0>(layout, panel, out);
    case TensorType::kQ4_0: return DecodeQuants<TensorType::kQ4_0>(layout, panel, out);
    case TensorType::kQ4_1: return DecodeQuants<TensorType::kQ4_1>(layout, panel, out);
    case TensorType::kQ5_0: return DecodeQuants<TensorType::kQ5_0>(layout, panel, out);
    case TensorType::kQ5_1: return DecodeQuants<TensorType::kQ5_1>(layout, panel, out);
    case TensorType::kQ2_K: return DecodeQuants<TensorType::kQ2_K>(layout, panel, out);
    case TensorType::kQ3_K: return DecodeQuants<TensorType::kQ3_K>(layout, panel, out);
    case TensorType::kQ4_K: return DecodeQuants<TensorType::kQ4_K>(layout, panel, out);
    case TensorType::kQ5_K: return DecodeQuants<TensorType::kQ5_K>(layout, panel, out);
    case TensorType::kQ6_K: return DecodeQuants<TensorType::kQ6_K>(layout, panel, out);
    case TensorType::kIQ4_NL: return DecodeQuants<TensorType::kIQ4_NL>(layout, panel, out);
    case TensorType::kIQ4_XS: return DecodeQuants<TensorType::kIQ4_XS>(layout, panel, out);
    default: KVRUN_CHECK(false);  // float types are floats
  }
}

HWY_INLINE VF LoadFloats(const float* from) { return hn::LoadU(DF(), from); }

HWY_INLINE VF LoadFloats(const hwy::float16_t* from) {
  return FromHalves(DF(), hn::LoadU(hn::Rebind<hwy::float16_t, DF>(), from));
}
HWY_INLINE VF LoadFloats(const hwy::bfloat16_t* from) {
  return hn::PromoteTo(DF(), hn::LoadU(hn::Rebind<hwy::bfloat16_t, DF>(), from));
}

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
MatMulKernels KernelsWith(bool has_dot) {
  return {.target = hwy::TargetName(HWY_TARGET),
          .has_dot = has_dot,
          .tile_tokens = kTileTokensOfTarget,
          .int8_tile_tokens = kTileTokensOfTarget,
          .quantize = Quantize<Dot>,
          .begin_int8 = nullptr,
          .end_int8 = nullptr,
          .multiply_int8 = MultiplyInt8<Dot>,
          .decode = Decode,
          .multiply_float = MultiplyFloat};
}

#if KVRUN_HAS_TILES
template <typename Dot>
MatMulKernels KernelsWithTiles() {
  MatMulKernels kernels = KernelsWith<Dot>(true);
  kernels.int8_tile_tokens = Tiles::kTokens;
  kernels.begin_int8 = Tiles::Begin;
  kernels.end_int8 = Tiles::End;
  return kernels;
}
#endif

// The dot instruction is part of AVX3_DL; of AVX2 and NEON, it depends.
inline MatMulKernels MatMulKernelsOfTarget([[maybe_unused]] bool forbid_dot) {
#if KVRUN_HAS_TILES
  if (Tiles::AreThere() && !forbid_dot) return KernelsWithTiles<Vnni512Dot>();
  return KernelsWith<Vnni512Dot>(true);
#elif HWY_TARGET == HWY_AVX3_DL
  return KernelsWith<Vnni512Dot>(true);
#elif HWY_TARGET == HWY_AVX2
  static const bool has_dot = AvxVnniDot::IsThere();
  return has_dot && !forbid_dot ? KernelsWith<AvxVnniDot>(true) : KernelsWith<MaddubsDot>(false);
#elif HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_SSE4
  return KernelsWith<MaddubsDot>(false);
#elif HWY_TARGET == HWY_NEON && HWY_ARCH_ARM_A64
  static const bool has_dot = SdotDot::IsThere();
  return has_dot && !forbid_dot ? KernelsWith<SdotDot>(true) : KernelsWith<NeonMullDot>(false);
#else
  return KernelsWith<PortableDot>(false);
#endif
}

}  // namespace kvrun::host::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // KVRUN_MATMUL_VECTOR_INL_H_
