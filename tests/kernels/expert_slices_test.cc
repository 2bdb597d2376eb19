// Products with experts whose weights lie in several buffers, and whose products are added up in parts, where
// buffers are small.
#include <cstring>
#include <span>
#include <vector>

#include "tests/support/layer_reference.h"
#include "tests/support/operations_fixture.h"

namespace kvrun::testing {
namespace {

class ExpertSlicesTest : public OperationsTest {};

INSTANTIATE_TEST_SUITE_P(Modes, ExpertSlicesTest, ::testing::Values(DeviceMode::kSmallBuffers), ModeName);

struct SlicedCase {
  TensorType type = TensorType::kF32;
  uint32_t n_tokens = 0;
  bool is_sum = false;
};

void CheckSliced(Device& device, const SlicedCase& c) {
  constexpr uint32_t kExperts = 5;
  constexpr uint32_t kUsed = 3;
  constexpr uint32_t kRows = 100;
  constexpr uint32_t kCols = 64;
  SelfTestRun run(device);
  const std::vector<std::byte> data = RandomTensor(c.type, size_t{kExperts} * kRows * kCols, 1);
  const MatrixSource source{.data = data, .n_rows = kExperts * kRows};
  const ReferenceMatrix weight(c.type, kCols, {&source, 1});
  std::vector<uint32_t> ids;
  for (uint32_t use = 0; use < c.n_tokens * kUsed; ++use)
    ids.push_back((use / kUsed * 2 + use % kUsed) % kExperts);
  std::vector<float> id_bits(ids.size());
  std::memcpy(id_bits.data(), ids.data(), ids.size() * sizeof(uint32_t));
  const std::vector<float> input = RandomFloats((c.is_sum ? ids.size() : c.n_tokens) * kCols, 2);
  const std::vector<float> weights = RandomFloats(c.is_sum ? ids.size() : 0, 3);
  const std::vector<float> before = RandomFloats(size_t{c.n_tokens} * kRows, 4);
  std::vector<double> expected = Untouched(ids.size() * kRows);
  if (c.is_sum) expected.assign(before.begin(), before.end());
  Buffer* output = PoisonedBuffer(run, expected);
  ExpertMatMulReference(
      weight, {.input = input, .ids = ids, .weights = weights, .n_used = kUsed, .n_rows = kRows}, expected);
  const Matrix* matrix = run.Weights(c.type, kExperts * kRows, kCols, data);
  ASSERT_NE(matrix, nullptr) << run.status().message();
  const VulkanMatrix& sliced = static_cast<const VulkanMatrix&>(*matrix);
  if (c.type == TensorType::kF32) {
    EXPECT_GT(sliced.slices().size(), 1U);
  }
  const ExpertMatMulArgs args{.weight = matrix,
                              .input = run.Floats(input),
                              .ids = run.Floats(id_bits),
                              .weights = c.is_sum ? run.Floats(weights) : nullptr,
                              .n_tokens = c.n_tokens,
                              .n_used = kUsed,
                              .n_rows = kRows,
                              .output = output};
  run.Run([&](CommandList& list) { return list.ExpertMatMul(args); });
  EXPECT_TRUE(IsClose(run, output, expected, 1e-5 * LargestMagnitude(expected)))
      << TensorTypeName(c.type) << ", " << c.n_tokens << " tokens";
}

TEST_P(ExpertSlicesTest, ExpertsAcrossSlices) {
  for (Device* device : devices_) {
    for (const TensorType type : {TensorType::kF32, TensorType::kQ8_0}) {
      for (const uint32_t n_tokens : {1U, 3U, 40U}) CheckSliced(*device, {type, n_tokens, false});
      for (const uint32_t n_tokens : {1U, 70U}) CheckSliced(*device, {type, n_tokens, true});
    }
  }
}

}  // namespace
}  // namespace kvrun::testing
