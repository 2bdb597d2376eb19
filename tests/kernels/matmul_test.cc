// Matrix products and embeddings of every tensor type, against the scalar reference.
#include <array>
#include <cmath>
#include <numbers>
#include <optional>

#include "runtime/device/vulkan/kernel_plan.h"
#include "tests/support/operations_fixture.h"
#include "tests/support/scalar_reference.h"

namespace kvrun::testing {
namespace {

constexpr TensorType kTypes[] = {
    TensorType::kF32,  TensorType::kF16,  TensorType::kBF16, TensorType::kQ8_0,   TensorType::kQ4_0,
    TensorType::kQ4_1, TensorType::kQ5_0, TensorType::kQ5_1, TensorType::kQ2_K,   TensorType::kQ3_K,
    TensorType::kQ4_K, TensorType::kQ5_K, TensorType::kQ6_K, TensorType::kIQ4_NL, TensorType::kIQ4_XS};
constexpr uint32_t kTokenCounts[] = {1, 2, 3, 4, 5, 8, 9, 17};
constexpr uint32_t kRowCounts[] = {1, 31, 33, 100, 576};

std::vector<uint32_t> ColumnCounts(TensorType type) {
  switch (GetTensorType(type).block_elements) {
    case 1: return {1, 5, 30, 33, 66};
    case 32: return {32, 64, 96, 160, 256};
    default: return {256, 512};
  }
}

// A sum of n products in any order is off by at most n roundings of the sum of their magnitudes (and a few
// for bias and what was there). Decoding a weight d q + m takes at most four roundings of |d q| + |m| in the
// kernel and in DecodeTensor each, for which four times the largest weight is an upper bound in this data.
std::vector<double> MatMulTolerance(TensorType type, const ReferenceMatrix& weight,
                                    const MatMulReferenceArgs& args, std::span<const double> before) {
  std::vector<float> start(before.size(), 0.0F);
  for (size_t i = 0; i < before.size(); ++i) {
    if (!std::isnan(before[i])) start[i] = static_cast<float>(before[i]);
  }
  std::vector<double> tolerance(before.size());
  MatMulMagnitudes(weight, args, start, tolerance);
  for (double& value : tolerance) value *= (weight.n_cols + 16) * kRoundoff;
  if (GetTensorType(type).block_elements == 1) return tolerance;

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

// One product on a device and by the reference. Bits of `variation`: bias, accumulate, stride and offsets.
struct Product {
  Product(SelfTestRun& run, TensorType type, const Matrix& matrix, const ReferenceMatrix& reference,
          uint32_t n_tokens, uint32_t variation)
      : input(RandomFloats(size_t{n_tokens} * matrix.n_cols(), n_tokens + 1)),
        bias(RandomFloats(size_t{matrix.n_rows()} + 3, n_tokens + 2)) {
    const bool has_bias = (variation & 1) != 0;
    const bool accumulate = (variation & 2) != 0;
    const bool has_offsets = (variation & 4) != 0;
    const MatMulReferenceArgs plain{
        .input = input,
        .bias = has_bias ? std::span<const float>(bias) : std::span<const float>{},
        .n_tokens = n_tokens,
        .output_stride = has_offsets ? matrix.n_rows() + 9 : 0,
        .output_offset = has_offsets ? 5U : 0U,
        .bias_offset = has_offsets ? 3U : 0U,
        .accumulate = accumulate};
    expected = Untouched(size_t{n_tokens} * (has_offsets ? plain.output_stride : matrix.n_rows()));
    if (accumulate) {
      const std::vector<float> before = RandomFloats(expected.size(), 99);
      expected.assign(before.begin(), before.end());
    }
    args = {.weight = &matrix,
            .input = run.Floats(input),
            .output = PoisonedBuffer(run, expected),
            .bias = has_bias ? run.Floats(bias) : nullptr,
            .n_tokens = n_tokens,
            .output_stride = plain.output_stride,
            .output_offset = plain.output_offset,
            .bias_offset = plain.bias_offset,
            .accumulate = accumulate};
    tolerance = MatMulTolerance(type, reference, plain, expected);
    MatMulReference(reference, plain, expected);
  }

  std::vector<float> input;
  std::vector<float> bias;
  std::vector<double> expected;
  std::vector<double> tolerance;
  MatMulArgs args;
};

// The kernel of a product, where there are several; for messages.
std::string VariantOf(const Device& device, const Product& product, TensorType type) {
  const VulkanComputeDevice* vulkan = AsVulkan(device);
  if (vulkan == nullptr) return "host";
  const Matrix& weight = *product.args.weight;
  return ChooseMatMul(vulkan->plan(), vulkan->is_cpu(), type, weight.n_rows(), weight.n_cols(),
                      product.args.n_tokens)
      .variant;
}

void CheckProducts(Device& device, TensorType type, uint32_t n_cols, std::span<const uint32_t> source_rows,
                   std::span<const uint32_t> token_counts, uint32_t variation) {
  SelfTestRun run(device);
  std::vector<std::vector<std::byte>> data;
  std::vector<MatrixSource> sources;
  for (const uint32_t n_rows : source_rows) {
    data.push_back(RandomTensor(type, size_t{n_rows} * n_cols, n_rows + n_cols));
    sources.push_back({.data = data.back(), .n_rows = n_rows});
  }
  const ReferenceMatrix reference(type, n_cols, sources);
  auto matrix = device.CreateMatrix(type, n_cols, sources);
  ASSERT_TRUE(matrix.ok()) << matrix.status().message();
  std::vector<std::unique_ptr<Product>> products;
  for (const uint32_t n_tokens : token_counts) {
    products.push_back(std::make_unique<Product>(run, type, **matrix, reference, n_tokens, variation++));
  }
  run.Run([&](CommandList& list) -> Status {
    for (const auto& product : products) KVRUN_RETURN_IF_ERROR(list.MatMul(product->args));
    return Status::Ok();
  });
  for (const auto& product : products) {
    EXPECT_TRUE(IsClose(run, product->args.output, product->expected, product->tolerance))
        << device.info().name << ", " << TensorTypeName(type) << ", " << reference.n_rows << " x " << n_cols
        << ", " << product->args.n_tokens << " tokens, " << VariantOf(device, *product, type);
  }
}

class MatMulTest : public OperationsTest {};

INSTANTIATE_TEST_SUITE_P(Modes, MatMulTest,
                         ::testing::ValuesIn(ModesOf(Operations::kMatMul,
                                                     {DeviceMode::kPlanned, DeviceMode::kFloor,
                                                      DeviceMode::kGpu, DeviceMode::kGpuFloor})),
                         ModeName);

TEST_P(MatMulTest, EveryTypeAndShape) {
  for (Device* device : devices_) {
    for (const TensorType type : kTypes) {
      uint32_t variation = 0;
      for (const uint32_t n_cols : ColumnCounts(type)) {
        for (const uint32_t n_rows : kRowCounts) {
          CheckProducts(*device, type, n_cols, {&n_rows, 1}, kTokenCounts, variation++);
        }
      }
    }
  }
}

// What a product of norm and gate should be; n_rows of the weight, the first half of which gates the second.
struct EndsCase {
  TensorType type;
  uint32_t n_cols;
  uint32_t n_rows;
  uint32_t n_tokens;
  bool has_norm;
  std::optional<Activation> gate;
  bool has_bias = false;  // beside the norm's weights
};

double ActivationOf(Activation activation, double x) {
  if (activation == Activation::kSilu) return x / (1.0 + std::exp(-x));
  return x / 2 * (1.0 + std::tanh(std::sqrt(2.0 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
}

std::vector<double> ProductWithEnds(const EndsCase& c, const ReferenceMatrix& weight,
                                    std::span<const float> input, std::span<const float> constants,
                                    double epsilon) {
  std::vector<double> output;
  for (size_t t = 0; t < c.n_tokens; ++t) {
    double squares = 0.0;
    for (size_t i = 0; i < c.n_cols; ++i) squares += std::pow(double{input[t * c.n_cols + i]}, 2);
    const double factor = c.has_norm ? 1.0 / std::sqrt(squares / c.n_cols + epsilon) : 1.0;
    std::vector<double> rows(c.n_rows);
    for (size_t r = 0; r < c.n_rows; ++r) {
      for (size_t i = 0; i < c.n_cols; ++i) {
        rows[r] += weight.values[r * c.n_cols + i] * factor * input[t * c.n_cols + i] *
                   (c.has_norm ? constants[i] : 1.0);
      }
      if (c.has_bias) rows[r] += constants[c.n_cols + r];
    }
    if (!c.gate) output.insert(output.end(), rows.begin(), rows.end());
    for (size_t r = 0; c.gate && r < c.n_rows / 2; ++r)
      output.push_back(ActivationOf(*c.gate, rows[r]) * rows[c.n_rows / 2 + r]);
  }
  return output;
}

void CheckEnds(Device& device, const EndsCase& c) {
  constexpr float kEpsilon = 1e-2F;
  SelfTestRun run(device);
  const std::vector<std::byte> data = RandomTensor(c.type, size_t{c.n_rows} * c.n_cols, 1);
  const MatrixSource source{.data = data, .n_rows = c.n_rows};
  const ReferenceMatrix reference(c.type, c.n_cols, {&source, 1});
  const std::vector<float> input = RandomFloats(size_t{c.n_tokens} * c.n_cols, 2);
  const std::vector<float> constants = RandomFloats(size_t{c.n_cols} + c.n_rows, 3);
  const std::vector<double> wanted = ProductWithEnds(c, reference, input, constants, kEpsilon);
  const Buffer* buffer = run.Floats(constants);
  MatMulArgs args{.weight = run.Weights(c.type, c.n_rows, c.n_cols, data),
                  .input = run.Floats(input),
                  .output = PoisonedBuffer(run, Untouched(wanted.size())),
                  .n_tokens = c.n_tokens};
  if (c.has_norm) args.norm = {buffer, kEpsilon, run.Poisoned(input.size())};
  if (c.gate) args.gate = {run.Poisoned(size_t{c.n_tokens} * c.n_rows), *c.gate};
  if (c.has_bias) args.bias = buffer, args.bias_offset = c.n_cols;
  run.Run([&](CommandList& list) { return list.MatMul(args); });
  // In proportion to what is added: weights and inputs are about 1.
  double largest = 0.0;
  for (const double value : wanted) largest = std::max(largest, std::abs(value));
  const std::vector<double> tolerance(wanted.size(), largest * (c.n_cols + 64) * 4 * kRoundoff);
  EXPECT_TRUE(IsClose(run, args.output, wanted, tolerance))
      << device.info().name << ", " << TensorTypeName(c.type) << ", " << c.n_rows << " x " << c.n_cols << ", "
      << c.n_tokens << " tokens" << (c.has_norm ? ", norm" : "") << (c.gate ? ", gate" : "")
      << (c.has_bias ? ", bias" : "");
}

// Rows of the gate that are no whole workgroup's, columns that are no whole chunk and more than one tile has.
TEST_P(MatMulTest, NormsBeforeAndGatesAfter) {
  for (Device* device : devices_) {
    // Kernels of CPUs take a second each to compile, and decode as those without norms.
    const bool has_all = IsHost(GetParam()) || GetParam() == DeviceMode::kGpu;
    for (const TensorType type : kTypes) {
      if (!has_all && type != TensorType::kF32 && type != TensorType::kQ4_0 && type != TensorType::kQ6_K)
        continue;
      const uint32_t elements = GetTensorType(type).block_elements;
      std::vector<uint32_t> columns = {elements == 1 ? 67U : 3 * elements};
      if (type == TensorType::kQ4_0 || type == TensorType::kQ6_K)
        columns.push_back(elements == 32 ? 2336 : 2560);
      if (elements == 1) columns.push_back(72);
      for (const uint32_t n_cols : columns) {
        for (const uint32_t n_tokens : {1U, 3U}) {
          CheckEnds(*device, {type, n_cols, 70, n_tokens, true, std::nullopt});
          CheckEnds(*device, {type, n_cols, 70, n_tokens, true, std::nullopt, true});
          CheckEnds(*device, {type, n_cols, 2 * 45, n_tokens, true, Activation::kSilu});
          CheckEnds(*device, {type, n_cols, 2 * 32, n_tokens, false, Activation::kGeluTanh});
        }
      }
    }
  }
}

TEST_P(MatMulTest, StackedSources) {
  constexpr uint32_t kRows[] = {5, 33, 70};
  for (Device* device : devices_) {
    for (const TensorType type : {TensorType::kQ4_1, TensorType::kQ6_K, TensorType::kF16}) {
      CheckProducts(*device, type, 512, kRows, kTokenCounts, 1);
    }
  }
}

// Of a stack of matrices, the rows of the first.
TEST_P(MatMulTest, TheFirstRowsOfAMatrix) {
  constexpr uint32_t kCols = 96;
  for (Device* device : devices_) {
    for (const TensorType type : {TensorType::kQ4_1, TensorType::kF16}) {
      for (const uint32_t n_rows : {1U, 32U, 70U, 99U, 100U}) {
        SelfTestRun run(*device);
        const std::vector<std::byte> data = RandomTensor(type, size_t{100} * kCols, 1);
        const size_t used_bytes = data.size() / 100 * n_rows;
        const MatrixSource used{.data = std::span(data).first(used_bytes), .n_rows = n_rows};
        const ReferenceMatrix reference(type, kCols, {&used, 1});
        const Matrix* matrix = run.Weights(type, 100, kCols, data);
        for (const uint32_t n_tokens : {1U, 5U}) {
          const std::vector<float> input = RandomFloats(size_t{n_tokens} * kCols, 2);
          const MatMulReferenceArgs plain{.input = input, .bias = {}, .n_tokens = n_tokens};
          std::vector<double> expected = Untouched(size_t{n_tokens} * n_rows);
          const std::vector<double> tolerance = MatMulTolerance(type, reference, plain, expected);
          const MatMulArgs args{.weight = matrix,
                                .input = run.Floats(input),
                                .output = PoisonedBuffer(run, expected),
                                .n_tokens = n_tokens,
                                .n_rows = n_rows};
          run.Run([&](CommandList& list) { return list.MatMul(args); });
          MatMulReference(reference, plain, expected);
          EXPECT_TRUE(IsClose(run, args.output, expected, tolerance))
              << TensorTypeName(type) << ", " << n_rows << " rows, " << n_tokens << " tokens";
        }
      }
    }
  }
}

TEST_P(MatMulTest, AWholeStepOfTokens) {
  constexpr uint32_t kRows = 40;
  constexpr uint32_t kTokens = KVRUN_MAX_STEP_TOKENS;
  for (Device* device : devices_) {
    CheckProducts(*device, TensorType::kQ8_0, 64, {&kRows, 1}, {&kTokens, 1}, 0);
  }
}

TEST_P(MatMulTest, ResultsReachTheHost) {
  constexpr uint32_t kRows = 100;
  for (Device* device : devices_) {
    SelfTestRun run(*device);
    const std::vector<std::byte> data = RandomTensor(TensorType::kQ4_1, kRows * 64, 1);
    const MatrixSource source{.data = data, .n_rows = kRows};
    const Matrix* matrix = run.Weights(TensorType::kQ4_1, kRows, 64, data);
    ASSERT_NE(matrix, nullptr);
    Product product(run, TensorType::kQ4_1, *matrix, ReferenceMatrix(TensorType::kQ4_1, 64, {&source, 1}), 2,
                    0);
    auto output = device->CreateBuffer(2 * kRows * sizeof(float), BufferUse::kReadback, "test");
    ASSERT_TRUE(output.ok()) << output.status().message();
    product.args.output = output->get();
    run.Run([&](CommandList& list) { return list.MatMul(product.args); });
    ASSERT_TRUE(run.status().ok()) << run.status().message();
    const auto* found = reinterpret_cast<const float*>((*output)->host().data());
    for (size_t i = 0; i < product.expected.size(); ++i) {
      ASSERT_NEAR(found[i], product.expected[i], product.tolerance[i]) << i;
    }
  }
}

TEST_P(MatMulTest, EmbedEveryType) {
  constexpr uint32_t kRows = 100;
  std::vector<StepToken> tokens;
  for (const uint32_t id : {99U, 0U, 31U, 32U, 0U})
    tokens.push_back({.id = id, .position = 0, .sequence = 0, .output_row = 0});
  for (Device* device : devices_) {
    for (const TensorType type : kTypes) {
      for (const uint32_t n_cols : ColumnCounts(type)) {
        SelfTestRun run(*device);
        const std::vector<std::byte> data = RandomTensor(type, size_t{kRows} * n_cols, 1);
        const MatrixSource source{.data = data, .n_rows = kRows};
        const std::vector<double> expected =
            EmbedReference(ReferenceMatrix(type, n_cols, {&source, 1}), tokens);
        const Matrix* table = run.Weights(type, kRows, n_cols, data);
        Buffer* output = PoisonedBuffer(run, Untouched(expected.size()));
        const Buffer* step = run.Step(tokens);
        run.Run([&](CommandList& list) {
          return list.Embed(*table, *step, static_cast<uint32_t>(tokens.size()), output);
        });
        // Decoding: as in MatMulTolerance.
        const double tolerance =
            GetTensorType(type).block_elements == 1 ? 0.0 : 32 * kRoundoff * LargestMagnitude(expected);
        EXPECT_TRUE(IsClose(run, output, expected, tolerance)) << TensorTypeName(type) << ", " << n_cols;
      }
    }
  }
}

class SliceTest : public OperationsTest {};

INSTANTIATE_TEST_SUITE_P(Modes, SliceTest, ::testing::Values(DeviceMode::kSmallBuffers), ModeName);

TEST_P(SliceTest, MatricesInSeveralBuffers) {
  constexpr uint32_t kRows[] = {100, 476};
  constexpr uint32_t kTokens[] = {1, 8};
  for (Device* device : devices_) {
    for (const TensorType type : kTypes) {
      for (uint32_t variation = 0; variation < 8; ++variation) {
        CheckProducts(*device, type, GetTensorType(type).block_elements == 256 ? 512 : 160, kRows, kTokens,
                      variation);
      }
    }
  }
}

TEST_P(SliceTest, TablesInSeveralBuffers) {
  constexpr uint32_t kRows = 800;  // more than a buffer holds, also of two bits a weight
  constexpr uint32_t kCols = 256;
  std::vector<StepToken> tokens;
  for (uint32_t id = 0; id < kRows; id += 31) {
    tokens.push_back({.id = kRows - 1 - id, .position = 0, .sequence = 0, .output_row = 0});
  }
  for (Device* device : devices_) {
    for (const TensorType type : kTypes) {
      SelfTestRun run(*device);
      const std::vector<std::byte> data = RandomTensor(type, size_t{kRows} * kCols, 1);
      const MatrixSource source{.data = data, .n_rows = kRows};
      const std::vector<double> expected = EmbedReference(ReferenceMatrix(type, kCols, {&source, 1}), tokens);
      const Matrix* table = run.Weights(type, kRows, kCols, data);
      ASSERT_NE(table, nullptr) << run.status().message();
      EXPECT_GT(static_cast<const VulkanMatrix*>(table)->slices().size(), 1U) << TensorTypeName(type);
      Buffer* output = PoisonedBuffer(run, Untouched(expected.size()));
      const Buffer* step = run.Step(tokens);
      run.Run([&](CommandList& list) {
        return list.Embed(*table, *step, static_cast<uint32_t>(tokens.size()), output);
      });
      EXPECT_TRUE(IsClose(run, output, expected, 32 * kRoundoff * LargestMagnitude(expected)))
          << TensorTypeName(type);
    }
  }
}

}  // namespace
}  // namespace kvrun::testing
