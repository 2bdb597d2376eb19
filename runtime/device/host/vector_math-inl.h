// Functions of vectors that Highway's package does not have. Compiled once for each instruction set, hence
// the guard.
#if defined(KVRUN_HOST_VECTOR_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVRUN_HOST_VECTOR_MATH_INL_H_
#undef KVRUN_HOST_VECTOR_MATH_INL_H_
#else
#define KVRUN_HOST_VECTOR_MATH_INL_H_
#endif

#include <hwy/highway.h>

#include <cstddef>
#include <cstring>

HWY_BEFORE_NAMESPACE();
namespace kvrun::host::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// What halves stand for. Where a processor has no instruction for it, Highway's makes large numbers of
// infinity and of what is none.
template <class D>
HWY_INLINE hn::Vec<D> FromHalves(D d, hn::Vec<hn::Rebind<hwy::float16_t, D>> halves) {
  const auto numbers = hn::PromoteTo(d, halves);
#if HWY_TARGET == HWY_SSE4 || HWY_TARGET == HWY_SSSE3 || HWY_TARGET == HWY_SCALAR
  const auto exponent = hn::BitCast(d, hn::Set(hn::RebindToUnsigned<D>(), 0x7f800000U));
  return hn::IfThenElse(hn::Ge(hn::Abs(numbers), hn::Set(d, 65536.0F)), hn::Or(numbers, exponent), numbers);
#else
  return numbers;
#endif
}

// 2^x, within 2 units in the last place, of x up to 127; of x below -126 what it is there; of a NaN that.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Exp2(D d, V x) {
  const hn::RebindToSigned<D> di;
  // Adding this leaves the nearest whole number in the lowest bits. Highway's NearestInt also looks after
  // numbers that are too large.
  const V shift = hn::Set(d, 0x1.8p23F);
  const auto is_nan = hn::IsNaN(x);  // its bits would become any number's, and Max may lose it
  const V bounded = hn::Max(x, hn::Set(d, -126.0F));
  const V shifted = hn::Add(bounded, shift);
  const V f = hn::Sub(bounded, hn::Sub(shifted, shift));  // in [-1/2, 1/2], exact
  // Interpolates 2^f at Chebyshev's nodes: relative error below 4e-9.
  V power = hn::Set(d, 1.5461445e-4F);
  power = hn::MulAdd(power, f, hn::Set(d, 1.3400428e-3F));
  power = hn::MulAdd(power, f, hn::Set(d, 9.6180567e-3F));
  power = hn::MulAdd(power, f, hn::Set(d, 5.5503272e-2F));
  power = hn::MulAdd(power, f, hn::Set(d, 2.4022651e-1F));
  power = hn::MulAdd(power, f, hn::Set(d, 6.9314721e-1F));
  power = hn::MulAdd(power, f, hn::Set(d, 1.0F));
  // power is in [0.7, 1.42]: its exponent takes what is added.
  const V result =
      hn::BitCast(d, hn::Add(hn::BitCast(di, power), hn::ShiftLeft<23>(hn::BitCast(di, shifted))));
  return hn::IfThenElse(is_nan, x, result);
}

// As Exp2, within 4e-6 of it.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Exp2Near(D d, V x) {
  const hn::RebindToSigned<D> di;
  const V shift = hn::Set(d, 0x1.8p23F);
  const auto is_nan = hn::IsNaN(x);
  const V bounded = hn::Max(x, hn::Set(d, -126.0F));
  const V shifted = hn::Add(bounded, shift);
  const V f = hn::Sub(bounded, hn::Sub(shifted, shift));
  V power = hn::Set(d, 0.00966636852F);
  power = hn::MulAdd(power, f, hn::Set(d, 0.0559219758F));
  power = hn::MulAdd(power, f, hn::Set(d, 0.24022349F));
  power = hn::MulAdd(power, f, hn::Set(d, 0.693121045F));
  power = hn::MulAdd(power, f, hn::Set(d, 1.0F));
  const V result =
      hn::BitCast(d, hn::Add(hn::BitCast(di, power), hn::ShiftLeft<23>(hn::BitCast(di, shifted))));
  return hn::IfThenElse(is_nan, x, result);
}

// Within 2^-23 of tanh(x) for any x, relatively so for small ones.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V TanhOf(D d, V x) {
  const V one = hn::Set(d, 1.0F);
  const V magnitude = hn::Abs(x);
  const V power = Exp2(d, hn::Mul(magnitude, hn::Set(d, -2.8853900817779268F)));  // e^-2|x|
  const V large = hn::CopySign(hn::Div(hn::Sub(one, power), hn::Add(one, power)), x);
  // The series, whose next term is below 2^-24 of x there.
  const V square = hn::Mul(x, x);
  V series = hn::MulAdd(square, hn::Set(d, -17.0F / 315.0F), hn::Set(d, 2.0F / 15.0F));
  series = hn::MulAdd(series, square, hn::Set(d, -1.0F / 3.0F));
  series = hn::MulAdd(series, hn::Mul(square, x), x);
  return hn::IfThenElse(hn::Lt(magnitude, hn::Set(d, 0.2F)), series, large);
}

// A score's cap, above 0: AttentionArgs::score_cap.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Capped(D d, V score, float cap) {
  return hn::Mul(hn::Set(d, cap), TanhOf(d, hn::Mul(score, hn::Set(d, 1.0F / cap))));
}

// Division takes as long as all else in an activation. Where reciprocals have 14 bits, a step makes them
// floats.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Divide(D d, V a, V b) {
#if HWY_TARGET <= HWY_AVX3
  const V reciprocal = hn::ApproximateReciprocal(b);
  return hn::Mul(a, hn::Mul(reciprocal, hn::NegMulAdd(b, reciprocal, hn::Set(d, 2.0F))));
#else
  (void)d;
  return hn::Div(a, b);
#endif
}

// x / (1 + e^-x).
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Silu(D d, V x) {
  const V exponent = hn::Min(hn::Mul(x, hn::Set(d, -1.4426950408889634F)), hn::Set(d, 127.0F));
  return Divide(d, x, hn::Add(hn::Set(d, 1.0F), Exp2(d, exponent)));
}

// Lanes [0, n) of what lies at `from`, zeros beyond. Up to a vector of memory after them may be read.
template <class D>
HWY_INLINE hn::Vec<D> LoadFirst(D d, const float* from, size_t n) {
  // Not MaskedLoad: on some targets it wants an aligned address.
  const auto all = hn::LoadU(d, from);
  return n >= hn::Lanes(d) ? all : hn::IfThenElseZero(hn::FirstN(d, n), all);
}

// The same, of memory whose next floats may be another thread's.
template <class D>
HWY_INLINE hn::Vec<D> LoadOnlyFirst(D d, const float* from, size_t n) {
  if (n >= hn::Lanes(d)) return hn::LoadU(d, from);
  HWY_ALIGN float lanes[HWY_MAX_BYTES / sizeof(float)] = {};
  std::memcpy(lanes, from, n * sizeof(float));
  return hn::Load(d, lanes);
}

// Writes nothing else, not even what was there: that may be another thread's.
template <class D>
HWY_INLINE void StoreFirst(D d, hn::Vec<D> value, float* to, size_t n) {
  if (n >= hn::Lanes(d)) {
    hn::StoreU(value, d, to);
    return;
  }
  HWY_ALIGN float lanes[HWY_MAX_BYTES / sizeof(float)];
  hn::Store(value, d, lanes);
  std::memcpy(to, lanes, n * sizeof(float));
}

}  // namespace kvrun::host::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // KVRUN_HOST_VECTOR_MATH_INL_H_
