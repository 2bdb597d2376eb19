// The Dots of int8_dot-inl.h on 64-bit Arm. That file includes it, once per target.

#if defined(KVRUN_INT8_DOT_NEON_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVRUN_INT8_DOT_NEON_INL_H_
#undef KVRUN_INT8_DOT_NEON_INL_H_
#else
#define KVRUN_INT8_DOT_NEON_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>

#include "runtime/device/host/int8_dot-inl.h"

#if defined(__linux__)
#include <sys/auxv.h>
#endif

// sdot %0.4s, %1.16b, %2.16b, for an assembler that has not been told that the processor knows it.
#if !defined(__ARM_FEATURE_DOTPROD) && !defined(KVRUN_SDOT)
#if defined(__clang__)  // no directive of clang 14 allows it: bits, with the numbers of %0's ("v7") registers
asm(".irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31\n"
    ".set .Lkvrun_v\\n, \\n\n"
    ".endr\n");
#define KVRUN_SDOT ".inst 0x4e809400 | (.Lkvrun_%2 << 16) | (.Lkvrun_%1 << 5) | .Lkvrun_%0"
#else
#define KVRUN_SDOT ".arch armv8.2-a+dotprod+crypto\n\tsdot %0.4s, %1.16b, %2.16b"
#endif
#endif

KVRUN_BEFORE_NAMESPACE();
namespace kvrun::host::HWY_NAMESPACE {

// Products of bytes in 16 bits, and more added there while they fit; then both halves, pairwise, in 32.
struct NeonMullDot {
  static constexpr int32_t kBias = 0;

  template <int kBits, int kGroups>
  static HWY_INLINE VI Columns(VI sum, const VU8* w, const int8_t* a) {
    // (2^kBits - 1) * 127 each, or 128 * 127 with 8 bits, of 32767.
    constexpr int kFitting = kBits <= 5 ? 8 : kBits == 6 ? 4 : 2;
    constexpr int kGroupsIn16Bits = kGroups < kFitting ? kGroups : kFitting;
    static_assert(kGroups % kGroupsIn16Bits == 0);
    KVRUN_UNROLL
    for (int g = 0; g < kGroups; g += kGroupsIn16Bits) {
      int16x8_t low = vdupq_n_s16(0);
      int16x8_t high = vdupq_n_s16(0);
      KVRUN_UNROLL
      for (int i = g; i < g + kGroupsIn16Bits; ++i) {
        const int8x16_t weights = vreinterpretq_s8_u8(w[i].raw);
        const int8x16_t four = vreinterpretq_s8_s32(FourOf(a + 4 * i).raw);
        low = vmlal_s8(low, vget_low_s8(weights), vget_low_s8(four));
        high = vmlal_high_s8(high, weights, four);
      }
      sum.raw = vaddq_s32(sum.raw, vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high)));
    }
    return sum;
  }
};

// By assembler, where not every processor has it: see AvxVnniDot.
struct SdotDot {
  static constexpr int32_t kBias = 0;

  static bool IsThere() {
#if defined(__ARM_FEATURE_DOTPROD)
    return true;
#elif defined(__linux__)
    return (getauxval(AT_HWCAP) >> 20 & 1U) != 0;  // HWCAP_ASIMDDP
#else
    return false;
#endif
  }

  template <int kBits, int kGroups>
  static HWY_INLINE VI Columns(VI sum, const VU8* w, const int8_t* a) {
    KVRUN_UNROLL
    for (int g = 0; g < kGroups; ++g) {
      const VI four = FourOf(a + 4 * g);
#if defined(__ARM_FEATURE_DOTPROD)
      sum.raw = vdotq_s32(sum.raw, vreinterpretq_s8_u8(w[g].raw), vreinterpretq_s8_s32(four.raw));
#else
      asm(KVRUN_SDOT : "+w"(sum.raw) : "w"(w[g].raw), "w"(four.raw));
#endif
    }
    return sum;
  }
};

}  // namespace kvrun::host::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // KVRUN_INT8_DOT_NEON_INL_H_
