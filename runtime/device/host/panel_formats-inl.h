// Reads the panels of runtime/device/host/matrix.h: lanes are rows. To be included once per target.

#if defined(KVRUN_PANEL_FORMATS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVRUN_PANEL_FORMATS_INL_H_
#undef KVRUN_PANEL_FORMATS_INL_H_
#else
#define KVRUN_PANEL_FORMATS_INL_H_
#endif

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <array>

#include "runtime/device/host/int8_dot-inl.h"
#include "runtime/device/host/matrix.h"
#include "runtime/device/host/vector_math-inl.h"
#include "runtime/model/block_bits.h"

KVRUN_BEFORE_NAMESPACE();
namespace kvrun::host::HWY_NAMESPACE {

using DU16 = hn::Repartition<uint16_t, DI>;

HWY_INLINE VF LoadHalves(const std::byte* at) {
  const hn::Rebind<hwy::float16_t, DF> d;
  return FromHalves(DF(), hn::LoadU(d, reinterpret_cast<const hwy::float16_t*>(at)));
}

template <typename T>  // int8_t or uint8_t
HWY_INLINE VF LoadBytes(const std::byte* at) {
  const hn::Rebind<T, DF> d;
  return hn::ConvertTo(DF(), hn::PromoteTo(DI(), hn::LoadU(d, reinterpret_cast<const T*>(at))));
}

// The bits of `mask`, after those of v were moved up by kUp (down, where negative).
template <int kUp>
HWY_INLINE VU8 MovedBits(VU8 v, uint8_t mask) {
  const VU8 bits = hn::Set(DU8(), mask);
  const auto words = hn::BitCast(DU16(), v);
  if constexpr (kUp > 0) return hn::And(hn::BitCast(DU8(), hn::ShiftLeft<kUp>(words)), bits);
  if constexpr (kUp < 0) return hn::And(hn::BitCast(DU8(), hn::ShiftRight<-kUp>(words)), bits);
  return hn::And(v, bits);
}

// w[g]: group g of a block, of as many rows as there are lanes, beginning with the bytes at `at`.
HWY_INLINE void LoadNibbles(const std::byte* at, VU8* w) {
  const auto* quants = reinterpret_cast<const uint8_t*>(at);
  KVRUN_UNROLL
  for (size_t i = 0; i < 4; ++i) {
    const VU8 both = hn::LoadU(DU8(), quants + 64 * i);
    w[2 * i] = MovedBits<0>(both, 15);
    w[2 * i + 1] = MovedBits<-4>(both, 15);
  }
}

// The same of bit pairs.
HWY_INLINE void LoadBitPairs(const std::byte* at, VU8* w) {
  const auto* quants = reinterpret_cast<const uint8_t*>(at);
  KVRUN_UNROLL
  for (size_t i = 0; i < 2; ++i) {
    const VU8 four = hn::LoadU(DU8(), quants + 64 * i);
    w[4 * i] = MovedBits<0>(four, 3);
    w[4 * i + 1] = MovedBits<-2>(four, 3);
    w[4 * i + 2] = MovedBits<-4>(four, 3);
    w[4 * i + 3] = MovedBits<-6>(four, 3);
  }
}

// Bit g of the bytes becomes bit kBit of group g.
template <int kBit>
HWY_INLINE void AddBit(const std::byte* at, VU8* w) {
  constexpr uint8_t kMask = 1U << kBit;
  const VU8 bits = hn::LoadU(DU8(), reinterpret_cast<const uint8_t*>(at));
  w[0] = hn::Or(w[0], MovedBits<kBit>(bits, kMask));
  w[1] = hn::Or(w[1], MovedBits<kBit - 1>(bits, kMask));
  w[2] = hn::Or(w[2], MovedBits<kBit - 2>(bits, kMask));
  w[3] = hn::Or(w[3], MovedBits<kBit - 3>(bits, kMask));
  w[4] = hn::Or(w[4], MovedBits<kBit - 4>(bits, kMask));
  w[5] = hn::Or(w[5], MovedBits<kBit - 5>(bits, kMask));
  w[6] = hn::Or(w[6], MovedBits<kBit - 6>(bits, kMask));
  w[7] = hn::Or(w[7], MovedBits<kBit - 7>(bits, kMask));
}

HWY_INLINE void AddFifthAndSixthBits(const std::byte* at, VU8* w) {
  KVRUN_UNROLL
  for (size_t i = 0; i < 2; ++i) {
    const VU8 bits = hn::LoadU(DU8(), reinterpret_cast<const uint8_t*>(at) + 64 * i);
    w[4 * i] = hn::Or(w[4 * i], MovedBits<4>(bits, 48));
    w[4 * i + 1] = hn::Or(w[4 * i + 1], MovedBits<2>(bits, 48));
    w[4 * i + 2] = hn::Or(w[4 * i + 2], MovedBits<0>(bits, 48));
    w[4 * i + 3] = hn::Or(w[4 * i + 3], MovedBits<-2>(bits, 48));
  }
}

// What codes stand for, plus kBias mod 256.
template <int32_t kBias>
HWY_INLINE void LookUpCodes(VU8* w) {
  alignas(16) static constexpr auto kValues = [] {
    std::array<uint8_t, 16> values{};
    for (size_t i = 0; i < 16; ++i) values[i] = static_cast<uint8_t>(kIq4Values[i] + kBias);
    return values;
  }();
  const VU8 values = hn::LoadDup128(DU8(), kValues.data());
  KVRUN_UNROLL
  for (size_t g = 0; g < kBlockGroups; ++g) w[g] = hn::TableLookupBytes(values, w[g]);
}

// Scales of one block of as many rows as there are lanes: value = (quant - kOffset) * scale + minimum.
struct BlockScales {
  HWY_INLINE BlockScales() {
  }  // GCC makes an implicit one without this target's instructions, which NEON's VF() needs

  VF scale;
  VF minimum;  // where kHasMinimum
  VF second;   // both of columns 16 to 31, where kHalves
  VF second_minimum;
};

// kBits, kOffset: of the quants that LoadQuants gives. 8 bits: signed, no offset.
template <TensorType kType>
struct PanelFormat {
  static constexpr PlaneBytes kPlanes = GetPlaneBytes(kType);
  static constexpr bool kHalves = HasHalves(kType);
  static constexpr bool kHasSupers = kPlanes.supers != 0;
  static constexpr bool kHasMinimum = kHasSupers ? kPlanes.supers == 64 : kPlanes.scales == 64;
  static constexpr int kLowBits = static_cast<int>(kPlanes.quants / 64);  // 512: 8, 256: 4, 128: 2
  static constexpr int kBits = HasCodes(kType) ? 8 : kLowBits + static_cast<int>(kPlanes.high / 64);
  static constexpr int32_t kOffset = QuantOffset(kType);

  // From row first_row on. kBias: is added, mod 256, where kBits is 8.
  template <int32_t kBias = 0>
  static HWY_INLINE void LoadQuants(const PanelLayout& layout, const std::byte* panel, size_t block,
                                    size_t first_row, VU8* w) {
    const std::byte* quants = panel + size_t{kPlanes.quants} * block + 4 * first_row;
    const std::byte* high = panel + layout.high + size_t{kPlanes.high} * block + 4 * first_row;
    if constexpr (kLowBits == 8) {
      const auto* bytes = reinterpret_cast<const uint8_t*>(quants);
      KVRUN_UNROLL
      for (size_t g = 0; g < kBlockGroups; ++g) {
        w[g] = hn::LoadU(DU8(), bytes + 64 * g);
        if constexpr (kBias != 0) w[g] = hn::Xor(w[g], hn::Set(DU8(), uint8_t{kBias}));
      }
    }
    if constexpr (kLowBits == 4) LoadNibbles(quants, w);
    if constexpr (kLowBits == 2) LoadBitPairs(quants, w);
    if constexpr (kPlanes.high == 64) AddBit<kLowBits>(high, w);
    if constexpr (kPlanes.high == 128) AddFifthAndSixthBits(high, w);
    if constexpr (HasCodes(kType)) LookUpCodes<kBias>(w);
  }

  // What LoadQuants and LoadScales will read, but for supers: planes are short, and processors notice too
  // late that another begins.
  static HWY_INLINE void PrefetchBlock(const PanelLayout& layout, const std::byte* panel, size_t block,
                                       size_t first_row) {
    const std::byte* quants = panel + size_t{kPlanes.quants} * block + 4 * first_row;
    KVRUN_UNROLL
    for (size_t i = 0; i < kPlanes.quants; i += 64) hwy::Prefetch(quants + i);
    const std::byte* high = panel + layout.high + size_t{kPlanes.high} * block + 4 * first_row;
    KVRUN_UNROLL
    for (size_t i = 0; i < kPlanes.high; i += 64) hwy::Prefetch(high + i);
    hwy::Prefetch(panel + layout.scales + size_t{kPlanes.scales} * block);
  }

  static HWY_INLINE BlockScales LoadScales(const PanelLayout& layout, const std::byte* panel, size_t block,
                                           size_t first_row) {
    BlockScales out;
    const std::byte* scales = panel + layout.scales + size_t{kPlanes.scales} * block;
    if constexpr (!kHasSupers) {
      scales += 2 * first_row;
      out.scale = LoadHalves(scales);
      if constexpr (kHasMinimum) out.minimum = LoadHalves(scales + 32);
    } else {
      scales += first_row;
      const std::byte* supers =
          panel + layout.supers + size_t{kPlanes.supers} * (block / kSuperBlocks) + 2 * first_row;
      const VF d = LoadHalves(supers);
      if constexpr (kHalves && kHasMinimum) {
        const VF m = hn::Neg(LoadHalves(supers + 32));
        LoadNibbleScales(scales, d, m, out.scale, out.minimum);
        LoadNibbleScales(scales + kPanelRows, d, m, out.second, out.second_minimum);
      } else if constexpr (kHasMinimum) {
        out.scale = hn::Mul(d, LoadBytes<uint8_t>(scales));
        out.minimum = hn::Neg(hn::Mul(LoadHalves(supers + 32), LoadBytes<uint8_t>(scales + kPanelRows)));
      } else {
        out.scale = hn::Mul(d, LoadBytes<int8_t>(scales));
        if constexpr (kHalves) out.second = hn::Mul(d, LoadBytes<int8_t>(scales + kPanelRows));
      }
    }
    return out;
  }

 private:
  // d and m times the low and the high nibbles.
  static HWY_INLINE void LoadNibbleScales(const std::byte* at, VF d, VF m, VF& scale, VF& minimum) {
    const hn::Rebind<uint8_t, DF> bytes;
    const VI both = hn::PromoteTo(DI(), hn::LoadU(bytes, reinterpret_cast<const uint8_t*>(at)));
    scale = hn::Mul(d, hn::ConvertTo(DF(), hn::And(both, hn::Set(DI(), 15))));
    minimum = hn::Mul(m, hn::ConvertTo(DF(), hn::ShiftRight<4>(both)));
  }
};

}  // namespace kvrun::host::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // KVRUN_PANEL_FORMATS_INL_H_
