// Sums of products of 8-bit numbers in 32 bits, which Highway 1.0.3 has not: by each instruction set's own
// instruction. To be included once per target, by a file that uses foreach_target.h.
//
// A Dot is a struct with
//   kBias        what weights of 8 bits must have added to them (128: the instruction wants them unsigned)
//   MulPairs     if there: multiplies pairs of 16 bits and adds two in 32; for full tiles of tokens and
//                weights of 8 bits
//   kGroupsIn16Bits<kBits>, Pairs, Widen
//                if there: how many groups' products it adds up in 16 bits before they are widened, and how
//   kSumBase, ToFloats(sum)
//                if there: what sums must begin with, and how they become floats then
//   Columns<kBits, kGroups>(sum, w, a)
// where lane i of sum gets added, for g = 0 .. kGroups - 1 and j = 0 .. 3, byte 4 i + j of w[g] times a[4 g +
// j]. Weights are unsigned of kBits bits; with kBits == 8 they are signed, less kBias mod 256.

#if defined(KVRUN_INT8_DOT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVRUN_INT8_DOT_INL_H_
#undef KVRUN_INT8_DOT_INL_H_
#else
#define KVRUN_INT8_DOT_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>
#include <cstring>

// Loops over arrays of vectors must be unrolled, or the arrays lie in memory.
#undef KVRUN_UNROLL
#if defined(__clang__)
#define KVRUN_UNROLL _Pragma("clang loop unroll(full)")
#else
#define KVRUN_UNROLL _Pragma("GCC unroll 16")
#endif

#undef KVRUN_HAS_NEON
#define KVRUN_HAS_NEON (HWY_TARGET == HWY_NEON && HWY_ARCH_ARM_A64)

// As HWY_BEFORE_NAMESPACE, with the instructions used here.
#undef KVRUN_BEFORE_NAMESPACE
#if HWY_TARGET == HWY_AVX3_DL
#define KVRUN_BEFORE_NAMESPACE() \
  HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR ",avx512vnni") static_assert(true, "For requiring trailing semicolon")
#else
#define KVRUN_BEFORE_NAMESPACE() HWY_BEFORE_NAMESPACE()
#endif

#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128

KVRUN_BEFORE_NAMESPACE();
namespace kvrun::host::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using DF = hn::ScalableTag<float>;
using DI = hn::ScalableTag<int32_t>;
using DU8 = hn::Repartition<uint8_t, DI>;
using DI8 = hn::Repartition<int8_t, DI>;
using VF = hn::Vec<DF>;
using VI = hn::Vec<DI>;
using VU8 = hn::Vec<DU8>;

// The four activations of a group in every lane.
HWY_INLINE VI FourOf(const int8_t* a) {
  int32_t four;
  std::memcpy(&four, a, sizeof(four));
  return hn::Set(DI(), four);
}

// Any target: four products of sign-extended bytes. Slow; stands in where there is nothing better.
struct PortableDot {
  static constexpr int32_t kBias = 0;

  template <int kBits, int kGroups>
  static HWY_INLINE VI Columns(VI sum, const VU8* w, const int8_t* a) {
    for (int g = 0; g < kGroups; ++g) {
      const VI four = hn::BitCast(DI(), w[g]);
      sum = hn::Add(sum, hn::Mul(hn::ShiftRight<24>(hn::ShiftLeft<24>(four)), hn::Set(DI(), a[4 * g])));
      sum = hn::Add(sum, hn::Mul(hn::ShiftRight<24>(hn::ShiftLeft<16>(four)), hn::Set(DI(), a[4 * g + 1])));
      sum = hn::Add(sum, hn::Mul(hn::ShiftRight<24>(hn::ShiftLeft<8>(four)), hn::Set(DI(), a[4 * g + 2])));
      sum = hn::Add(sum, hn::Mul(hn::ShiftRight<24>(four), hn::Set(DI(), a[4 * g + 3])));
    }
    return sum;
  }
};

#if HWY_TARGET == HWY_AVX3_DL

struct Vnni512Dot {
  static constexpr int32_t kBias = 128;

  template <int kBits, int kGroups>
  static HWY_INLINE VI Columns(VI sum, const VU8* w, const int8_t* a) {
    KVRUN_UNROLL
    for (int g = 0; g < kGroups; ++g) sum.raw = _mm512_dpbusd_epi32(sum.raw, w[g].raw, FourOf(a + 4 * g).raw);
    return sum;
  }
};

#endif

#if HWY_TARGET == HWY_SSSE3 || HWY_TARGET == HWY_SSE4 || HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3

// pmaddubsw adds two products in 16 bits, and more are added there while they fit; pmaddwd then widens.
struct MaddubsDot {
  static constexpr int32_t kBias = 0;
  using VI16 = hn::Vec<hn::Repartition<int16_t, DI>>;

  // So many groups' pairs fit in 16 bits: (2^kBits - 1) * 127 * 2 each, of 32767.
  template <int kBits>
  static constexpr int kGroupsIn16Bits = kBits <= 4   ? 8
                                         : kBits == 5 ? 4
                                         : kBits == 6 ? 2
                                                      : 1;

  template <int kBits, int kGroups>
  static HWY_INLINE VI Columns(VI sum, const VU8* w, const int8_t* a) {
    KVRUN_UNROLL
    for (int g = 0; g < kGroups; g += kGroupsIn16Bits<kBits>) {
      VI16 pairs = Pairs<kBits == 8>(w[g], FourOf(a + 4 * g));
      KVRUN_UNROLL
      for (int i = 1; i < kGroupsIn16Bits<kBits> && g + i < kGroups; ++i) {
        pairs = hn::Add(pairs, Pairs<kBits == 8>(w[g + i], FourOf(a + 4 * (g + i))));
      }
      sum = hn::Add(sum, Widen(pairs));
    }
    return sum;
  }

  // The parts of Columns. Signed weights: magnitudes times activations with the weights' signs; 128 * 127 * 2
  // fits.
  template <bool kSigned>
  static HWY_INLINE VI16 Pairs(VU8 weights, VI a) {
#if HWY_TARGET == HWY_AVX3
    if constexpr (kSigned) {
      const __mmask64 negative = _mm512_movepi8_mask(weights.raw);
      a.raw = _mm512_mask_sub_epi8(a.raw, negative, _mm512_setzero_si512(), a.raw);
      weights.raw = _mm512_abs_epi8(weights.raw);
    }
    return VI16{_mm512_maddubs_epi16(weights.raw, a.raw)};
#elif HWY_TARGET == HWY_AVX2
    if constexpr (kSigned) {
      a.raw = _mm256_sign_epi8(a.raw, weights.raw);
      weights.raw = _mm256_abs_epi8(weights.raw);
    }
    return VI16{_mm256_maddubs_epi16(weights.raw, a.raw)};
#else
    if constexpr (kSigned) {
      a.raw = _mm_sign_epi8(a.raw, weights.raw);
      weights.raw = _mm_abs_epi8(weights.raw);
    }
    return VI16{_mm_maddubs_epi16(weights.raw, a.raw)};
#endif
  }

  static HWY_INLINE VI Widen(VI16 pairs) {
    return MulPairs(pairs, hn::Set(hn::Repartition<int16_t, DI>(), 1));
  }

  // Products of 16 bits, of which it adds two in 32.
  static HWY_INLINE VI MulPairs(VI16 a, VI16 b) {
#if HWY_TARGET == HWY_AVX3
    return VI{_mm512_madd_epi16(a.raw, b.raw)};
#elif HWY_TARGET == HWY_AVX2
    return VI{_mm256_madd_epi16(a.raw, b.raw)};
#else
    return VI{_mm_madd_epi16(a.raw, b.raw)};
#endif
  }
};

#endif

#if HWY_TARGET == HWY_AVX2

// AVX-VNNI is on processors that Highway knows as AVX2. By assembler: to allow the compiler these
// instructions would allow it to use them everywhere in this target.
struct AvxVnniDot {
  static constexpr int32_t kBias = 128;

  static bool IsThere() {
    uint32_t a = 7;
    uint32_t b = 0;
    uint32_t c = 1;
    uint32_t d = 0;
    asm volatile("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
    return (a >> 4 & 1U) != 0;
  }

  template <int kBits, int kGroups>
  static HWY_INLINE VI Columns(VI sum, const VU8* w, const int8_t* a) {
    KVRUN_UNROLL
    for (int g = 0; g < kGroups; ++g) {
      const VI four = FourOf(a + 4 * g);
      asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum.raw) : "x"(w[g].raw), "x"(four.raw));
    }
    return sum;
  }
};

#endif

template <typename Dot>
constexpr int32_t SumBase() {
  if constexpr (requires { Dot::kSumBase; })
    return Dot::kSumBase;
  else
    return 0;
}

template <typename Dot, int kBits>
constexpr size_t GroupsIn16Bits() {
  if constexpr (requires { Dot::template kGroupsIn16Bits<kBits>; })
    return Dot::template kGroupsIn16Bits<kBits>;
  else
    return 1;
}

}  // namespace kvrun::host::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if KVRUN_HAS_NEON
#include "runtime/device/host/int8_dot_neon-inl.h"
#endif

#endif  // not HWY_SCALAR

#endif  // KVRUN_INT8_DOT_INL_H_
