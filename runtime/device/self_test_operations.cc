#include "runtime/device/self_test_operations.h"

#include <cmath>
#include <span>
#include <vector>

#include "runtime/device/self_test_data.h"
#include "runtime/device/self_test_run.h"

namespace kvrun {
namespace {

std::vector<float> Decode(TensorType type, std::span<const std::byte> data, size_t count) {
  std::vector<float> values(count);
  DecodeTensor(type, data, values);
  return values;
}

}  // namespace

Result<std::string> CheckMatMul(Device& device, TensorType type, uint32_t n_rows, uint32_t n_cols,
                                uint32_t n_tokens, double tolerance) {
  SelfTestRun run(device);
  const std::vector<std::byte> data = RandomTensor(type, size_t{n_rows} * n_cols, 1);
  const std::vector<float> weights = Decode(type, data, size_t{n_rows} * n_cols);
  const std::vector<float> input = RandomFloats(size_t{n_tokens} * n_cols, 2);
  const std::vector<float> bias = RandomFloats(n_rows, 3);
  const std::vector<float> before = RandomFloats(size_t{n_tokens} * n_rows, 4);
  Buffer* output = run.Floats(before);
  const MatMulArgs args{.weight = run.Weights(type, n_rows, n_cols, data),
                        .input = run.Floats(input),
                        .output = output,
                        .bias = run.Floats(bias),
                        .n_tokens = n_tokens,
                        .accumulate = true};
  run.Run([&](CommandList& list) { return list.MatMul(args); });

  std::vector<double> expected(before.begin(), before.end());
  for (size_t t = 0; t < n_tokens; ++t) {
    for (size_t r = 0; r < n_rows; ++r) {
      double sum = bias[r];
      for (size_t c = 0; c < n_cols; ++c) sum += double{weights[r * n_cols + c]} * input[t * n_cols + c];
      expected[t * n_rows + r] += sum;
    }
  }
  return run.Compare(expected, output, tolerance);
}

Result<std::string> CheckEmbed(Device& device, TensorType type) {
  constexpr uint32_t kRows = 100;
  constexpr uint32_t kCols = 256;
  constexpr std::array<uint32_t, 3> kIds = {99, 0, 32};
  SelfTestRun run(device);
  const std::vector<std::byte> data = RandomTensor(type, kRows * kCols, 1);
  const std::vector<float> table = Decode(type, data, kRows * kCols);
  std::vector<StepToken> tokens;
  std::vector<double> expected;
  for (const uint32_t id : kIds) {
    tokens.push_back({.id = id, .position = 0, .sequence = 0, .output_row = 0});
    expected.insert(expected.end(), table.begin() + id * kCols, table.begin() + (id + 1) * kCols);
  }
  Buffer* output = run.Poisoned(expected.size());
  const Buffer* step = run.Step(tokens);
  const Matrix* matrix = run.Weights(type, kRows, kCols, data);
  run.Run([&](CommandList& list) { return list.Embed(*matrix, *step, kIds.size(), output); });
  return run.Compare(expected, output, 1e-6);
}

namespace {

constexpr uint32_t kNormRows = 3;
constexpr float kNormEpsilon = 1e-3F;

std::vector<double> ExpectedNorm(std::span<const float> x, std::span<const float> weight, size_t n_rows) {
  const size_t n_cols = weight.size();
  std::vector<double> expected(x.size());
  for (size_t r = 0; r < n_rows; ++r) {
    double sum = 0.0;
    for (size_t c = 0; c < n_cols; ++c) sum += double{x[r * n_cols + c]} * x[r * n_cols + c];
    const double scale = 1.0 / std::sqrt(sum / static_cast<double>(n_cols) + kNormEpsilon);
    for (size_t c = 0; c < n_cols; ++c) expected[r * n_cols + c] = x[r * n_cols + c] * scale * weight[c];
  }
  return expected;
}

}  // namespace

Result<std::string> CheckRmsNorm(Device& device, uint32_t n_cols) {
  SelfTestRun run(device);
  const std::vector<float> x = RandomFloats(size_t{kNormRows} * n_cols, 1);
  const std::vector<float> weight = RandomFloats(n_cols, 2);
  Buffer* output = run.Poisoned(x.size());
  const Buffer* in = run.Floats(x);
  const Buffer* factors = run.Floats(weight);
  run.Run([&](CommandList& list) {
    return list.RmsNorm(*in, *factors, kNormEpsilon, kNormRows, n_cols, output);
  });
  return run.Compare(ExpectedNorm(x, weight, kNormRows), output, kSelfTestTolerance);
}

Result<std::string> CheckGatedProduct(Device& device, TensorType type, uint32_t n_ff, uint32_t n_cols) {
  SelfTestRun run(device);
  const uint32_t n_rows = 2 * n_ff;
  const std::vector<std::byte> data = RandomTensor(type, size_t{n_rows} * n_cols, 1);
  const std::vector<float> weights = Decode(type, data, size_t{n_rows} * n_cols);
  const std::vector<float> input = RandomFloats(n_cols, 2);
  const std::vector<float> norm = RandomFloats(n_cols, 3);
  const MatMulArgs args{.weight = run.Weights(type, n_rows, n_cols, data),
                        .input = run.Floats(input),
                        .output = run.Poisoned(n_ff),
                        .n_tokens = 1,
                        .norm = {run.Floats(norm), kNormEpsilon, run.Poisoned(n_cols)},
                        .gate = {run.Poisoned(n_rows), Activation::kSilu}};
  run.Run([&](CommandList& list) { return list.MatMul(args); });

  const std::vector<double> x = ExpectedNorm(input, norm, 1);
  std::vector<double> rows(n_rows);
  for (size_t r = 0; r < n_rows; ++r) {
    for (size_t c = 0; c < n_cols; ++c) rows[r] += double{weights[r * n_cols + c]} * x[c];
  }
  std::vector<double> expected;
  for (size_t i = 0; i < n_ff; ++i) expected.push_back(rows[i] / (1.0 + std::exp(-rows[i])) * rows[n_ff + i]);
  return run.Compare(expected, args.output, kSelfTestTolerance);
}

Result<std::string> CheckSwiGlu(Device& device, uint32_t n_ff) {
  constexpr uint32_t kTokens = 3;
  SelfTestRun run(device);
  const std::vector<float> gate_up = RandomFloats(size_t{kTokens} * 2 * n_ff, 1);
  Buffer* output = run.Poisoned(size_t{kTokens} * n_ff);
  const Buffer* in = run.Floats(gate_up);
  run.Run([&](CommandList& list) { return list.SwiGlu(*in, kTokens, n_ff, output); });

  std::vector<double> expected;
  for (size_t t = 0; t < kTokens; ++t) {
    for (size_t i = 0; i < n_ff; ++i) {
      const double gate = gate_up[t * 2 * n_ff + i];
      expected.push_back(gate / (1.0 + std::exp(-gate)) * gate_up[(t * 2 + 1) * n_ff + i]);
    }
  }
  return run.Compare(expected, output, kSelfTestTolerance);
}

Result<std::string> CheckGather(Device& device) {
  constexpr uint32_t kCols = 70;
  constexpr std::array<uint32_t, 3> kRows = {4, 0, 2};
  SelfTestRun run(device);
  const std::vector<float> x = RandomFloats(5 * kCols, 1);
  std::vector<StepToken> tokens;
  std::vector<double> expected;
  for (const uint32_t row : kRows) {
    tokens.push_back({.id = 0, .position = 0, .sequence = 0, .output_row = row});
    expected.insert(expected.end(), x.begin() + row * kCols, x.begin() + (row + 1) * kCols);
  }
  Buffer* output = run.Poisoned(expected.size());
  const Buffer* in = run.Floats(x);
  const Buffer* step = run.Step(tokens);
  run.Run([&](CommandList& list) { return list.GatherRows(*in, *step, kRows.size(), kCols, output); });
  return run.Compare(expected, output, 0.0);
}

}  // namespace kvrun
