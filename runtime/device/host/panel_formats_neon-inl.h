// Reads the panels of runtime/device/host/matrix.h on 64-bit Arm: with its shifts of bytes and insertions of
// bits, and with additions instead of conversions, of which there are few per cycle. To be included once per
// target.

#if defined(KVRUN_PANEL_FORMATS_NEON_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVRUN_PANEL_FORMATS_NEON_INL_H_
#undef KVRUN_PANEL_FORMATS_NEON_INL_H_
#else
#define KVRUN_PANEL_FORMATS_NEON_INL_H_
#endif

#include <hwy/highway.h>

#include <cstring>

#include "runtime/device/host/panel_formats-inl.h"

KVRUN_BEFORE_NAMESPACE();
namespace kvrun::host::HWY_NAMESPACE {

// Left (kUp > 0) or right.
template <int kUp>
HWY_INLINE uint8x16_t ShiftBytes(uint8x16_t v) {
  if constexpr (kUp > 0) return vshlq_n_u8(v, kUp);
  if constexpr (kUp < 0) return vshrq_n_u8(v, -kUp);
  return v;
}

// The kCount bits of v from kFrom on, at kTo; bits below kTo are anything, those above are zero.
template <int kFrom, int kCount, int kTo>
HWY_INLINE uint8x16_t BitsAt(uint8x16_t v) {
  const uint8x16_t moved = ShiftBytes<kTo - kFrom>(v);
  if constexpr (kFrom + kCount == 8 && kTo <= kFrom) return moved;
  return vandq_u8(moved, vdupq_n_u8(((1U << kCount) - 1) << kTo));
}

// kLow bits of v from kFrom on, and above them what `above` has there.
template <int kFrom, int kLow>
HWY_INLINE uint8x16_t BitsBelow(uint8x16_t above, uint8x16_t v) {
  if constexpr (kFrom + kLow == 8) return vsriq_n_u8(above, v, kFrom);
  return vbslq_u8(vdupq_n_u8((1U << kLow) - 1), ShiftBytes<-kFrom>(v), above);
}

// Four unsigned bytes of each of kVectors vectors, those of `bytes`, which begins with 4 * kVectors that
// count.
template <size_t kVectors>
HWY_INLINE void BytesToFloats(uint8x16_t bytes, float offset, VF* out) {
  // The upper half of 2^23, whose last bit counts ones.
  const uint16x8_t upper = vdupq_n_u16(0x4B00);
  const VF base = hn::Set(DF(), 0x1p23F + offset);
  uint16x8_t words[2];
  words[0] = vreinterpretq_u16_u8(vzip1q_u8(bytes, vdupq_n_u8(0)));
  if constexpr (kVectors > 2) words[1] = vreinterpretq_u16_u8(vzip2q_u8(bytes, vdupq_n_u8(0)));
  KVRUN_UNROLL
  for (size_t v = 0; v < kVectors; ++v) {
    const uint16x8_t bits = v % 2 == 0 ? vzip1q_u16(words[v / 2], upper) : vzip2q_u16(words[v / 2], upper);
    out[v] = hn::Sub(VF{vreinterpretq_f32_u16(bits)}, base);
  }
}

template <size_t kVectors>
HWY_INLINE uint8x16_t LoadRowBytes(const std::byte* at) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(at);
  if constexpr (kVectors == 4) return vld1q_u8(bytes);
  if constexpr (kVectors == 2) return vcombine_u8(vld1_u8(bytes), vdup_n_u8(0));
  uint32_t four;
  std::memcpy(&four, bytes, sizeof(four));
  return vreinterpretq_u8_u32(vsetq_lane_u32(four, vdupq_n_u32(0), 0));
}

// Of kVectors vectors of rows.
template <size_t kVectors>
struct RowScales {
  HWY_INLINE RowScales() {}  // see BlockScales

  VF scale[kVectors];
  VF minimum[kVectors];
  VF second[kVectors];
  VF second_minimum[kVectors];
};

// What is common to a super-block.
template <size_t kVectors>
struct RowSupers {
  HWY_INLINE RowSupers() {}

  VF scale[kVectors];
  VF minimum[kVectors];
};

template <TensorType kType, size_t kVectors>
struct NeonPanelFormat : PanelFormat<kType> {
  using Base = PanelFormat<kType>;
  using Base::kHalves;
  using Base::kHasMinimum;
  using Base::kHasSupers;
  using Base::kLowBits;
  using Base::kPlanes;

  // Group kGroup of a block of four rows. Compilers see where two of them read the same bytes.
  template <int kGroup>
  static HWY_INLINE uint8x16_t LoadGroup(const PanelLayout& layout, const std::byte* panel, size_t block,
                                         size_t row) {
    constexpr int kGroupsOfByte = 8 / kLowBits;
    constexpr int kFrom = kGroup % kGroupsOfByte * kLowBits;
    const auto* bytes = reinterpret_cast<const uint8_t*>(panel);
    const uint8x16_t low =
        vld1q_u8(bytes + size_t{kPlanes.quants} * block + 4 * row + 64 * (kGroup / kGroupsOfByte));
    if constexpr (kPlanes.high != 0) {
      constexpr int kHighBits = static_cast<int>(kPlanes.high) / 64;
      constexpr int kHighGroups = 8 / kHighBits;
      const uint8x16_t high = vld1q_u8(bytes + layout.high + size_t{kPlanes.high} * block + 4 * row +
                                       64 * (kGroup / kHighGroups));
      return BitsBelow<kFrom, kLowBits>(BitsAt<kGroup % kHighGroups * kHighBits, kHighBits, kLowBits>(high),
                                        low);
    }
    if constexpr (kLowBits == 8) return low;
    const uint8x16_t bits = BitsAt<kFrom, kLowBits, 0>(low);
    if constexpr (HasCodes(kType)) return vqtbl1q_u8(vld1q_u8(kCodeValues<0>.data()), bits);
    return bits;
  }

  static HWY_INLINE void LoadSupers(const PanelLayout& layout, const std::byte* panel, size_t block,
                                    size_t row, RowSupers<kVectors>& out) {
    if constexpr (kHasSupers) {
      const std::byte* supers =
          panel + layout.supers + size_t{kPlanes.supers} * (block / kSuperBlocks) + 2 * row;
      KVRUN_UNROLL
      for (size_t v = 0; v < kVectors; ++v) {
        out.scale[v] = LoadHalves(supers + 8 * v);
        if constexpr (kHasMinimum) out.minimum[v] = hn::Neg(LoadHalves(supers + 32 + 8 * v));
      }
    }
  }

  static HWY_INLINE void LoadScales(const PanelLayout& layout, const std::byte* panel, size_t block,
                                    size_t row, const RowSupers<kVectors>& supers, RowScales<kVectors>& out) {
    const std::byte* scales = panel + layout.scales + size_t{kPlanes.scales} * block;
    if constexpr (!kHasSupers) {
      KVRUN_UNROLL
      for (size_t v = 0; v < kVectors; ++v) {
        out.scale[v] = LoadHalves(scales + 2 * row + 8 * v);
        if constexpr (kHasMinimum) out.minimum[v] = LoadHalves(scales + 32 + 2 * row + 8 * v);
      }
      return;
    }
    const uint8x16_t first = LoadRowBytes<kVectors>(scales + row);
    const uint8x16_t next = kPlanes.scales > 16 ? LoadRowBytes<kVectors>(scales + kPanelRows + row) : first;
    if constexpr (kHalves && kHasMinimum) {
      const uint8x16_t low = vdupq_n_u8(15);
      Scale(vandq_u8(first, low), 0, supers.scale, out.scale);
      Scale(vshrq_n_u8(first, 4), 0, supers.minimum, out.minimum);
      Scale(vandq_u8(next, low), 0, supers.scale, out.second);
      Scale(vshrq_n_u8(next, 4), 0, supers.minimum, out.second_minimum);
    } else if constexpr (kHasMinimum) {
      Scale(first, 0, supers.scale, out.scale);
      Scale(next, 0, supers.minimum, out.minimum);
    } else {  // signed
      const uint8x16_t sign = vdupq_n_u8(128);
      Scale(veorq_u8(first, sign), 128, supers.scale, out.scale);
      if constexpr (kHalves) Scale(veorq_u8(next, sign), 128, supers.scale, out.second);
    }
  }

 private:
  static HWY_INLINE void Scale(uint8x16_t bytes, float offset, const VF* by, VF* out) {
    BytesToFloats<kVectors>(bytes, offset, out);
    KVRUN_UNROLL
    for (size_t v = 0; v < kVectors; ++v) out[v] = hn::Mul(by[v], out[v]);
  }
};

}  // namespace kvrun::host::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // KVRUN_PANEL_FORMATS_NEON_INL_H_
