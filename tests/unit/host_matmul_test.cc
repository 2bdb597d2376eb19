// Matrix products of the CPU device: every tensor type, mode, instruction set and odd shape, against sums in
// double.
#include <gtest/gtest.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/device/host/matmul_kernels.h"
#include "runtime/device/host/operations.h"
#include "runtime/device/self_test_data.h"
#include "shaders/shared/step_params.h"
#include "tests/support/or_die.h"
#include "tests/support/scalar_reference.h"

namespace kvrun::host {
namespace {

using kvrun::testing::MatMulMagnitudes;
using kvrun::testing::MatMulReference;
using kvrun::testing::MatMulReferenceArgs;
using kvrun::testing::OrDie;
using kvrun::testing::ReferenceMatrix;

constexpr double kRoundoff = 0x1p-24;
constexpr float kPoison = -1234.5F;
constexpr size_t kBeyond = 64;  // floats after an output, which must stay

constexpr TensorType kTypes[] = {
    TensorType::kF32,  TensorType::kF16,  TensorType::kBF16, TensorType::kQ8_0,   TensorType::kQ4_0,
    TensorType::kQ4_1, TensorType::kQ5_0, TensorType::kQ5_1, TensorType::kQ2_K,   TensorType::kQ3_K,
    TensorType::kQ4_K, TensorType::kQ5_K, TensorType::kQ6_K, TensorType::kIQ4_NL, TensorType::kIQ4_XS};

bool IsQuantised(TensorType type) { return GetTensorType(type).block_elements != 1; }

std::vector<uint32_t> ColumnCounts(TensorType type) {
  switch (GetTensorType(type).block_elements) {
    case 1: return {1, 5, 33, 66};
    case 32: return {32, 96, 256};
    default: return {256, 512};
  }
}

// One of the kernels that this machine can run.
struct Target {
  int64_t bit;
  Int8Products products;
  Int8Products most;  // nothing better is used
};

// targets 0: the best.
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

struct Case {
  TensorType type = TensorType::kF32;
  uint32_t n_rows = 0;
  uint32_t n_cols = 0;
  uint32_t n_tokens = 0;
  uint32_t variation = 0;  // bits: bias, accumulate, stride and offsets
  bool exact = false;
  bool whole_activations = false;  // multiples of their step: rounding takes nothing away
  bool large_blocks = false;       // every fifth block is not, and 20 times as large as the others
};

std::string Describe(const Case& c) {
  return std::string(TensorTypeName(c.type)) + ", " + std::to_string(c.n_rows) + " x " +
         std::to_string(c.n_cols) + ", " + std::to_string(c.n_tokens) + " tokens, variation " +
         std::to_string(c.variation) + (c.exact ? ", exact" : ", 8 bits");
}

// MatMul's kernels are those of one target.
class HostMatMulTest : public ::testing::TestWithParam<Target> {
 protected:
  void SetUp() override {
    Choose(GetParam().bit, GetParam().most);
    const MatMulKernels kernels = GetMatMulKernels();
    ASSERT_STREQ(kernels.target, hwy::TargetName(GetParam().bit));
    ASSERT_EQ(kernels.products, GetParam().products);
  }
  void TearDown() override { Choose(0, Int8Products::kTiles); }

  std::unique_ptr<Buffer> NewBuffer(uint64_t size_bytes) {
    auto memory = OrDie(HostMemory::Allocate(account_, "test", size_bytes));
    return std::make_unique<HostBuffer>(std::move(memory), size_bytes, BufferUse::kShared);
  }
  std::unique_ptr<Buffer> Floats(std::span<const float> values) {
    auto buffer = NewBuffer(values.size_bytes());
    std::memcpy(Data<float>(buffer.get()), values.data(), values.size_bytes());
    return buffer;
  }

  // A product and what must stay around it. `used`: the rows that it is with.
  void CheckProduct(ThreadPool& pool, const Case& c, const Matrix& matrix, const ReferenceMatrix& used);

  std::shared_ptr<MemoryAccount> account_ = std::make_shared<MemoryAccount>();
  ThreadPool one_{1};
  ThreadPool three_{3};
};

INSTANTIATE_TEST_SUITE_P(Targets, HostMatMulTest, ::testing::ValuesIn(Targets()),
                         [](const auto& target) { return NameOf(target.param); });

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

struct Weights {
  std::vector<std::byte> data;
  ReferenceMatrix reference;
  std::unique_ptr<Matrix> matrix;
};

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

TEST_P(HostMatMulTest, EveryTypeAndShape) {
  for (const TensorType type : kTypes) {
    uint32_t variation = 0;
    for (const uint32_t n_cols : ColumnCounts(type)) {
      for (const uint32_t n_rows : {1U, 31U, 33U, 100U}) {
        const size_t n = size_t{n_rows} * n_cols;
        const Weights weights =
            MakeWeights(account_, three_, type, n_cols, RandomTensor(type, n, n_rows + n_cols), {&n_rows, 1});
        for (const uint32_t n_tokens : {1U, 2U, 3U, 5U, 8U, 17U}) {
          for (const bool exact : {true, false}) {
            const Case c{type, n_rows, n_cols, n_tokens, variation % 8, exact};
            CheckProduct(variation % 2 == 0 ? three_ : one_, c, *weights.matrix, weights.reference);
            if (HasFatalFailure()) return;
          }
          ++variation;
        }
      }
    }
  }
}

// Nothing to round: 8 bits must be as close as floats, so that a wrong sum or offset cannot hide.
TEST_P(HostMatMulTest, ActivationsThatEightBitsHold) {
  for (const TensorType type : kTypes) {
    const uint32_t n_cols = 512;
    const uint32_t n_rows = 33;
    const Weights weights =
        MakeWeights(account_, three_, type, n_cols, RandomTensor(type, n_rows * n_cols, 7), {&n_rows, 1});
    for (const uint32_t n_tokens : {1U, 7U, 16U}) {
      const Case c{type, n_rows, n_cols, n_tokens, n_tokens % 8, false, true};
      CheckProduct(three_, c, *weights.matrix, weights.reference);
      if (HasFatalFailure()) return;
    }
  }
}

// They would be most of the error, and are not: each has 8 bits more.
TEST_P(HostMatMulTest, BlocksThatAreLargerThanTheOthers) {
  for (const TensorType type : kTypes) {
    const uint32_t n_cols = 1024;
    const uint32_t n_rows = 33;
    const Weights weights =
        MakeWeights(account_, three_, type, n_cols, RandomTensor(type, n_rows * n_cols, 8), {&n_rows, 1});
    for (const uint32_t n_tokens : {1U, 2U, 7U, 8U, 16U, 53U}) {
      const Case c{type, n_rows, n_cols, n_tokens, n_tokens % 8, false, false, true};
      CheckProduct(three_, c, *weights.matrix, weights.reference);
      if (HasFatalFailure()) return;
    }
  }
}

// Quants and activations as large as they get: sums of products do not saturate.
TEST_P(HostMatMulTest, LargestQuants) {
  const uint32_t n_rows = 16;
  const uint32_t n_cols = 256;
  for (const TensorType type : kTypes) {
    if (!IsQuantised(type)) continue;
    for (const uint8_t quants : {uint8_t{0xFF}, uint8_t{0x00}, uint8_t{0x80}, uint8_t{0x7F}}) {
      const TensorTypeInfo& info = GetTensorType(type);
      // All bytes the same, but halves, which are ones.
      std::vector<std::byte> data(size_t{n_rows} * n_cols / info.block_elements * info.block_bytes,
                                  std::byte{quants});
      for (size_t at = 0; at < data.size(); at += info.block_bytes) {
        const uint16_t one = FloatToHalf(1.0F);
        const bool has_minimum = type == TensorType::kQ4_1 || type == TensorType::kQ5_1 ||
                                 type == TensorType::kQ2_K || type == TensorType::kQ4_K ||
                                 type == TensorType::kQ5_K;
        size_t first = 0;
        if (type == TensorType::kQ2_K) first = 80;
        if (type == TensorType::kQ3_K) first = 108;
        if (type == TensorType::kQ6_K) first = 208;
        std::memcpy(data.data() + at + first, &one, 2);
        if (has_minimum) std::memcpy(data.data() + at + first + 2, &one, 2);
      }
      const Weights weights = MakeWeights(account_, one_, type, n_cols, data, {&n_rows, 1});
      // 126 127/256 in a block that is larger than all others: all bits of both parts, as 127 makes a step 1.
      for (const float activation : {127.0F, -127.0F, 126.49609375F, -126.49609375F}) {
        std::vector<float> input(n_cols, activation);
        if (std::abs(activation) < 127.0F) {
          std::fill(input.begin() + 32, input.end(), 0.0F);
          input[0] = 127.0F;
        }
        std::vector<float> inputs;
        for (uint32_t t = 0; t < kTileTokens; ++t) inputs.insert(inputs.end(), input.begin(), input.end());
        const auto x = Floats(inputs);
        const auto y = NewBuffer(kTileTokens * n_rows * sizeof(float));
        double expected = 0.0;
        double magnitude = 0.0;
        for (uint32_t i = 0; i < n_cols; ++i) {
          const double product = double{weights.reference.values[i]} * input[i];
          expected += product;
          magnitude += 4 * std::abs(product) + 127 * 64.0;
        }
        for (const uint32_t n_tokens : {1U, kTileTokens}) {
          MatMul(one_,
                 {.weight = weights.matrix.get(), .input = x.get(), .output = y.get(), .n_tokens = n_tokens},
                 false);
          for (uint32_t i = 0; i < n_tokens * n_rows; ++i) {
            ASSERT_NEAR(Data<float>(y.get())[i], expected, 32 * kRoundoff * magnitude)
                << TensorTypeName(type) << ", bytes " << int{quants} << ", element " << i;
          }
        }
      }
    }
  }
}

TEST_P(HostMatMulTest, StackedSourcesAndTheFirstRowsOfAMatrix) {
  constexpr uint32_t kRows[] = {5, 33, 70};
  for (const TensorType type : {TensorType::kQ4_1, TensorType::kQ6_K, TensorType::kF16}) {
    const Weights weights = MakeWeights(account_, three_, type, 512, RandomTensor(type, 108 * 512, 3), kRows);
    for (const uint32_t used_rows : {1U, 32U, 70U, 107U, 108U}) {
      ReferenceMatrix used = weights.reference;
      used.n_rows = used_rows;
      used.values.resize(size_t{used_rows} * 512);
      for (const bool exact : {true, false}) {
        CheckProduct(three_, {type, used_rows, 512, 5, used_rows % 8, exact}, *weights.matrix, used);
        if (HasFatalFailure()) return;
      }
    }
  }
}

// More tokens than stay in the cache at a time.
TEST_P(HostMatMulTest, AWholeStepOfTokens) {
  const uint32_t n_rows = 20;
  const uint32_t n_cols = 1536;
  for (const TensorType type : {TensorType::kQ4_1, TensorType::kQ8_0}) {
    const Weights weights =
        MakeWeights(account_, three_, type, n_cols, RandomTensor(type, n_rows * n_cols, 3), {&n_rows, 1});
    CheckProduct(three_, {type, n_rows, n_cols, 515, 0, false}, *weights.matrix, weights.reference);
  }
}

// Which numbers come does not depend on how many threads or tokens there are.
TEST_P(HostMatMulTest, ThreadsAndTilesDoNotChangeResults) {
  const uint32_t n_rows = 100;
  const uint32_t n_cols = 1024;
  constexpr uint32_t kTokens = 31;  // tiles of every size
  constexpr uint32_t kFew = 15;     // too few to unpack weights for
  for (const TensorType type : {TensorType::kQ4_1, TensorType::kQ8_0, TensorType::kQ4_0, TensorType::kQ6_K,
                                TensorType::kQ2_K, TensorType::kIQ4_NL, TensorType::kIQ4_XS}) {
    const Weights weights =
        MakeWeights(account_, three_, type, n_cols, RandomTensor(type, n_rows * n_cols, 3), {&n_rows, 1});
    // With blocks that are larger than others, several in a row.
    const auto x = Floats(Input({type, n_rows, n_cols, kTokens, 0, false, false, true}));
    const auto many = NewBuffer(size_t{kTokens} * n_rows * sizeof(float));
    const auto few = NewBuffer(size_t{kFew} * n_rows * sizeof(float));
    MatMul(three_,
           {.weight = weights.matrix.get(), .input = x.get(), .output = many.get(), .n_tokens = kTokens},
           false);
    MatMul(three_, {.weight = weights.matrix.get(), .input = x.get(), .output = few.get(), .n_tokens = kFew},
           false);
    const auto single = NewBuffer(n_rows * sizeof(float));
    for (uint32_t t = 0; t < kTokens; ++t) {
      const auto row =
          Floats(std::span(Data<float>(x.get()), size_t{kTokens} * n_cols).subspan(t * n_cols, n_cols));
      MatMul(one_,
             {.weight = weights.matrix.get(), .input = row.get(), .output = single.get(), .n_tokens = 1},
             false);
      for (uint32_t r = 0; r < n_rows; ++r) {
        const float expected = Data<float>(single.get())[r];
        ASSERT_EQ(expected, Data<float>(many.get())[t * n_rows + r]) << t << ", " << r;
        if (t < kFew) {
          ASSERT_EQ(expected, Data<float>(few.get())[t * n_rows + r]) << t << ", " << r;
        }
      }
    }
  }
}

// Nor by which instructions bytes are multiplied: their sums are exact. But where weights of 8 bits meet
// activations of 16, a fine block is one sum, elsewhere two.
TEST_P(HostMatMulTest, InstructionsForBytesDoNotChangeResults) {
  if (GetParam().products == Int8Products::kPlain) GTEST_SKIP() << "it has but the plain ones";
  constexpr uint32_t kRows = 33;
  constexpr uint32_t kCols = 1024;
  constexpr uint32_t kTokens = 31;
  for (const TensorType type : kTypes) {
    if (!IsQuantised(type)) continue;
    const Weights weights =
        MakeWeights(account_, three_, type, kCols, RandomTensor(type, kRows * kCols, 3), {&kRows, 1});
    const auto x = Floats(Input({type, kRows, kCols, kTokens, 0, false, false, true}));
    std::vector<float> results[2];
    for (const Int8Products most : {GetParam().most, Int8Products::kPlain}) {
      Choose(GetParam().bit, most);
      const auto y = NewBuffer(size_t{kTokens} * kRows * sizeof(float));
      MatMul(three_,
             {.weight = weights.matrix.get(), .input = x.get(), .output = y.get(), .n_tokens = kTokens},
             false);
      const auto* found = Data<float>(y.get());
      results[most == Int8Products::kPlain ? 1 : 0].assign(found, found + size_t{kTokens} * kRows);
    }
    Choose(GetParam().bit, Int8Products::kPlain);
    const MatMulKernels plain = GetMatMulKernels();
    if (plain.takes_wide == nullptr || !plain.takes_wide(type)) {
      EXPECT_TRUE(results[0] == results[1]) << TensorTypeName(type);
      continue;
    }
    float largest = 0.0F;
    for (const float value : results[1]) largest = std::max(largest, std::abs(value));
    for (size_t i = 0; i < results[0].size(); ++i)
      ASSERT_NEAR(results[0][i], results[1][i], 1e-5F * largest) << TensorTypeName(type);
  }
}

TEST_P(HostMatMulTest, ActivationsThatAreNoNumbers) {
  const uint32_t n_rows = 17;
  const uint32_t n_cols = 256;
  constexpr uint32_t kTokens = 9;  // a full tile, and another one
  const float infinity = std::numeric_limits<float>::infinity();
  for (const TensorType type :
       {TensorType::kQ4_1, TensorType::kQ2_K, TensorType::kIQ4_XS, TensorType::kQ8_0}) {
    const Weights weights =
        MakeWeights(account_, one_, type, n_cols, RandomTensor(type, n_rows * n_cols, 3), {&n_rows, 1});
    for (const float bad : {infinity, -infinity, std::numeric_limits<float>::quiet_NaN(), 0.0F, 1e-40F}) {
      std::vector<float> input(kTokens * n_cols, 0.0F);
      input[40] = bad;
      input[(kTokens - 1) * n_cols + 40] = bad;
      const auto x = Floats(input);
      const auto y = NewBuffer(kTokens * n_rows * sizeof(float));
      MatMul(one_, {.weight = weights.matrix.get(), .input = x.get(), .output = y.get(), .n_tokens = kTokens},
             false);
      for (uint32_t i = 0; i < kTokens * n_rows; ++i) {
        const uint32_t token = i / n_rows;
        if (bad == 0.0F || bad == 1e-40F || (token != 0 && token != kTokens - 1))
          EXPECT_EQ(Data<float>(y.get())[i], 0.0F);
        else
          EXPECT_TRUE(std::isnan(Data<float>(y.get())[i])) << TensorTypeName(type) << ", " << bad;
      }
    }
  }
}

// Decoding costs what it costs, and no more. Six-bit scales take a byte: with one for 16 columns that is 3.6
// %.
TEST_P(HostMatMulTest, MemoryIsThatOfTheFile) {
  const uint32_t n_rows = 64;
  const uint32_t n_cols = 1024;
  for (const TensorType type : kTypes) {
    const Weights weights =
        MakeWeights(account_, one_, type, n_cols, RandomTensor(type, n_rows * n_cols, 3), {&n_rows, 1});
    EXPECT_LE(static_cast<double>(weights.matrix->size_bytes()),
              (type == TensorType::kQ3_K ? 1.04 : 1.03) * static_cast<double>(weights.data.size()))
        << TensorTypeName(type);
  }
}

TEST_P(HostMatMulTest, EmbedEveryType) {
  const std::vector<uint32_t> ids = {99, 0, 31, 32, 0};
  const auto step = NewBuffer(sizeof(StepParams));
  for (size_t t = 0; t < ids.size(); ++t) Data<StepParams>(step.get())->tokens[t].id = ids[t];
  const uint32_t n_rows = 100;
  for (const TensorType type : kTypes) {
    for (const uint32_t n_cols : ColumnCounts(type)) {
      const Weights weights =
          MakeWeights(account_, three_, type, n_cols, RandomTensor(type, n_rows * n_cols, 1), {&n_rows, 1});
      double largest = 0.0;
      for (const float value : weights.reference.values) largest = std::max(largest, std::abs(double{value}));
      const double tolerance = IsQuantised(type) ? 32 * kRoundoff * largest : 0.0;
      for (const size_t n_tokens : {ids.size(), size_t{1}}) {
        const auto out = NewBuffer(n_tokens * n_cols * sizeof(float));
        Embed(three_, {weights.matrix.get(), step.get(), static_cast<uint32_t>(n_tokens), out.get()});
        for (size_t t = 0; t < n_tokens; ++t) {
          for (uint32_t c = 0; c < n_cols; ++c) {
            ASSERT_NEAR(Data<float>(out.get())[t * n_cols + c],
                        weights.reference.values[size_t{ids[t]} * n_cols + c], tolerance)
                << TensorTypeName(type) << ", " << n_cols << ", token " << t << ", column " << c;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace kvrun::host
