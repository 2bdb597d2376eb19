// Norms, activations and row copies.
#include "runtime/device/instruction_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/device/host/elementwise.cc"
#include <hwy/foreach_target.h>
// What is compiled for each target may use these.
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>
#include <span>

#include "runtime/device/host/operations.h"
#include "runtime/device/host/vector_math-inl.h"
#include "shaders/shared/step_params.h"

HWY_BEFORE_NAMESPACE();
namespace kvrun::host::HWY_NAMESPACE {
namespace {

// 1 / sqrt(mean(x^2) + epsilon).
float NormFactor(const float* x, float epsilon, size_t n_cols) {
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
  return 1.0F / std::sqrt(sum / static_cast<float>(n_cols) + epsilon);
}

void NormRow(const float* x, const float* weight, float epsilon, size_t n_cols, bool accumulate, float* out) {
  const hn::ScalableTag<float> d;
  const auto factor = hn::Set(d, NormFactor(x, epsilon, n_cols));
  for (size_t i = 0; i < n_cols; i += hn::Lanes(d)) {
    const auto value = hn::Mul(LoadFirst(d, x + i, n_cols - i), LoadFirst(d, weight + i, n_cols - i));
    auto normed = hn::Mul(value, factor);
    if (accumulate) normed = hn::Add(normed, LoadFirst(d, out + i, n_cols - i));
    StoreFirst(d, normed, out + i, n_cols - i);
  }
}

// values: a head, beside which another thread may write.
void NormGated(const float* weight, const float* gate, float epsilon, size_t n, float* values) {
  const hn::ScalableTag<float> d;
  const size_t lanes = hn::Lanes(d);
  auto sums = hn::Zero(d);
  for (size_t i = 0; i < n; i += lanes) {
    const auto value = LoadOnlyFirst(d, values + i, n - i);
    sums = hn::MulAdd(value, value, sums);
  }
  const float sum = hn::GetLane(hn::SumOfLanes(d, sums));
  const auto factor = hn::Set(d, 1.0F / std::sqrt(sum / static_cast<float>(n) + epsilon));
  for (size_t i = 0; i < n; i += lanes) {
    const auto weighed = hn::Mul(LoadOnlyFirst(d, values + i, n - i), LoadFirst(d, weight + i, n - i));
    const auto normed = hn::Mul(weighed, factor);
    StoreFirst(d, hn::Mul(normed, Silu(d, LoadFirst(d, gate + i, n - i))), values + i, n - i);
  }
}

void NormRows(const float* x, const float* weight, float epsilon, size_t begin, size_t end, size_t n_cols,
              bool accumulate, float* out) {
  for (size_t row = begin; row < end; ++row) {
    NormRow(x + row * n_cols, weight, epsilon, n_cols, accumulate, out + row * n_cols);
  }
}

void Activate(const float* gate, const float* up, size_t n, float* out) {
  const hn::ScalableTag<float> d;
  for (size_t i = 0; i < n; i += hn::Lanes(d)) {
    const auto silu = Silu(d, LoadFirst(d, gate + i, n - i));
    StoreFirst(d, hn::Mul(silu, LoadFirst(d, up + i, n - i)), out + i, n - i);
  }
}

// (1 + tanh(y)) / 2 is sigmoid(2 y): x * sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3)).
void ActivateGelu(const float* gate, const float* up, size_t n, float* out) {
  const hn::ScalableTag<float> d;
  const auto one = hn::Set(d, 1.0F);
  constexpr double kTwice = 2.0 * 0.79788456080286535588;  // 2 sqrt(2 / pi)
  const auto linear = hn::Set(d, static_cast<float>(-kTwice * std::numbers::log2e));
  const auto cubic = hn::Set(d, static_cast<float>(-kTwice * 0.044715 * std::numbers::log2e));
  for (size_t i = 0; i < n; i += hn::Lanes(d)) {
    const auto x = LoadFirst(d, gate + i, n - i);
    const auto slope = hn::MulAdd(cubic, hn::Mul(x, x), linear);
    const auto exponent = hn::Min(hn::Mul(x, slope), hn::Set(d, 127.0F));
    const auto gelu = Divide(d, x, hn::Add(one, Exp2(d, exponent)));
    StoreFirst(d, hn::Mul(gelu, LoadFirst(d, up + i, n - i)), out + i, n - i);
  }
}

void MultiplySigmoid(const float* gate, size_t n, float* values) {
  const hn::ScalableTag<float> d;
  const auto one = hn::Set(d, 1.0F);
  const auto minus_log2e = hn::Set(d, -std::numbers::log2e_v<float>);
  for (size_t i = 0; i < n; i += hn::Lanes(d)) {
    const auto exponent = hn::Min(hn::Mul(LoadFirst(d, gate + i, n - i), minus_log2e), hn::Set(d, 127.0F));
    const auto value = LoadFirst(d, values + i, n - i);
    StoreFirst(d, Divide(d, value, hn::Add(one, Exp2(d, exponent))), values + i, n - i);
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
HWY_EXPORT(ActivateGelu);
HWY_EXPORT(MultiplySigmoid);
HWY_EXPORT(NormGated);

// Elements that are worth a second thread: they take about as long as waking it.
constexpr size_t kNormElements = 16384;
constexpr size_t kActivations = 4096;
constexpr size_t kCopiedElements = 16384;

size_t RowsOf(size_t n_elements, size_t n_cols) { return std::max<size_t>(1, n_elements / n_cols); }

}  // namespace

void RmsNorm(ThreadPool& pool, const RmsNormArgs& args) {
  const auto* from = Data<float>(args.x);
  const auto* factors = Data<float>(args.weight);
  auto* to = Data<float>(args.out);
  const size_t n_cols = args.n_cols;
  pool.ParallelFor(
      args.n_rows, RowsOf(kNormElements, n_cols),
      [=, epsilon = args.epsilon, accumulate = args.accumulate](size_t begin, size_t end, uint32_t) {
        HWY_DYNAMIC_DISPATCH(NormRows)(from, factors, epsilon, begin, end, n_cols, accumulate, to);
      });
}

void GatedUnit(ThreadPool& pool, const GatedUnitArgs& args) {
  const auto* from = Data<float>(args.gate_up);
  auto* to = Data<float>(args.out);
  const size_t n_ff = args.n_ff;
  const bool is_gelu = args.activation == Activation::kGeluTanh;
  const size_t n = size_t{args.n_tokens} * n_ff;
  pool.ParallelFor(n, kActivations, [=](size_t begin, size_t end, uint32_t) {
    while (begin < end) {
      const size_t row = begin / n_ff;
      const size_t part_end = std::min(end, (row + 1) * n_ff);
      const float* gate = from + begin + row * n_ff;  // rows are twice as long as the output's
      if (is_gelu) {
        HWY_DYNAMIC_DISPATCH(ActivateGelu)(gate, gate + n_ff, part_end - begin, to + begin);
      } else {
        HWY_DYNAMIC_DISPATCH(Activate)(gate, gate + n_ff, part_end - begin, to + begin);
      }
      begin = part_end;
    }
  });
}

void SigmoidGate(ThreadPool& pool, const SigmoidGateArgs& args) {
  const auto* gate = Data<float>(args.gate);
  auto* values = Data<float>(args.values);
  pool.ParallelFor(size_t{args.n_rows} * args.n_cols, kActivations, [=](size_t begin, size_t end, uint32_t) {
    HWY_DYNAMIC_DISPATCH(MultiplySigmoid)(gate + begin, end - begin, values + begin);
  });
}

void GatedNorm(ThreadPool& pool, const GatedNormArgs& args) {
  const auto* weight = Data<float>(args.weight);
  auto* values = Data<float>(args.values);
  const size_t dims = args.head_dim;
  const auto* gates = Data<float>(args.gate) + args.gate_offset;
  pool.ParallelFor(size_t{args.n_tokens} * args.n_heads, RowsOf(kActivations, dims),
                   [=, &args](size_t begin, size_t end, uint32_t) {
                     for (size_t row = begin; row < end; ++row) {
                       const float* gate =
                           gates + row / args.n_heads * args.gate_stride + row % args.n_heads * dims;
                       HWY_DYNAMIC_DISPATCH(NormGated)(weight, gate, args.epsilon, dims, values + row * dims);
                     }
                   });
}

void GatherRows(ThreadPool& pool, const GatherRowsArgs& args) {
  const auto* from = Data<float>(args.x);
  const auto* params = Data<StepParams>(args.step);
  auto* to = Data<float>(args.out);
  const size_t n_cols = args.n_cols;
  pool.ParallelFor(args.n_rows, RowsOf(kCopiedElements, n_cols), [=](size_t begin, size_t end, uint32_t) {
    for (size_t row = begin; row < end; ++row) {
      std::memcpy(to + row * n_cols, from + size_t{params->tokens[row].output_row} * n_cols,
                  n_cols * sizeof(float));
    }
  });
}

void Copy(ThreadPool& pool, const CopyArgs& args) {
  const auto* from = Data<std::byte>(args.from);
  auto* to = Data<std::byte>(args.to);
  pool.ParallelFor(args.pieces.size(), 1, [&](size_t begin, size_t end, uint32_t) {
    for (const CopyArgs::Piece& piece : std::span(args.pieces).subspan(begin, end - begin)) {
      std::memcpy(to + piece.to_bytes, from + piece.from_bytes, piece.size_bytes);
    }
  });
}

}  // namespace kvrun::host
#endif  // HWY_ONCE
