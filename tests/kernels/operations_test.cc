// Norms, activations and row copies against the scalar reference.
#include <cmath>

#include "tests/support/operations_fixture.h"
#include "tests/support/scalar_reference.h"

namespace kvrun::testing {
namespace {

// The last is long enough, in all rows, for several threads of the CPU.
constexpr uint32_t kColumnCounts[] = {1, 5, 30, 32, 33, 64, 66, 100, 576, 2050, 9000};

class RowOperationsTest : public OperationsTest {};
class HostRowOperationsTest : public OperationsTest {};

INSTANTIATE_TEST_SUITE_P(Modes, RowOperationsTest,
                         ::testing::ValuesIn(ModesOf(Operations::kRows,
                                                     {DeviceMode::kPlanned, DeviceMode::kFloor})),
                         ModeName);
INSTANTIATE_TEST_SUITE_P(Modes, HostRowOperationsTest, ::testing::ValuesIn(HostModes()), ModeName);

TEST_P(RowOperationsTest, RmsNorm) {
  constexpr uint32_t kRows = 5;
  constexpr float kEpsilon = 1e-2F;
  for (Device* device : devices_) {
    for (const uint32_t n_cols : kColumnCounts) {
      for (const bool in_place : {false, true}) {
        SelfTestRun run(*device);
        const std::vector<float> x = RandomFloats(size_t{kRows} * n_cols, n_cols);
        const std::vector<float> weight = RandomFloats(n_cols, n_cols + 1);
        const std::vector<double> before(x.begin(), x.end());
        Buffer* output = PoisonedBuffer(run, in_place ? before : Untouched(x.size()));
        const Buffer* source = in_place ? output : run.Floats(x);
        const Buffer* factors = run.Floats(weight);
        run.Run([&](CommandList& list) {
          return list.RmsNorm(*source, *factors, kEpsilon, kRows, n_cols, output);
        });
        const std::vector<double> expected = RmsNormReference(x, weight, kEpsilon, kRows, n_cols);
        // A sum of n squares, which the root halves; quotients and root of a few roundings; two products.
        std::vector<double> tolerance;
        for (const double value : expected) tolerance.push_back(std::abs(value) * (n_cols + 24) * kRoundoff);
        EXPECT_TRUE(IsClose(run, output, expected, tolerance)) << n_cols << " columns";
      }
    }
  }
}

TEST_P(RowOperationsTest, SwiGlu) {
  constexpr uint32_t kTokens = 3;
  for (Device* device : devices_) {
    for (const uint32_t n_ff : kColumnCounts) {
      SelfTestRun run(*device);
      std::vector<float> gate_up = RandomFloats(size_t{kTokens} * 2 * n_ff, n_ff);
      for (float& value : gate_up) value *= 20.0F;
      const std::vector<double> expected = SwiGluReference(gate_up, kTokens, n_ff);
      Buffer* output = PoisonedBuffer(run, Untouched(expected.size()));
      const Buffer* source = run.Floats(gate_up);
      run.Run([&](CommandList& list) { return list.SwiGlu(*source, kTokens, n_ff, output); });
      // exp(x) is good to 3 + 2|x| units in the last place (Vulkan), a quotient to 2.5; |x| is at most 20.
      std::vector<double> tolerance;
      for (const double value : expected) tolerance.push_back(std::abs(value) * 2 * kRoundoff * (3 + 40 + 8));
      EXPECT_TRUE(IsClose(run, output, expected, tolerance)) << n_ff << " columns";
    }
  }
}

// Gates beyond what a power of 2 can hold: nothing is a NaN.
TEST_P(HostRowOperationsTest, SwiGluOfLargeGates) {
  for (Device* device : devices_) {
    SelfTestRun run(*device);
    const Buffer* source = run.Floats(std::vector<float>{-1e5F, -100.0F, 0.0F, 1e5F, 2.0F, 2.0F, 2.0F, 2.0F});
    Buffer* output = PoisonedBuffer(run, Untouched(4));
    run.Run([&](CommandList& list) { return list.SwiGlu(*source, 1, 4, output); });
    const std::vector<double> expected = {0.0, 0.0, 0.0, 2e5};
    EXPECT_TRUE(IsClose(run, output, expected, std::vector<double>{1e-30, 1e-30, 0.0, 0.1}));
  }
}

TEST_P(RowOperationsTest, GatherRows) {
  for (Device* device : devices_) {
    for (const uint32_t n_cols : kColumnCounts) {
      SelfTestRun run(*device);
      const std::vector<float> x = RandomFloats(size_t{7} * n_cols, n_cols);
      std::vector<StepToken> tokens;
      for (const uint32_t row : {6U, 0U, 3U, 3U}) {
        tokens.push_back({.id = 0, .position = 0, .sequence = 0, .output_row = row});
      }
      const std::vector<double> expected = GatherRowsReference(x, tokens, n_cols);
      Buffer* output = PoisonedBuffer(run, Untouched(expected.size()));
      const Buffer* source = run.Floats(x);
      const Buffer* step = run.Step(tokens);
      run.Run([&](CommandList& list) { return list.GatherRows(*source, *step, 4, n_cols, output); });
      EXPECT_TRUE(IsClose(run, output, expected, 0.0)) << n_cols << " columns";
    }
  }
}

// They compute what nobody checks; that they end, and write only where they may, is seen here.
TEST_P(HostRowOperationsTest, RatesRun) {
  constexpr size_t kValues = size_t{3} * 64 * 8 * 4;
  for (Device* device : devices_) {
    SelfTestRun run(*device);
    Buffer* values = PoisonedBuffer(run, std::vector<double>(kValues, 0.0));
    run.Run([&](CommandList& list) -> Status {
      KVRUN_RETURN_IF_ERROR(list.AluRate(3, 2, values));
      return list.ReadRate(3, 8, values);
    });
    EXPECT_TRUE(IsClose(run, values, std::vector<double>(kValues), std::numeric_limits<double>::infinity()));
  }
}

}  // namespace
}  // namespace kvrun::testing
