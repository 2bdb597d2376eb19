// Matrix products of the CPU device: every tensor type, mode, instruction set and odd shape, against sums in
// double.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <vector>

#include "runtime/device/host/matmul_kernels.h"
#include "runtime/device/host/operations.h"
#include "runtime/device/self_test_data.h"
#include "shaders/shared/step_params.h"
#include "tests/support/host_matmul_cases.h"
#include "tests/support/scalar_reference.h"

namespace kvrun::host::matmul_cases {
namespace {

using kvrun::testing::ReferenceMatrix;

INSTANTIATE_TEST_SUITE_P(Targets, HostMatMulTest, ::testing::ValuesIn(Targets()),
                         [](const auto& target) { return NameOf(target.param); });

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
}  // namespace kvrun::host::matmul_cases
