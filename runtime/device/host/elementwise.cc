// Norms, activations and row copies.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/device/host/elementwise.cc"
#include <hwy/foreach_target.h>
// What is compiled for each target may use these.
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>

#include "runtime/device/host/operations.h"
#include "runtime/device/host/vector_math-inl.h"
#include "shaders/shared/step_params.h"

HWY_BEFORE_NAMESPACE();
namespace kvrun::host::HWY_NAMESPACE {
namespace {

void NormRow(const float* x, const float* weight, float epsilon, size_t n_cols, float* out) {
  const hn::ScalableTag<float> d;
  const size_t lanes = hn::Lanes(d);
  auto sum0 = hn::Zero(d);
  auto sum1 = hn::Zero(d);
  size_t i = 0;
  for (; i + 2 * lanes <= n_cols; i += 2 * lanes) {
    const auto a = hn::LoadU(d, x + i);
    const auto b = hn::LoadU(d, x + i + lanes);
    sum0 = hn::MulAdd(a, a, sum0);
    sum1 = hn::MulAdd(b, b, sum1);
  }
  for (; i < n_cols; i += lanes) {
    const auto a = LoadFirst(d, x + i, n_cols - i);
    sum0 = hn::MulAdd(a, a, sum0);
  }
  const float sum = hn::GetLane(hn::SumOfLanes(d, hn::Add(sum0, sum1)));
  const auto factor = hn::Set(d, 1.0F / std::sqrt(sum / static_cast<float>(n_cols) + epsilon));
  for (i = 0; i < n_cols; i += lanes) {
    const auto value = hn::Mul(LoadFirst(d, x + i, n_cols - i), LoadFirst(d, weight + i, n_cols - i));
    StoreFirst(d, hn::Mul(value, factor), out + i, n_cols - i);
  }
}

void NormRows(const float* x, const float* weight, float epsilon, size_t begin, size_t end, size_t n_cols,
              float* out) {
  for (size_t row = begin; row < end; ++row) {
    NormRow(x + row * n_cols, weight, epsilon, n_cols, out + row * n_cols);
  }
}

// Division takes as long as all else in Activate. Where reciprocals have 14 bits, a step makes them floats.
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

void Activate(const float* gate, const float* up, size_t n, float* out) {
  const hn::ScalableTag<float> d;
  const auto one = hn::Set(d, 1.0F);
  const auto minus_log2e = hn::Set(d, -std::numbers::log2e_v<float>);
  for (size_t i = 0; i < n; i += hn::Lanes(d)) {
    const auto g = LoadFirst(d, gate + i, n - i);
    const auto exponent = hn::Min(hn::Mul(g, minus_log2e), hn::Set(d, 127.0F));
    const auto silu = Divide(d, g, hn::Add(one, Exp2(d, exponent)));
    StoreFirst(d, hn::Mul(silu, LoadFirst(d, up + i, n - i)), out + i, n - i);
  }
}

}  // namespace
}  // namespace kvrun::host::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvrun::host {
namespace {

HWY_EXPORT(NormRows);
HWY_EXPORT(Activate);

// Elements that are worth a second thread: they take about as long as waking it.
constexpr size_t kNormElements = 16384;
constexpr size_t kActivations = 4096;
constexpr size_t kCopiedElements = 16384;

size_t RowsOf(size_t n_elements, size_t n_cols) { return std::max<size_t>(1, n_elements / n_cols); }

}  // namespace

void RmsNorm(ThreadPool& pool, const Buffer& x, const Buffer& weight, float epsilon, uint32_t n_rows,
             uint32_t n_cols, Buffer* out) {
  const auto* from = Data<float>(&x);
  const auto* factors = Data<float>(&weight);
  auto* to = Data<float>(out);
  pool.ParallelFor(n_rows, RowsOf(kNormElements, n_cols), [=](size_t begin, size_t end, uint32_t) {
    HWY_DYNAMIC_DISPATCH(NormRows)(from, factors, epsilon, begin, end, n_cols, to);
  });
}

void SwiGlu(ThreadPool& pool, const Buffer& gate_up, uint32_t n_tokens, uint32_t n_ff, Buffer* out) {
  const auto* from = Data<float>(&gate_up);
  auto* to = Data<float>(out);
  const size_t n = size_t{n_tokens} * n_ff;
  pool.ParallelFor(n, kActivations, [=](size_t begin, size_t end, uint32_t) {
    while (begin < end) {
      const size_t row = begin / n_ff;
      const size_t part_end = std::min(end, (row + 1) * n_ff);
      const float* gate = from + begin + row * n_ff;  // rows are twice as long as the output's
      HWY_DYNAMIC_DISPATCH(Activate)(gate, gate + n_ff, part_end - begin, to + begin);
      begin = part_end;
    }
  });
}

void GatherRows(ThreadPool& pool, const Buffer& x, const Buffer& step, uint32_t n_rows, uint32_t n_cols,
                Buffer* out) {
  const auto* from = Data<float>(&x);
  const auto* params = Data<StepParams>(&step);
  auto* to = Data<float>(out);
  pool.ParallelFor(n_rows, RowsOf(kCopiedElements, n_cols), [=](size_t begin, size_t end, uint32_t) {
    for (size_t row = begin; row < end; ++row) {
      std::memcpy(to + row * n_cols, from + size_t{params->tokens[row].output_row} * n_cols,
                  n_cols * sizeof(float));
    }
  });
}

}  // namespace kvrun::host
#endif  // HWY_ONCE
