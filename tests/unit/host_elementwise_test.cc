// Norms, activations and row copies of the CPU device, against the scalar reference.
#include <cmath>

#include "tests/support/host_operation_run.h"
#include "tests/support/scalar_reference.h"

namespace kvrun::testing {
namespace {

// The last is long enough, in all rows, for several threads.
constexpr uint32_t kColumnCounts[] = {1, 5, 30, 32, 33, 64, 66, 100, 576, 2050, 9000};

TEST(HostElementwiseTest, RmsNorm) {
  constexpr uint32_t kRows = 5;
  constexpr float kEpsilon = 1e-2F;
  OnEveryHostTarget([](host::HostDevice& device) {
    for (const uint32_t n_cols : kColumnCounts) {
      for (const bool in_place : {false, true}) {
        HostOperationRun run(device);
        const std::vector<float> x = HostRandomFloats(size_t{kRows} * n_cols, n_cols);
        const std::vector<float> weight = HostRandomFloats(n_cols, n_cols + 1);
        Buffer* output = in_place ? run.Output(x) : run.Poisoned(x.size());
        const Buffer* source = in_place ? output : run.Values(x);
        const Buffer* factors = run.Values(weight);
        run.Run([&](CommandList& list) {
          return list.RmsNorm(*source, *factors, kEpsilon, kRows, n_cols, output);
        });
        const std::vector<double> expected = RmsNormReference(x, weight, kEpsilon, kRows, n_cols);
        // A sum of n squares, which the root halves; quotients and root of a few roundings; two products.
        std::vector<double> tolerance;
        for (const double value : expected) {
          tolerance.push_back(std::abs(value) * (n_cols + 24) * kHostRoundoff);
        }
        EXPECT_TRUE(AreClose(run.Read<float>(output, x.size()), expected, tolerance)) << n_cols << " columns";
        EXPECT_TRUE(run.IsUntouched(output, x.size())) << n_cols << " columns";
      }
    }
  });
}

TEST(HostElementwiseTest, SwiGlu) {
  constexpr uint32_t kTokens = 3;
  OnEveryHostTarget([](host::HostDevice& device) {
    for (const uint32_t n_ff : kColumnCounts) {
      HostOperationRun run(device);
      std::vector<float> gate_up = HostRandomFloats(size_t{kTokens} * 2 * n_ff, n_ff);
      for (float& value : gate_up) value *= 20.0F;
      const std::vector<double> expected = SwiGluReference(gate_up, kTokens, n_ff);
      Buffer* output = run.Poisoned(expected.size());
      const Buffer* source = run.Values(gate_up);
      run.Run([&](CommandList& list) { return list.SwiGlu(*source, kTokens, n_ff, output); });
      // As for devices of Vulkan: exp(x) good to 3 + 2|x| units in the last place, |x| at most 20, and a
      // quotient.
      std::vector<double> tolerance;
      for (const double value : expected) {
        tolerance.push_back(std::abs(value) * 2 * kHostRoundoff * (3 + 40 + 8));
      }
      EXPECT_TRUE(AreClose(run.Read<float>(output, expected.size()), expected, tolerance))
          << n_ff << " columns";
      EXPECT_TRUE(run.IsUntouched(output, expected.size())) << n_ff << " columns";
    }
  });
}

// Gates beyond what a power of 2 can hold: nothing is a NaN.
TEST(HostElementwiseTest, SwiGluOfLargeGates) {
  OnEveryHostTarget([](host::HostDevice& device) {
    HostOperationRun run(device);
    const Buffer* source = run.Values(std::vector<float>{-1e5F, -100.0F, 0.0F, 1e5F, 2.0F, 2.0F, 2.0F, 2.0F});
    Buffer* output = run.Poisoned(4);
    run.Run([&](CommandList& list) { return list.SwiGlu(*source, 1, 4, output); });
    const std::vector<double> expected = {0.0, 0.0, 0.0, 2e5};
    EXPECT_TRUE(AreClose(run.Read<float>(output, 4), expected, std::vector<double>{1e-30, 1e-30, 0.0, 0.1}));
  });
}

TEST(HostElementwiseTest, GatherRows) {
  OnEveryHostTarget([](host::HostDevice& device) {
    for (const uint32_t n_cols : kColumnCounts) {
      HostOperationRun run(device);
      const std::vector<float> x = HostRandomFloats(size_t{7} * n_cols, n_cols);
      std::vector<StepToken> tokens;
      for (const uint32_t row : {6U, 0U, 3U, 3U}) {
        tokens.push_back({.id = 0, .position = 0, .sequence = 0, .output_row = row});
      }
      const std::vector<double> expected = GatherRowsReference(x, tokens, n_cols);
      Buffer* output = run.Poisoned(expected.size());
      const Buffer* source = run.Values(x);
      const Buffer* step = run.Step(tokens);
      run.Run([&](CommandList& list) { return list.GatherRows(*source, *step, 4, n_cols, output); });
      EXPECT_TRUE(AreClose(run.Read<float>(output, expected.size()), expected, std::vector<double>{0.0}));
      EXPECT_TRUE(run.IsUntouched(output, expected.size())) << n_cols << " columns";
    }
  });
}

// They compute what nobody checks; that they end, and write only where they may, is seen here.
TEST(HostElementwiseTest, RatesRun) {
  OnEveryHostTarget([](host::HostDevice& device) {
    HostOperationRun run(device);
    Buffer* values = run.Output(std::vector<float>(size_t{3} * 64 * 8 * 4, 0.0F));
    run.Run([&](CommandList& list) -> Status {
      KVRUN_RETURN_IF_ERROR(list.AluRate(3, 2, values));
      return list.ReadRate(3, 8, values);
    });
    EXPECT_TRUE(run.IsUntouched(values, size_t{3} * 64 * 8 * 4));
  });
}

}  // namespace
}  // namespace kvrun::testing
