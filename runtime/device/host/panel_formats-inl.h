// Reads the panels of runtime/device/host/matrix.h: lanes are rows. To be included once per target.

#if defined(KVRUN_PANEL_FORMATS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVRUN_PANEL_FORMATS_INL_H_
#undef KVRUN_PANEL_FORMATS_INL_H_
#else
#define KVRUN_PANEL_FORMATS_INL_H_
#endif

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include "runtime/device/host/int8_dot-inl.h"
#include "runtime/device/host/matrix.h"

KVRUN_BEFORE_NAMESPACE();
namespace kvrun::host::HWY_NAMESPACE {

using DU16 = hn::Repartition<uint16_t, DI>;

HWY_INLINE VF LoadHalves(const std::byte* at) {
  const hn::Rebind<hwy::float16_t, DF> d;
  return hn::PromoteTo(DF(), hn::LoadU(d, reinterpret_cast<const hwy::float16_t*>(at)));
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

HWY_INLINE void AddFifthBits(const std::byte* at, VU8* w) {
  const VU8 bits = hn::LoadU(DU8(), reinterpret_cast<const uint8_t*>(at));
  w[0] = hn::Or(w[0], MovedBits<4>(bits, 16));
  w[1] = hn::Or(w[1], MovedBits<3>(bits, 16));
  w[2] = hn::Or(w[2], MovedBits<2>(bits, 16));
  w[3] = hn::Or(w[3], MovedBits<1>(bits, 16));
  w[4] = hn::Or(w[4], MovedBits<0>(bits, 16));
  w[5] = hn::Or(w[5], MovedBits<-1>(bits, 16));
  w[6] = hn::Or(w[6], MovedBits<-2>(bits, 16));
  w[7] = hn::Or(w[7], MovedBits<-3>(bits, 16));
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

// Scales of one block of as many rows as there are lanes: value = (quant - kOffset) * scale + minimum.
struct BlockScales {
  VF scale;
  VF second;   // of columns 16 to 31, where kHalves
  VF minimum;  // where kHasMinimum
};

// kBits, kOffset: of the quants; kHighBytes: of a block. 8 bits: signed, no offset.
template <TensorType kType>
struct PanelFormat {
  static constexpr bool kHalves = kType == TensorType::kQ6_K;
  static constexpr bool kHasFiveBits =
      kType == TensorType::kQ5_0 || kType == TensorType::kQ5_1 || kType == TensorType::kQ5_K;
  static constexpr bool kHasSupers =
      kType == TensorType::kQ4_K || kType == TensorType::kQ5_K || kType == TensorType::kQ6_K;
  static constexpr bool kHasMinimum = kType == TensorType::kQ4_1 || kType == TensorType::kQ5_1 ||
                                      kType == TensorType::kQ4_K || kType == TensorType::kQ5_K;
  static constexpr int kBits = kType == TensorType::kQ8_0 ? 8 : kHalves ? 6 : kHasFiveBits ? 5 : 4;
  static constexpr int32_t kOffset = kType == TensorType::kQ4_0   ? 8
                                     : kType == TensorType::kQ5_0 ? 16
                                     : kHalves                    ? 32
                                                                  : 0;

  // From row first_row on.
  static HWY_INLINE void LoadQuants(const PanelLayout& layout, const std::byte* panel, size_t block,
                                    size_t first_row, VU8* w) {
    if constexpr (kBits == 8) {
      const auto* quants = reinterpret_cast<const uint8_t*>(panel + 512 * block + 4 * first_row);
      KVRUN_UNROLL
      for (size_t g = 0; g < kBlockGroups; ++g) w[g] = hn::LoadU(DU8(), quants + 64 * g);
    } else {
      LoadNibbles(panel + 256 * block + 4 * first_row, w);
      const std::byte* high = panel + layout.high + 4 * first_row;
      if constexpr (kBits == 5) AddFifthBits(high + 64 * block, w);
      if constexpr (kBits == 6) AddFifthAndSixthBits(high + 128 * block, w);
    }
  }

  // What LoadQuants and LoadScales will read, but for supers: planes are short, and processors notice too
  // late that another begins.
  static HWY_INLINE void PrefetchBlock(const PanelLayout& layout, const std::byte* panel, size_t block,
                                       size_t first_row) {
    const size_t bytes = kBits == 8 ? 512 : 256;
    const std::byte* quants = panel + bytes * block + 4 * first_row;
    KVRUN_UNROLL
    for (size_t i = 0; i < bytes; i += 64) hwy::Prefetch(quants + i);
    if constexpr (kBits == 5) hwy::Prefetch(panel + layout.high + 64 * block + 4 * first_row);
    if constexpr (kBits == 6) {
      hwy::Prefetch(panel + layout.high + 128 * block + 4 * first_row);
      hwy::Prefetch(panel + layout.high + 128 * block + 64 + 4 * first_row);
    }
    hwy::Prefetch(panel + layout.scales + (kHasMinimum && !kHasSupers ? 64 : 32) * block);
  }

  static HWY_INLINE BlockScales LoadScales(const PanelLayout& layout, const std::byte* panel, size_t block,
                                           size_t first_row) {
    BlockScales out;
    const std::byte* scales = panel + layout.scales;
    if constexpr (!kHasSupers) {
      scales += (kHasMinimum ? 64 : 32) * block + 2 * first_row;
      out.scale = LoadHalves(scales);
      if constexpr (kHasMinimum) out.minimum = LoadHalves(scales + 32);
    } else {
      scales += 32 * block + first_row;
      const std::byte* supers =
          panel + layout.supers + (kHalves ? 32 : 64) * (block / kSuperBlocks) + 2 * first_row;
      const VF d = LoadHalves(supers);
      if constexpr (kHalves) {
        out.scale = hn::Mul(d, LoadBytes<int8_t>(scales));
        out.second = hn::Mul(d, LoadBytes<int8_t>(scales + kPanelRows));
      } else {
        out.scale = hn::Mul(d, LoadBytes<uint8_t>(scales));
        out.minimum = hn::Neg(hn::Mul(LoadHalves(supers + 32), LoadBytes<uint8_t>(scales + kPanelRows)));
      }
    }
    return out;
  }
};

}  // namespace kvrun::host::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // KVRUN_PANEL_FORMATS_INL_H_
