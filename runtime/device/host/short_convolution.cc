// Causal convolutions of a few taps, channel by channel.
#include "runtime/device/instruction_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/device/host/short_convolution.cc"
#include <hwy/foreach_target.h>
// What is compiled for each target may use these.
#include <hwy/highway.h>

#include <algorithm>
#include <cstddef>

#include "platform/base/check.h"
#include "platform/base/units.h"
#include "runtime/device/host/operations.h"
#include "runtime/device/host/vector_math-inl.h"
#include "shaders/shared/step_params.h"

// Once, for all targets.
#ifndef KVRUN_HOST_CONVOLUTION_ROWS_
#define KVRUN_HOST_CONVOLUTION_ROWS_
namespace kvrun::host {

// Channels that are computed together, a row after another: what rows before left of them stays in the cache.
inline constexpr size_t kConvolvedChannels = 256;
inline constexpr size_t kMostTaps = 8;

// Some rows of one sequence, of channels from the first on; at most kConvolvedChannels.
struct ConvolutionRows {
  size_t n_rows;
  size_t n_channels;
  size_t n_taps;
  const float* input;
  size_t input_stride;
  size_t part_stride;  // of the parts of a gated row; 0: it is not gated
  bool has_silu;
  const float* taps;  // [n_channels, n_taps]
  float* state;       // [n_taps - 1, state_stride]
  size_t state_stride;
  bool begins;
  float* output;
  size_t output_stride;
};

}  // namespace kvrun::host
#endif

HWY_BEFORE_NAMESPACE();
namespace kvrun::host::HWY_NAMESPACE {
namespace {

using ConvolvedRow = float[kConvolvedChannels];

// A row's sums, of taps in order and the rows that these are for.
void SumTaps(const ConvolutionRows& c, const ConvolvedRow* taps, const float* const* rows, const float* input,
             float* output) {
  const hn::CappedTag<float, 16> d;
  for (size_t i = 0; i < c.n_channels; i += hn::Lanes(d)) {
    auto sum = hn::Mul(hn::Load(d, taps[0] + i), hn::Load(d, rows[0] + i));
    for (size_t tap = 1; tap < c.n_taps; ++tap)
      sum = hn::MulAdd(hn::Load(d, taps[tap] + i), hn::Load(d, rows[tap] + i), sum);
    if (c.has_silu) sum = Silu(d, sum);
    const size_t n = c.n_channels - i;
    if (c.part_stride != 0) sum = hn::Mul(sum, LoadFirst(d, input + c.part_stride + i, n));
    StoreFirst(d, sum, output + i, n);
  }
}

void LoadRow(const ConvolutionRows& c, const float* input, float* to) {
  const hn::CappedTag<float, 16> d;
  for (size_t i = 0; i < c.n_channels; i += hn::Lanes(d)) {
    const size_t n = c.n_channels - i;
    auto value = LoadFirst(d, input + i, n);
    if (c.part_stride != 0) value = hn::Mul(value, LoadFirst(d, input + 2 * c.part_stride + i, n));
    hn::Store(value, d, to + i);
  }
}

// taps: [n_taps, kConvolvedChannels].
void TurnTaps(const ConvolutionRows& c, ConvolvedRow* taps) {
  const hn::CappedTag<float, 16> d;
  size_t i = 0;
  if (c.n_taps == 4) {
    for (; i + hn::Lanes(d) <= c.n_channels; i += hn::Lanes(d)) {
      auto v0 = hn::Zero(d);
      auto v1 = hn::Zero(d);
      auto v2 = hn::Zero(d);
      auto v3 = hn::Zero(d);
      hn::LoadInterleaved4(d, c.taps + 4 * i, v0, v1, v2, v3);
      hn::Store(v0, d, taps[0] + i);
      hn::Store(v1, d, taps[1] + i);
      hn::Store(v2, d, taps[2] + i);
      hn::Store(v3, d, taps[3] + i);
    }
  }
  for (; i < c.n_channels; ++i) {
    for (size_t tap = 0; tap < c.n_taps; ++tap) taps[tap][i] = c.taps[i * c.n_taps + tap];
  }
}

void ConvolveRows(const ConvolutionRows& c) {
  alignas(64) ConvolvedRow taps[kMostTaps] = {};
  alignas(64) ConvolvedRow ring[kMostTaps] = {};  // the newest rows: row t at t % kMostTaps
  TurnTaps(c, taps);
  const size_t n_kept = c.n_taps - 1;
  const auto place = [](size_t t) { return t % kMostTaps; };
  // Rows are counted from those before the first on, oldest first.
  for (size_t t = 0; !c.begins && t < n_kept; ++t)
    std::copy_n(c.state + t * c.state_stride, c.n_channels, ring[place(t)]);
  for (size_t row = 0; row < c.n_rows; ++row) {
    const float* input = c.input + row * c.input_stride;
    LoadRow(c, input, ring[place(row + n_kept)]);
    const float* rows[kMostTaps] = {};
    for (size_t tap = 0; tap < c.n_taps; ++tap) rows[tap] = ring[place(row + tap)];
    SumTaps(c, taps, rows, input, c.output + row * c.output_stride);
  }
  for (size_t t = 0; t < n_kept; ++t)
    std::copy_n(ring[place(c.n_rows + t)], c.n_channels, c.state + t * c.state_stride);
}

}  // namespace
}  // namespace kvrun::host::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvrun::host {
namespace {

HWY_EXPORT(ConvolveRows);

// Rows of as many channels that are worth a second thread.
constexpr size_t kConvolutionGrain = 16;

}  // namespace

void ShortConvolution(ThreadPool& pool, const ShortConvolutionArgs& args) {
  KVRUN_CHECK(args.n_taps >= 2 && args.n_taps <= kMostTaps);
  const StepParams& step = *Data<StepParams>(args.step);
  const size_t n_channels = args.n_channels;
  const size_t parts = CeilDiv(n_channels, kConvolvedChannels);
  const size_t n_rows = args.of_prompt ? args.n_tokens : 1;
  pool.ParallelFor(
      args.n_tokens / n_rows * parts, CeilDiv(kConvolutionGrain, n_rows),
      [&](size_t begin, size_t end, uint32_t) {
        for (size_t unit = begin; unit < end; ++unit) {
          const size_t token = unit / parts;
          const size_t first = unit % parts * kConvolvedChannels;
          const StepToken& at = step.tokens[token];
          HWY_DYNAMIC_DISPATCH(ConvolveRows)
          ({.n_rows = n_rows,
            .n_channels = std::min(kConvolvedChannels, n_channels - first),
            .n_taps = args.n_taps,
            .input = Data<float>(args.input) + token * args.input_stride + first,
            .input_stride = args.input_stride,
            .part_stride = args.is_gated ? n_channels : 0,
            .has_silu = args.has_silu,
            .taps = Data<float>(args.taps) + first * args.n_taps,
            .state = Data<float>(args.state) + size_t{at.sequence} * (args.n_taps - 1) * n_channels + first,
            .state_stride = n_channels,
            .begins = at.position == 0,
            .output = Data<float>(args.output) + token * n_channels + first,
            .output_stride = n_channels});
        }
      });
}

}  // namespace kvrun::host
#endif  // HWY_ONCE
