// The Dots of int8_dot-inl.h on 64-bit Arm. That file includes it, once per target.
//
// Their sums begin with kSumBase, so that they are floats' bits as they are: the conversion of integers is
// slow on most of these processors, an addition is not.

#if defined(KVRUN_INT8_DOT_NEON_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVRUN_INT8_DOT_NEON_INL_H_
#undef KVRUN_INT8_DOT_NEON_INL_H_
#else
#define KVRUN_INT8_DOT_NEON_INL_H_
#endif

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>
#include <utility>

#include "runtime/device/host/int8_dot-inl.h"

#if defined(__linux__)
#include <sys/auxv.h>
#endif

// Instructions for an assembler that has not been told that the processor knows them; d, n, m and lane are
// numbers of operands. Four bytes of m, those of a lane, times each four of n; two rows of eight bytes of n
// times two of m.
#if !defined(KVRUN_SDOT_LANE)
#if defined(__clang__)  // no directive of clang 14 allows it: bits, with the numbers of the operands' ("v7")
                        // registers
asm(".irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31\n"
    ".set .Lkvrun_v\\n, \\n\n"
    ".endr\n");
#define KVRUN_REGISTERS(d, n, m) "(.Lkvrun_%" #m " << 16) | (.Lkvrun_%" #n " << 5) | .Lkvrun_%" #d "\n"
#define KVRUN_SDOT_LANE(d, n, m, lane) \
  ".inst 0x4f80e000 | ((%c" #lane " & 1) << 21) | ((%c" #lane " >> 1) << 11) | " KVRUN_REGISTERS(d, n, m)
#define KVRUN_SMMLA(d, n, m) ".inst 0x4e80a400 | " KVRUN_REGISTERS(d, n, m)
#else
#define KVRUN_SDOT_LANE(d, n, m, lane) \
  ".arch armv8.2-a+dotprod+crypto\n\tsdot %" #d ".4s, %" #n ".16b, %" #m ".4b[%c" #lane "]\n\t"
#define KVRUN_SMMLA(d, n, m) ".arch armv8.6-a+i8mm+crypto\n\tsmmla %" #d ".4s, %" #n ".16b, %" #m ".16b\n\t"
#endif
#endif

KVRUN_BEFORE_NAMESPACE();
namespace kvrun::host::HWY_NAMESPACE {

struct FloatBitsSum {
  static constexpr int32_t kBias = 0;
  // The bits of 1.5 * 2^23, whose last bit counts ones. What is added stays below 2^22.
  static constexpr int32_t kSumBase = 0x4B400000;

  static HWY_INLINE VF ToFloats(VI sum) { return hn::Sub(hn::BitCast(DF(), sum), hn::Set(DF(), 0x1.8p23F)); }
};

// Several sums at a time, so that the one need not wait for the other: AddColumns<kBits, kFirst, kGroups,
// kSums>(sums, weights, a) does to each of them what Columns does. weights(integral_constant of g, i) are
// group g of sum i, from kFirst on; a[i] its activations, from group 0 on.
template <typename Dot, int kBits, int kGroups>
HWY_INLINE VI AddToOne(VI sum, const VU8* w, const int8_t* a) {
  Dot::template AddColumns<kBits, 0, kGroups, 1>(
      &sum, [w](auto g, size_t) { return w[g].raw; }, &a);
  return sum;
}

// Products of bytes in 16 bits, and more added there while they fit; then two at a time in 32.
struct NeonMullDot : FloatBitsSum {
  static constexpr bool kInTurn = true;
  static constexpr size_t SumsAtATime(uint32_t n_tokens) { return n_tokens <= 2 ? 4 : 2; }

  template <int kBits, int kGroups>
  static HWY_INLINE VI Columns(VI sum, const VU8* w, const int8_t* a) {
    return AddToOne<NeonMullDot, kBits, kGroups>(sum, w, a);
  }

  template <int kBits, int kFirst, int kGroups, size_t kSums, typename Weights>
  static HWY_INLINE void AddColumns(VI* sums, const Weights& weights, const int8_t* const* a) {
    // (2^kBits - 1) * 127 each, or 128 * 127 with 8 bits, of 32767.
    constexpr int kFitting = kBits <= 5 ? 8 : kBits == 6 ? 4 : 2;
    if constexpr (kGroups <= kFitting) {
      Halves<int16x8_t> products[kSums];
      MultiplyAll<kFirst>(products, weights, a, std::make_integer_sequence<int, kGroups>());
      KVRUN_UNROLL
      for (size_t i = 0; i < kSums; ++i) {
        if constexpr (kBits <= 4)  // another two fit
          sums[i].raw = vpadalq_s16(sums[i].raw, vpaddq_s16(products[i].low, products[i].high));
        else
          Add(sums[i], {vpaddlq_s16(products[i].low), vpaddlq_s16(products[i].high)});
      }
    } else {
      static_assert(kGroups % kFitting == 0);
      Halves<int32x4_t> wide[kSums];
      WidenAll<kFirst, kFitting>(wide, weights, a, std::make_integer_sequence<int, kGroups / kFitting>());
      KVRUN_UNROLL
      for (size_t i = 0; i < kSums; ++i) Add(sums[i], wide[i]);
    }
  }

 private:
  // Of two rows each.
  template <typename V>
  struct Halves {
    V low;
    V high;
  };

  static HWY_INLINE void Add(VI& sum, const Halves<int32x4_t>& wide) {
    sum.raw = vaddq_s32(sum.raw, vpaddq_s32(wide.low, wide.high));
  }

  template <int kFirst, size_t kSums, typename Weights, int... kGroup>
  static HWY_INLINE void MultiplyAll(Halves<int16x8_t> (&to)[kSums], const Weights& weights,
                                     const int8_t* const* a, std::integer_sequence<int, kGroup...>) {
    (MultiplyGroup<kFirst + kGroup, kGroup == 0>(to, weights, a), ...);
  }

  template <int kGroup, bool kIsFirst, size_t kSums, typename Weights>
  static HWY_INLINE void MultiplyGroup(Halves<int16x8_t> (&to)[kSums], const Weights& weights,
                                       const int8_t* const* a) {
    KVRUN_UNROLL
    for (size_t i = 0; i < kSums; ++i) {
      const int8x16_t w = vreinterpretq_s8_u8(weights(std::integral_constant<int, kGroup>(), i));
      int8x16_t four = vreinterpretq_s8_s32(
          vdupq_laneq_s32(vreinterpretq_s32_s8(vld1q_s8(a[i] + kGroup / 4 * 16)), kGroup % 4));
#if defined(__clang__)  // it would see that both halves are the same, and not find smlal2
      asm("" : "+w"(four));
#endif
      to[i].low = kIsFirst ? vmull_s8(vget_low_s8(w), vget_low_s8(four))
                           : vmlal_s8(to[i].low, vget_low_s8(w), vget_low_s8(four));
      to[i].high = kIsFirst ? vmull_high_s8(w, four) : vmlal_high_s8(to[i].high, w, four);
    }
  }

  template <int kFirst, int kFitting, size_t kSums, typename Weights, int... kPart>
  static HWY_INLINE void WidenAll(Halves<int32x4_t> (&to)[kSums], const Weights& weights,
                                  const int8_t* const* a, std::integer_sequence<int, kPart...>) {
    (WidenPart<kFirst + kPart * kFitting, kFitting, kPart == 0>(to, weights, a), ...);
  }

  template <int kFirst, int kFitting, bool kIsFirst, size_t kSums, typename Weights>
  static HWY_INLINE void WidenPart(Halves<int32x4_t> (&to)[kSums], const Weights& weights,
                                   const int8_t* const* a) {
    Halves<int16x8_t> products[kSums];
    MultiplyAll<kFirst>(products, weights, a, std::make_integer_sequence<int, kFitting>());
    KVRUN_UNROLL
    for (size_t i = 0; i < kSums; ++i) {
      to[i].low = kIsFirst ? vpaddlq_s16(products[i].low) : vpadalq_s16(to[i].low, products[i].low);
      to[i].high = kIsFirst ? vpaddlq_s16(products[i].high) : vpadalq_s16(to[i].high, products[i].high);
    }
  }
};

// By assembler, where not every processor has it: see AvxVnniDot.
struct SdotDot : FloatBitsSum {
  static constexpr bool kInTurn = false;
  static constexpr size_t SumsAtATime(uint32_t /*n_tokens*/) { return 4; }

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
    return AddToOne<SdotDot, kBits, kGroups>(sum, w, a);
  }

  template <int kBits, int kFirst, int kGroups, size_t kSums, typename Weights>
  static HWY_INLINE void AddColumns(VI* sums, const Weights& weights, const int8_t* const* a) {
    AddAll<kFirst, kSums>(sums, weights, a, std::make_integer_sequence<int, kGroups>());
  }

 private:
  template <int kFirst, size_t kSums, typename Weights, int... kGroup>
  static HWY_INLINE void AddAll(VI* sums, const Weights& weights, const int8_t* const* a,
                                std::integer_sequence<int, kGroup...>) {
    (AddGroup<kFirst + kGroup, kSums>(sums, weights, a), ...);
  }

  template <int kGroup, size_t kSums, typename Weights>
  static HWY_INLINE void AddGroup(VI* sums, const Weights& weights, const int8_t* const* a) {
    constexpr std::integral_constant<int, kGroup> kG;
    constexpr int kLane = kGroup % 4;
    constexpr int kFrom = kGroup / 4 * 16;
#if defined(__ARM_FEATURE_DOTPROD)
    KVRUN_UNROLL
    for (size_t i = 0; i < kSums; ++i) {
      sums[i].raw =
          vdotq_laneq_s32(sums[i].raw, vreinterpretq_s8_u8(weights(kG, i)), vld1q_s8(a[i] + kFrom), kLane);
    }
#else
    if constexpr (kSums == 4) {                    // in this order, which compilers would not keep
      asm(KVRUN_SDOT_LANE(0, 4, 8, 12) KVRUN_SDOT_LANE(1, 5, 9, 12) KVRUN_SDOT_LANE(2, 6, 10, 12)
              KVRUN_SDOT_LANE(3, 7, 11, 12)
          : "+&w"(sums[0].raw), "+&w"(sums[1].raw), "+&w"(sums[2].raw), "+&w"(sums[3].raw)
          : "w"(weights(kG, 0)), "w"(weights(kG, 1)), "w"(weights(kG, 2)), "w"(weights(kG, 3)),
            "w"(vld1q_s8(a[0] + kFrom)), "w"(vld1q_s8(a[1] + kFrom)), "w"(vld1q_s8(a[2] + kFrom)),
            "w"(vld1q_s8(a[3] + kFrom)), "i"(kLane));
    } else {
      KVRUN_UNROLL
      for (size_t i = 0; i < kSums; ++i) {
        asm(KVRUN_SDOT_LANE(0, 1, 2, 3)
            : "+w"(sums[i].raw)
            : "w"(weights(kG, i)), "w"(vld1q_s8(a[i] + kFrom)), "i"(kLane));
      }
    }
#endif
  }
};

// Of one token like SdotDot; of two by the instruction for two rows (int8_tiles_neon-inl.h).
struct SmmlaDot : SdotDot {
  static bool IsThere() {
#if defined(__ARM_FEATURE_MATMUL_INT8)
    return SdotDot::IsThere();
#elif defined(__linux__)
    return SdotDot::IsThere() && (getauxval(AT_HWCAP2) >> 13 & 1U) != 0;  // HWCAP2_I8MM
#else
    return false;
#endif
  }

  // sums[i] += the two rows of w[i] times the two of a.
  static HWY_INLINE void AddTwo(VI* sums, const uint8x16_t* w, int8x16_t a) {
#if defined(__ARM_FEATURE_MATMUL_INT8)
    for (int i = 0; i < 2; ++i) sums[i].raw = vmmlaq_s32(sums[i].raw, vreinterpretq_s8_u8(w[i]), a);
#else
    asm(KVRUN_SMMLA(0, 2, 4) KVRUN_SMMLA(1, 3, 4)
        : "+&w"(sums[0].raw), "+&w"(sums[1].raw)
        : "w"(w[0]), "w"(w[1]), "w"(a));
#endif
  }

  // sums[i] += w[i % 2] times the first a, and from 2 on the second.
  static HWY_INLINE void AddFour(VI* sums, const uint8x16_t* w, int8x16_t first, int8x16_t second) {
#if defined(__ARM_FEATURE_MATMUL_INT8)
    AddTwo(sums, w, first);
    AddTwo(sums + 2, w, second);
#else
    asm(KVRUN_SMMLA(0, 4, 6) KVRUN_SMMLA(1, 5, 6) KVRUN_SMMLA(2, 4, 7) KVRUN_SMMLA(3, 5, 7)
        : "+&w"(sums[0].raw), "+&w"(sums[1].raw), "+&w"(sums[2].raw), "+&w"(sums[3].raw)
        : "w"(w[0]), "w"(w[1]), "w"(first), "w"(second));
#endif
  }
};

}  // namespace kvrun::host::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // KVRUN_INT8_DOT_NEON_INL_H_
