#include "tests/support/host_matmul_cases.h"

#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "runtime/device/self_test_data.h"
#include "tests/support/or_die.h"

namespace kvrun::host::matmul_cases {

using kvrun::testing::MatMulMagnitudes;
using kvrun::testing::MatMulReference;
using kvrun::testing::MatMulReferenceArgs;
using kvrun::testing::OrDie;
using kvrun::testing::ReferenceMatrix;

namespace {

constexpr float kPoison = -1234.5F;
constexpr size_t kBeyond = 64;  // floats after an output, which must stay

std::string Describe(const Case& c) {
  return std::string(TensorTypeName(c.type)) + ", " + std::to_string(c.n_rows) + " x " +
         std::to_string(c.n_cols) + ", " + std::to_string(c.n_tokens) + " tokens, variation " +
         std::to_string(c.variation) + (c.exact ? ", exact" : ", 8 bits");
}

// What products in floats may be off by: tests/kernels/matmul_test.cc derives it.
std::vector<double> ExactTolerance(TensorType type, const ReferenceMatrix& weight,
                                   const MatMulReferenceArgs& args, std::span<const float> before) {
  std::vector<double> tolerance(before.size());
  MatMulMagnitudes(weight, args, before, tolerance);
  for (double& value : tolerance) value *= (weight.n_cols + 16) * kRoundoff;
  if (!IsQuantised(type)) return tolerance;
  double largest = 0.0;
  for (const float value : weight.values) largest = std::max(largest, std::abs(double{value}));
  const size_t stride = args.output_stride != 0 ? args.output_stride : weight.n_rows;
  for (size_t t = 0; t < args.n_tokens; ++t) {
    double inputs = 0.0;
    for (size_t c = 0; c < weight.n_cols; ++c) inputs += std::abs(args.input[t * weight.n_cols + c]);
    for (size_t r = 0; r < weight.n_rows; ++r) {
      tolerance[t * stride + args.output_offset + r] += 2 * 4 * kRoundoff * 4 * largest * inputs;
    }
  }
  return tolerance;
}

double LargestOfBlock(std::span<const float> input, size_t begin) {
  double largest = 0.0;
  for (size_t c = begin; c < begin + 32; ++c) largest = std::max(largest, std::abs(double{input[c]}));
  return largest;
}

// What rounding activations adds: an activation is off by half a step of its block, a 127th of the block's
// largest, and by a few roundings of 127 steps; that times the weight. A block that is clearly larger than
// its row's has steps of a 256th of that, of which one more may be lost at the end of their range. Scaled
// sums of blocks are rounded instead of single products, which are fewer. large_alone: rounding takes nothing
// away from the other blocks.
void AddRoundedActivations(const ReferenceMatrix& weight, const MatMulReferenceArgs& args, bool large_alone,
                           std::span<double> tolerance) {
  const size_t stride = args.output_stride != 0 ? args.output_stride : weight.n_rows;
  const size_t n_cols = weight.n_cols;
  for (size_t t = 0; t < args.n_tokens; ++t) {
    const auto input = std::span(args.input).subspan(t * n_cols, n_cols);
    double squares = 0.0;
    for (size_t begin = 0; begin < n_cols; begin += 32) squares += std::pow(LargestOfBlock(input, begin), 2);
    const double usual = std::sqrt(squares / (static_cast<double>(n_cols) / 32));
    for (size_t begin = 0; begin < n_cols; begin += 32) {
      const double largest = LargestOfBlock(input, begin);
      const bool is_fine = largest > 1.51 * usual;
      if (large_alone && !is_fine) continue;
      const double steps = is_fine ? 1.5 / 256 : 0.5;
      const double off = largest / 127 * (steps + 127 * 4 * kRoundoff);
      for (size_t r = 0; r < weight.n_rows; ++r) {
        double& to = tolerance[t * stride + args.output_offset + r];
        for (size_t c = begin; c < begin + 32; ++c) to += std::abs(weight.values[r * n_cols + c]) * off;
      }
    }
  }
}

}  // namespace

bool IsQuantised(TensorType type) { return GetTensorType(type).block_elements != 1; }

std::vector<uint32_t> ColumnCounts(TensorType type) {
  switch (GetTensorType(type).block_elements) {
    case 1: return {1, 5, 33, 66};
    case 32: return {32, 96, 256};
    default: return {256, 512};
  }
}

void Choose(int64_t targets, Int8Products most) {
  hwy::SetSupportedTargetsForTest(targets);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  LimitInt8Products(most);
}

std::vector<Target> Targets() {
  std::vector<Target> targets;
  for (int64_t left = hwy::SupportedTargets(); left != 0; left &= left - 1) {
    const int64_t bit = left & -left;
    for (const Int8Products most : {Int8Products::kTiles, Int8Products::kDot, Int8Products::kPlain}) {
      Choose(bit, most);
      const MatMulKernels kernels = GetMatMulKernels();
      if (std::strcmp(kernels.target, hwy::TargetName(bit)) != 0)
        continue;  // not compiled: another stands in
      const bool is_another = most == Int8Products::kTiles || kernels.products != targets.back().products;
      if (is_another) targets.push_back({bit, kernels.products, most});
    }
  }
  Choose(0, Int8Products::kTiles);
  return targets;
}

std::string NameOf(const Target& target) {
  constexpr const char* kWithout[] = {"_without_dot", "_without_tiles", ""};
  return std::string(hwy::TargetName(target.bit)) + kWithout[static_cast<size_t>(target.most)];
}

std::vector<float> Input(const Case& c) {
  std::vector<float> input = RandomFloats(size_t{c.n_tokens} * c.n_cols, c.n_tokens + 1);
  if (!c.whole_activations && !c.large_blocks) return input;
  for (size_t i = 0; i < input.size(); ++i) {
    if (c.large_blocks && i / 32 % 5 == 3)
      input[i] *= 20 * 31.75F;
    else
      input[i] = i % 64 == 0 ? 31.75F : i % 32 == 0 ? -31.75F : std::round(input[i] * 127.0F) * 0.25F;
  }
  return input;
}

Weights MakeWeights(std::shared_ptr<MemoryAccount> account, ThreadPool& pool, TensorType type,
                    uint32_t n_cols, std::vector<std::byte> data, std::span<const uint32_t> source_rows) {
  std::vector<MatrixSource> sources;
  const TensorTypeInfo& info = GetTensorType(type);
  size_t at = 0;
  for (const uint32_t n_rows : source_rows) {
    const size_t bytes = size_t{n_rows} * n_cols / info.block_elements * info.block_bytes;
    sources.push_back({std::span(data).subspan(at, bytes), n_rows});
    at += bytes;
  }
  ReferenceMatrix reference(type, n_cols, sources);
  auto matrix = OrDie(PackMatrix(std::move(account), pool, type, n_cols, sources));
  return {std::move(data), std::move(reference), std::move(matrix)};
}

void HostMatMulTest::SetUp() {
  Choose(GetParam().bit, GetParam().most);
  const MatMulKernels kernels = GetMatMulKernels();
  ASSERT_STREQ(kernels.target, hwy::TargetName(GetParam().bit));
  ASSERT_EQ(kernels.products, GetParam().products);
}

void HostMatMulTest::CheckProduct(ThreadPool& pool, const Case& c, const Matrix& matrix,
                                  const ReferenceMatrix& used) {
  const bool has_bias = (c.variation & 1) != 0;
  const bool has_offsets = (c.variation & 4) != 0;
  const std::vector<float> input = Input(c);
  const std::vector<float> bias = RandomFloats(size_t{used.n_rows} + 3, c.n_tokens + 2);
  const MatMulReferenceArgs plain{.input = input,
                                  .bias = has_bias ? std::span<const float>(bias) : std::span<const float>{},
                                  .n_tokens = c.n_tokens,
                                  .output_stride = has_offsets ? used.n_rows + 9 : 0,
                                  .output_offset = has_offsets ? 5U : 0U,
                                  .bias_offset = has_offsets ? 3U : 0U,
                                  .accumulate = (c.variation & 2) != 0};
  const size_t stride = has_offsets ? plain.output_stride : used.n_rows;
  std::vector<float> before = RandomFloats(c.n_tokens * stride + kBeyond, 99);
  if (!plain.accumulate) std::fill(before.begin(), before.end(), kPoison);

  std::vector<double> tolerance(before.size(), 0.0);
  {
    std::vector<float> added(before.size(), 0.0F);
    if (plain.accumulate) added = before;
    tolerance = ExactTolerance(c.type, used, plain, added);
  }
  if (!c.exact && !c.whole_activations && IsQuantised(c.type))
    AddRoundedActivations(used, plain, c.large_blocks, tolerance);
  std::vector<double> expected(before.begin(), before.end());
  MatMulReference(used, plain, expected);

  const auto input_buffer = Floats(input);
  const auto bias_buffer = Floats(bias);
  const auto output = Floats(before);
  MatMul(pool,
         {.weight = &matrix,
          .input = input_buffer.get(),
          .output = output.get(),
          .bias = has_bias ? bias_buffer.get() : nullptr,
          .n_tokens = c.n_tokens,
          .n_rows = used.n_rows == matrix.n_rows() ? 0 : used.n_rows,
          .output_stride = plain.output_stride,
          .output_offset = plain.output_offset,
          .bias_offset = plain.bias_offset,
          .accumulate = plain.accumulate},
         c.exact);
  const auto* found = Data<float>(output.get());
  for (size_t i = 0; i < before.size(); ++i) {
    const size_t row = i % stride - plain.output_offset;  // wraps before the first
    const bool is_result = i / stride < c.n_tokens && row < used.n_rows;
    if (is_result)
      ASSERT_NEAR(found[i], expected[i], tolerance[i]) << Describe(c) << ", element " << i;
    else
      ASSERT_EQ(found[i], before[i]) << Describe(c) << ", element " << i << " must stay";
  }
}

}  // namespace kvrun::host::matmul_cases
