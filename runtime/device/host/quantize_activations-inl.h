// Activations in 8 bits. To be included once per target.

#if defined(KVRUN_QUANTIZE_ACTIVATIONS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVRUN_QUANTIZE_ACTIVATIONS_INL_H_
#undef KVRUN_QUANTIZE_ACTIVATIONS_INL_H_
#else
#define KVRUN_QUANTIZE_ACTIVATIONS_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cmath>

#include "runtime/device/host/matmul_kernels.h"

HWY_BEFORE_NAMESPACE();
namespace kvrun::host::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Below this, 256 * 127 / largest is infinite; such a block counts as zeros.
inline constexpr float kSmallestLargest = 1e-33F;
// A block is fine where its largest magnitude squared is so many times the mean of its row's blocks: one
// in ten of a model's, which hold most of what rounding costs (docs/decisions/cpu.md).
inline constexpr float kFineFrom = 2.25F;

using ActivationTag = hn::CappedTag<float, 16>;

// Leaves in out[b].scale the largest magnitude of each block: NaN where x holds an infinity or a NaN. Answers
// the magnitude squared from which on a block is fine. That takes the same operations for any Block: the sum
// is by MulAdd, as compilers may fuse an expression here and not there.
template <typename Block>
float MeasureBlocks(const float* x, size_t n_blocks, Block* out) {
  const ActivationTag df;
  const hn::CappedTag<float, 1> d1;
  auto sum_of_squares = hn::Zero(d1);
  for (size_t b = 0; b < n_blocks; ++b, x += kBlockColumns) {
    auto largest = hn::Zero(df);
    auto zeros = hn::Zero(df);
    for (size_t i = 0; i < kBlockColumns; i += hn::Lanes(df)) {
      const auto v = hn::LoadU(df, x + i);
      largest = hn::Max(largest, hn::Abs(v));
      zeros = hn::MulAdd(v, hn::Zero(df), zeros);
    }
    out[b].scale = hn::GetLane(hn::MaxOfLanes(df, largest)) + hn::GetLane(hn::SumOfLanes(df, zeros));
    const auto scale = hn::Set(d1, out[b].scale);
    sum_of_squares = hn::MulAdd(scale, scale, sum_of_squares);
  }
  return kFineFrom * hn::GetLane(sum_of_squares) / static_cast<float>(n_blocks);
}

// 32 floats times `inverse`, rounded; sums: of columns 0 to 15 and 16 to 31.
inline void RoundBlock(const float* x, float inverse, int8_t* quants, int32_t (&sums)[2]) {
  const ActivationTag df;
  const hn::Rebind<int32_t, decltype(df)> di;
  const hn::Rebind<int8_t, decltype(df)> di8;
  for (size_t half = 0; half < 2; ++half) {
    auto sum = hn::Zero(di);
    for (size_t i = 16 * half; i < 16 * half + 16; i += hn::Lanes(df)) {
      const auto q = hn::NearestInt(hn::Mul(hn::LoadU(df, x + i), hn::Set(df, inverse)));
      sum = hn::Add(sum, q);
      hn::StoreU(hn::DemoteTo(di8, q), di8, quants + i);
    }
    sums[half] = hn::GetLane(hn::SumOfLanes(di, sum));
  }
}

// The same to 16 bits, less the 8 that are in `quants`. What rounds to -128 becomes -127.
inline void RoundFineBlock(const float* x, float inverse, const int8_t* quants, int8_t* fine,
                           int32_t (&sums)[2]) {
  const ActivationTag df;
  const hn::Rebind<int32_t, decltype(df)> di;
  const hn::Rebind<int8_t, decltype(df)> di8;
  for (size_t half = 0; half < 2; ++half) {
    auto sum = hn::Zero(di);
    for (size_t i = 16 * half; i < 16 * half + 16; i += hn::Lanes(df)) {
      const auto all = hn::NearestInt(hn::Mul(hn::LoadU(df, x + i), hn::Set(df, inverse * 256.0F)));
      const auto high = hn::ShiftLeft<8>(hn::PromoteTo(di, hn::LoadU(di8, quants + i)));
      const auto q = hn::Min(hn::Max(hn::Sub(all, high), hn::Set(di, -127)), hn::Set(di, 127));
      sum = hn::Add(sum, q);
      hn::StoreU(hn::DemoteTo(di8, q), di8, fine + i);
    }
    sums[half] = hn::GetLane(hn::SumOfLanes(di, sum));
  }
}

// Whether a block with this largest magnitude counts as zeros, and what its scale is then: a block with a NaN
// keeps NaN.
inline bool IsNothing(float largest) { return !(largest >= kSmallestLargest); }
inline float ScaleOfNothing(float largest) { return std::isnan(largest) ? largest : 0.0F; }

// What a kernel's sums of products begin with.
struct SumsOfKernel {
  int32_t q8_bias = 0;  // what is added to weights of 8 bits
  int32_t base = 0;     // what sums begin with if weights are what they stand for
};

// What makes the starts of sums: how much a kernel's weights are more than what they stand for, in starts[0]
// and [1].
struct StartTerms {
  int32_t first;
  int32_t second;
  int32_t base;
  bool halves;
};

// Halves with minima: -1 and nothing else, so that SetStart leaves their sums.
inline StartTerms StartTermsOf(TensorType type, const SumsOfKernel& kernel) {
  if (type == TensorType::kQ8_0 || HasCodes(type)) {
    return {kernel.q8_bias, 0, kernel.base, false};
  }
  if (type == TensorType::kQ2_K) return {-1, -1, 0, true};
  const int32_t offset = QuantOffset(type);
  const bool halves = HasHalves(type);
  return {offset, halves ? offset : 0, kernel.base, halves};
}

inline void SetStart(const StartTerms& terms, const int32_t* sums, int32_t* start) {
  const int32_t all = sums[0] + sums[1];
  start[0] = terms.base - terms.first * (terms.halves ? sums[0] : all);
  start[1] = terms.base - terms.second * (terms.halves ? sums[1] : all);
}

// bit: the row's, of has_fine.
inline void QuantizeRow(const StartTerms& start, const float* x, size_t n_blocks, ActivationBlock* blocks,
                        FineBlock* fine, uint8_t bit, uint8_t* has_fine) {
  const float fine_from = MeasureBlocks(x, n_blocks, blocks);
  for (size_t b = 0; b < n_blocks; ++b, x += kBlockColumns) {
    ActivationBlock& block = blocks[b];
    const float largest = block.scale;
    if (IsNothing(largest)) {
      block = {};
      block.scale = block.scaled_sum = ScaleOfNothing(largest);
      block.start[0] = block.start[1] = start.base;
      continue;
    }
    int32_t sums[2];
    const float inverse = 127.0F / largest;
    RoundBlock(x, inverse, block.quants, sums);
    block.scale = largest / 127.0F;
    SetStart(start, sums, block.start);
    auto sum = static_cast<float>(sums[0] + sums[1]);
    if (largest * largest > fine_from) {
      RoundFineBlock(x, inverse, block.quants, fine[b].quants, sums);
      SetStart(start, sums, fine[b].start);
      sum += static_cast<float>(sums[0] + sums[1]) / 256.0F;
      has_fine[b] = static_cast<uint8_t>(has_fine[b] | bit);
    }
    block.scaled_sum = block.scale * sum;
  }
}

inline void QuantizeActivations(TensorType type, const SumsOfKernel& kernel, const float* x, size_t n_rows,
                                size_t n_blocks, ActivationBlock* blocks, FineBlock* fine,
                                uint8_t* has_fine) {
  const StartTerms start = StartTermsOf(type, kernel);
  std::fill_n(has_fine, n_blocks, uint8_t{0});
  for (size_t r = 0; r < n_rows; ++r) {
    QuantizeRow(start, x + r * n_blocks * kBlockColumns, n_blocks, blocks + r * n_blocks, fine + r * n_blocks,
                static_cast<uint8_t>(1U << r), has_fine);
  }
}

}  // namespace kvrun::host::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // KVRUN_QUANTIZE_ACTIVATIONS_INL_H_
