// Reads the panels of runtime/device/host/matrix.h: lanes are rows. To be included once per target.

#if defined(KVRUN_PANEL_FORMATS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVRUN_PANEL_FORMATS_INL_H_
#undef KVRUN_PANEL_FORMATS_INL_H_
#else
#define KVRUN_PANEL_FORMATS_INL_H_
#endif

#include <hwy/highway.h>

#include <array>

#include "runtime/device/host/int8_dot-inl.h"
#include "runtime/device/host/matrix.h"
#include "runtime/device/host/prefetch.h"
#include "runtime/device/host/vector_math-inl.h"
#include "runtime/model/block_bits.h"

KVRUN_BEFORE_NAMESPACE();
namespace kvrun::host::HWY_NAMESPACE {

using DU16 = hn::Repartition<uint16_t, DI>;

inline constexpr size_t kLanes = HWY_LANES(float);
static_assert(kPanelRows % kLanes == 0);

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

// What codes stand for, plus kBias mod 256.
template <int32_t kBias>
alignas(16) inline constexpr auto kCodeValues = [] {
  std::array<uint8_t, 16> values{};
  for (size_t i = 0; i < 16; ++i) values[i] = static_cast<uint8_t>(kIq4Values[i] + kBias);
  return values;
}();

template <int32_t kBias>
HWY_INLINE VU8 LookUpCodes(VU8 codes) {
  return hn::TableLookupBytes(hn::LoadDup128(DU8(), kCodeValues<kBias>.data()), codes);
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

// kBits, kOffset: of the quants that LoadGroup gives. 8 bits: signed, no offset.
template <TensorType kType>
struct PanelFormat {
  static constexpr PlaneBytes kPlanes = GetPlaneBytes(kType);
  static constexpr bool kHalves = HasHalves(kType);
  static constexpr bool kHasSupers = kPlanes.supers != 0;
  static constexpr bool kHasMinimum = kHasSupers ? kPlanes.supers == 64 : kPlanes.scales == 64;
  static constexpr int kLowBits = static_cast<int>(kPlanes.quants / 64);  // 512: 8, 256: 4, 128: 2
  static constexpr int kBits = HasCodes(kType) ? 8 : kLowBits + static_cast<int>(kPlanes.high / 64);
  static constexpr int32_t kOffset = QuantOffset(kType);

  // A group of a block, of as many rows as there are lanes, from row first_row on. kBias: is added, mod 256,
  // where kBits is 8. Of several groups, the compiler loads what they share once.
  template <size_t kGroup, int32_t kBias = 0>
  static HWY_INLINE VU8 LoadGroup(const PanelLayout& layout, const std::byte* panel, size_t block,
                                  size_t first_row) {
    constexpr size_t kInByte = 8 / kLowBits;  // groups that share bytes
    constexpr int kAt = static_cast<int>(kGroup % kInByte) * kLowBits;
    const std::byte* quants = panel + size_t{kPlanes.quants} * block + 4 * first_row;
    VU8 w = hn::LoadU(DU8(), reinterpret_cast<const uint8_t*>(quants) + 64 * (kGroup / kInByte));
    if constexpr (kLowBits < 8) w = MovedBits<-kAt>(w, (1U << kLowBits) - 1);
    if constexpr (kLowBits == 8 && kBias != 0) w = hn::Xor(w, hn::Set(DU8(), uint8_t{kBias}));
    const auto* high =
        reinterpret_cast<const uint8_t*>(panel + layout.high + size_t{kPlanes.high} * block + 4 * first_row);
    if constexpr (kPlanes.high == 64) {
      constexpr int kUp = kLowBits - static_cast<int>(kGroup);
      w = hn::Or(w, MovedBits<kUp>(hn::LoadU(DU8(), high), 1U << kLowBits));
    }
    if constexpr (kPlanes.high == 128) {
      constexpr int kUp = 4 - 2 * static_cast<int>(kGroup % 4);
      w = hn::Or(w, MovedBits<kUp>(hn::LoadU(DU8(), high + 64 * (kGroup / 4)), 48));
    }
    if constexpr (HasCodes(kType)) w = LookUpCodes<kBias>(w);
    return w;
  }

  // w[g]: group g, from kGroup on.
  template <int32_t kBias = 0, size_t kGroup = 0>
  static HWY_INLINE void LoadQuants(const PanelLayout& layout, const std::byte* panel, size_t block,
                                    size_t first_row, VU8* w) {
    w[kGroup] = LoadGroup<kGroup, kBias>(layout, panel, block, first_row);
    if constexpr (kGroup + 1 < kBlockGroups)
      LoadQuants<kBias, kGroup + 1>(layout, panel, block, first_row, w);
  }

  // What LoadGroup and LoadScales will read: planes are short, and processors notice too late that another
  // begins.
  static HWY_INLINE void PrefetchBlock(const PanelLayout& layout, const std::byte* panel, size_t block,
                                       size_t first_row) {
    const std::byte* quants = panel + size_t{kPlanes.quants} * block + 4 * first_row;
    KVRUN_UNROLL
    for (size_t i = 0; i < kPlanes.quants; i += 64) PrefetchFar(quants + i);
    const std::byte* high = panel + layout.high + size_t{kPlanes.high} * block + 4 * first_row;
    KVRUN_UNROLL
    for (size_t i = 0; i < kPlanes.high; i += 64) PrefetchFar(high + i);
    PrefetchFar(panel + layout.scales + size_t{kPlanes.scales} * block);
    if constexpr (kHasSupers)
      PrefetchFar(panel + layout.supers + size_t{kPlanes.supers} * (block / kSuperBlocks));
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
