// Activations in 8 bits. To be included once per target.

#if defined(KVRUN_QUANTIZE_ACTIVATIONS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVRUN_QUANTIZE_ACTIVATIONS_INL_H_
#undef KVRUN_QUANTIZE_ACTIVATIONS_INL_H_
#else
#define KVRUN_QUANTIZE_ACTIVATIONS_INL_H_
#endif

#include <hwy/highway.h>

#include "runtime/device/host/matmul_kernels.h"

HWY_BEFORE_NAMESPACE();
namespace kvrun::host::HWY_NAMESPACE {

// Below this, 127 / largest is infinite; such a block counts as zeros.
inline constexpr float kSmallestLargest = 1e-36F;

// q8_bias: what is added to Q8_0's weights in the kernel.
inline void QuantizeActivations(TensorType type, int32_t q8_bias, const float* x, size_t n_blocks,
                                ActivationBlock* out) {
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::CappedTag<float, 16> df;
  const hn::Rebind<int32_t, decltype(df)> di;
  const hn::Rebind<int8_t, decltype(df)> di8;
  const size_t lanes = hn::Lanes(df);
  int32_t offset = 0;
  if (type == TensorType::kQ8_0) offset = q8_bias;
  if (type == TensorType::kQ4_0) offset = 8;
  if (type == TensorType::kQ5_0) offset = 16;
  if (type == TensorType::kQ6_K) offset = 32;
  const bool halves = type == TensorType::kQ6_K;

  for (size_t b = 0; b < n_blocks; ++b, x += kBlockColumns) {
    auto largest = hn::Zero(df);
    auto zeros = hn::Zero(df);  // not a number where x is infinite or not a number
    for (size_t i = 0; i < kBlockColumns; i += lanes) {
      const auto v = hn::LoadU(df, x + i);
      largest = hn::Max(largest, hn::Abs(v));
      zeros = hn::MulAdd(v, hn::Zero(df), zeros);
    }
    const float most = hn::GetLane(hn::MaxOfLanes(df, largest));
    const float poison = hn::GetLane(hn::SumOfLanes(df, zeros));
    ActivationBlock& block = out[b];
    if (!(most >= kSmallestLargest) || poison != 0.0F) {
      block = {};
      block.scale = block.scaled_sum = poison;
      continue;
    }
    const auto inverse = hn::Set(df, 127.0F / most);
    int32_t sums[2] = {0, 0};
    for (size_t half = 0; half < 2; ++half) {
      auto sum = hn::Zero(di);
      for (size_t i = 16 * half; i < 16 * half + 16; i += lanes) {
        const auto q = hn::NearestInt(hn::Mul(hn::LoadU(df, x + i), inverse));
        sum = hn::Add(sum, q);
        hn::StoreU(hn::DemoteTo(di8, q), di8, block.quants + i);
      }
      sums[half] = hn::GetLane(hn::SumOfLanes(di, sum));
    }
    block.scale = most / 127.0F;
    block.scaled_sum = block.scale * static_cast<float>(sums[0] + sums[1]);
    block.start[0] = -offset * (halves ? sums[0] : sums[0] + sums[1]);
    block.start[1] = halves ? -offset * sums[1] : 0;
  }
}

}  // namespace kvrun::host::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // KVRUN_QUANTIZE_ACTIVATIONS_INL_H_
