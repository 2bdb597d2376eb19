// Numbers rounded to 16 bits, two products of which one instruction adds in 32. Compiled once for each
// instruction set, hence the guard.
#if defined(KVRUN_HOST_ROUNDED_PAIRS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVRUN_HOST_ROUNDED_PAIRS_INL_H_
#undef KVRUN_HOST_ROUNDED_PAIRS_INL_H_
#else
#define KVRUN_HOST_ROUNDED_PAIRS_INL_H_
#endif

#include <hwy/highway.h>

#include <cstring>

#include "runtime/device/host/attend_elements-inl.h"

// x86 has the instruction; elsewhere it saves nothing.
#undef KVRUN_ATTENDS_ROUNDED
#if HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
#define KVRUN_ATTENDS_ROUNDED 1
#else
#define KVRUN_ATTENDS_ROUNDED 0
#endif

#if KVRUN_ATTENDS_ROUNDED

HWY_BEFORE_NAMESPACE();
namespace kvrun::host::HWY_NAMESPACE {

using Ints = hn::Rebind<int32_t, Floats>;
using IntVector = hn::Vec<Ints>;

constexpr float kRoundedLength = 32700.0F;  // of queries and keys
// A number of up to 22 bits added to this is rounded, and lies in its lowest bits.
constexpr float kToLowBits = 0x1.8p23F;

// Each lane is two numbers of 16 bits: sum + a[0] b[0] + a[1] b[1].
HWY_INLINE IntVector AddPairs(IntVector sum, IntVector a, IntVector b) {
#if HWY_TARGET == HWY_AVX3_DL
  // Not the intrinsic: around that, GCC 12 moves every sum to another register and back.
  asm("vpdpwssd %2, %1, %0" : "+v"(sum.raw) : "v"(a.raw), "v"(b.raw));
  return sum;
#else
  const hn::Repartition<int16_t, Ints> words;
  IntVector unused = hn::Zero(Ints());
  return hn::ReorderWidenMulAccumulate(Ints(), hn::BitCast(words, a), hn::BitCast(words, b), sum, unused);
#endif
}

HWY_INLINE IntVector PairOf(const int16_t* pair) {
  int32_t both;
  std::memcpy(&both, pair, sizeof(both));
  return hn::Set(Ints(), both);
}

// The lowest bits of both in each lane. Both: with kToLowBits added.
HWY_INLINE IntVector MakePairs(Vector first, Vector second) {
  const Ints d;
  const IntVector low = hn::And(hn::BitCast(d, first), hn::Set(d, 0xffff));
  return hn::Or(low, hn::ShiftLeft<16>(hn::BitCast(d, second)));
}

// 1 / step, or 0.
HWY_INLINE Vector InverseOf(Vector step) {
  const Floats d;
  return hn::IfThenElseZero(hn::Gt(step, hn::Zero(d)), hn::Div(hn::Set(d, 1.0F), step));
}

// Rows of numbers [n_rows, dims], n_rows up to kBlockEntries, to whole numbers and the steps these stand for.
// What is no number makes a step that is none. Memory of `from` up to a multiple of kLanes rows is read.
void RoundRows(const float* HWY_RESTRICT from, size_t n_rows, size_t dims, int16_t* HWY_RESTRICT to,
               float* HWY_RESTRICT steps) {
  const Floats d;
  const hn::Rebind<uint16_t, Floats> words;
  const hn::Rebind<uint32_t, Floats> bits;
  const Vector to_low_bits = hn::Set(d, kToLowBits);
  alignas(64) float inverses[kLanes];
  for (size_t begin = 0; begin < n_rows; begin += kLanes) {
    Vector squares[kLanes];
    for (size_t r = 0; r < kLanes; ++r) {
      squares[r] = hn::Zero(d);
      for (size_t i = 0; i < dims; i += kLanes) {
        const Vector x = hn::Load(d, from + (begin + r) * dims + i);
        squares[r] = hn::MulAdd(x, x, squares[r]);
      }
    }
    const Vector step = hn::Mul(hn::Sqrt(SumEach<kLanes>(d, squares)), hn::Set(d, 1.0F / kRoundedLength));
    hn::Store(step, d, steps + begin);
    hn::Store(InverseOf(step), d, inverses);
    for (size_t r = 0; r < HWY_MIN(kLanes, n_rows - begin); ++r) {
      const Vector inverse = hn::Set(d, inverses[r]);
      for (size_t i = (begin + r) * dims; i < (begin + r + 1) * dims; i += kLanes) {
        const Vector rounded = hn::MulAdd(hn::Load(d, from + i), inverse, to_low_bits);
        hn::StoreU(hn::TruncateTo(words, hn::BitCast(bits, rounded)), words,
                   reinterpret_cast<uint16_t*>(to) + i);
      }
    }
  }
}

}  // namespace kvrun::host::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // KVRUN_ATTENDS_ROUNDED

#endif  // KVRUN_HOST_ROUNDED_PAIRS_INL_H_
