// Products of a few rows with a side of an adapter. Compiled once for each instruction set, hence the guard.
#if defined(KVRUN_HOST_PROJECT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVRUN_HOST_PROJECT_INL_H_
#undef KVRUN_HOST_PROJECT_INL_H_
#else
#define KVRUN_HOST_PROJECT_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstddef>

#include "runtime/device/host/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvrun::host::HWY_NAMESPACE {

// The first n, or as many as there are lanes; what is read may be a whole vector.
template <class D>
HWY_INLINE hn::Vec<D> LoadSide(D d, const float* from, size_t n) {
  return LoadFirst(d, from, n);
}
template <class D>
HWY_INLINE hn::Vec<D> LoadSide(D d, const hwy::float16_t* from, size_t n) {
  const auto all = FromHalves(d, hn::LoadU(hn::Rebind<hwy::float16_t, D>(), from));
  return n >= hn::Lanes(d) ? all : hn::IfThenElseZero(hn::FirstN(d, n), all);
}

// out[r, column] += sum over i < n_dims of rows[r * row_stride + i] * side[i * rank + column], of n_rows
// rows. Number: float, or hwy::float16_t.
template <class Number>
HWY_INLINE void AddProjections(const float* rows, size_t row_stride, size_t n_rows, size_t n_dims,
                               const Number* side, size_t rank, float* out) {
  const hn::ScalableTag<float> d;
  const size_t lanes = hn::Lanes(d);
  for (size_t row = 0; row < n_rows; row += 4) {
    // Rows beyond the last are that one again.
    const size_t last = n_rows - 1;
    const float* const a = rows + row * row_stride;
    const float* const b = rows + std::min(row + 1, last) * row_stride;
    const float* const c = rows + std::min(row + 2, last) * row_stride;
    const float* const e = rows + std::min(row + 3, last) * row_stride;
    for (size_t column = 0; column < rank; column += lanes) {
      const size_t n = rank - column;
      auto sum_a = hn::Zero(d);
      auto sum_b = hn::Zero(d);
      auto sum_c = hn::Zero(d);
      auto sum_e = hn::Zero(d);
      for (size_t i = 0; i < n_dims; ++i) {
        const auto v = LoadSide(d, side + i * rank + column, n);
        sum_a = hn::MulAdd(hn::Set(d, a[i]), v, sum_a);
        sum_b = hn::MulAdd(hn::Set(d, b[i]), v, sum_b);
        sum_c = hn::MulAdd(hn::Set(d, c[i]), v, sum_c);
        sum_e = hn::MulAdd(hn::Set(d, e[i]), v, sum_e);
      }
      float* const to = out + row * rank + column;
      const auto add = [&](size_t r, auto sum) HWY_ATTR {
        if (row + r >= n_rows) return;
        StoreFirst(d, hn::Add(LoadOnlyFirst(d, to + r * rank, n), sum), to + r * rank, n);
      };
      add(0, sum_a);
      add(1, sum_b);
      add(2, sum_c);
      add(3, sum_e);
    }
  }
}

}  // namespace kvrun::host::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // KVRUN_HOST_PROJECT_INL_H_
