// Mixtures of experts against the scalar reference, and products with each expert by itself.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "tests/support/layer_reference.h"
#include "tests/support/operations_fixture.h"
#include "tests/support/score_cases.h"

namespace kvrun::testing {
namespace {

class ExpertsTest : public OperationsTest {};
class HostExpertsTest : public RoundingOperationsTest {};

INSTANTIATE_TEST_SUITE_P(Modes, ExpertsTest,
                         ::testing::ValuesIn(ModesOf(Operations::kLayers,
                                                     {DeviceMode::kPlanned, DeviceMode::kFloor,
                                                      DeviceMode::kGpu, DeviceMode::kGpuFloor})),
                         ModeName);
INSTANTIATE_TEST_SUITE_P(Modes, HostExpertsTest, ::testing::ValuesIn(HostModes()), ModeName);

Buffer* Words(SelfTestRun& run, const std::vector<uint32_t>& words) {
  std::vector<float> floats(words.size());
  std::memcpy(floats.data(), words.data(), words.size() * sizeof(uint32_t));
  return run.Floats(floats);
}

void CheckChoice(Device& device, std::span<const float> logits, uint32_t n_experts, uint32_t n_used) {
  SelfTestRun run(device);
  const auto n_tokens = static_cast<uint32_t>(logits.size() / n_experts);
  const size_t n_uses = size_t{n_tokens} * n_used;
  const ChooseExpertsArgs args{.logits = run.Floats(logits),
                               .n_tokens = n_tokens,
                               .n_experts = n_experts,
                               .n_used = n_used,
                               .ids = PoisonedBuffer(run, Untouched(n_uses)),
                               .weights = PoisonedBuffer(run, Untouched(n_uses))};
  run.Run([&](CommandList& list) { return list.ChooseExperts(args); });
  const ChosenExperts expected = ChooseExpertsReference(logits, n_experts, n_used);
  EXPECT_EQ(Download<uint32_t>(run, args.ids, n_uses), expected.ids)
      << n_used << " of " << n_experts << " experts";
  // exp(x) is good to 3 + 2|x| units in the last place (Vulkan), |x| at most 16, in weights and their sum; of
  // what is added up, each rounds once.
  std::vector<double> tolerance;
  for (const double weight : expected.weights)
    tolerance.push_back(weight * (2 * 2 * (3 + 32) + n_experts + 8) * kRoundoff);
  EXPECT_TRUE(IsClose(run, args.weights, expected.weights, tolerance))
      << n_used << " of " << n_experts << " experts";
  const auto beyond = Download<uint32_t>(run, args.ids, n_uses + kBeyond);
  EXPECT_TRUE(std::all_of(beyond.end() - kBeyond, beyond.end(), [](uint32_t id) { return id == kPoison; }));
}

TEST_P(ExpertsTest, ChooseExperts) {
  for (Device* device : devices_) {
    for (const auto& [n_experts, n_used] : {std::pair{128U, 8U},
                                            {512U, 10U},
                                            {32U, 4U},
                                            {8U, 2U},
                                            {3U, 3U},
                                            {1U, 1U},
                                            {64U, 32U},
                                            {1024U, 32U},
                                            {65U, 1U},
                                            {100U, 7U}}) {
      for (const uint32_t n_tokens : {1U, 2U, 37U}) {
        std::vector<float> logits = RandomFloats(size_t{n_tokens} * n_experts, n_experts + n_tokens);
        for (float& logit : logits) logit *= 8.0F;
        CheckChoice(*device, logits, n_experts, n_used);
      }
    }
  }
}

// The lower expert of equals; what is far below the others weighs nothing, but is chosen where nothing else
// is there.
TEST_P(ExpertsTest, EqualsAndDistantOnes) {
  for (Device* device : devices_) {
    std::vector<float> equal(size_t{3} * 128, 0.5F);
    for (const size_t i : {7U, 90U, 91U, 128U + 127U}) equal[i] = 2.0F;
    CheckChoice(*device, equal, 128, 8);
    const std::vector<float> few = {-3.0F, -3.0F, -3.0F, 1.0F, -3.0F};
    CheckChoice(*device, few, 5, 3);
    SelfTestRun run(*device);
    const std::vector<float> distant = {-1000.0F, 1000.0F, -1000.0F, -1001.0F};
    const ChooseExpertsArgs args{.logits = run.Floats(distant),
                                 .n_tokens = 1,
                                 .n_experts = 4,
                                 .n_used = 2,
                                 .ids = PoisonedBuffer(run, Untouched(2)),
                                 .weights = PoisonedBuffer(run, Untouched(2))};
    run.Run([&](CommandList& list) { return list.ChooseExperts(args); });
    EXPECT_EQ(Download<uint32_t>(run, args.ids, 2), (std::vector<uint32_t>{1, 0}));
    EXPECT_TRUE(IsClose(run, args.weights, std::vector<double>{1.0, 0.0}, 1e-30));
  }
}

struct ExpertCase {
  TensorType type = TensorType::kQ4_0;
  uint32_t n_experts = 0;
  uint32_t n_used = 0;
  uint32_t n_rows = 0;
  uint32_t n_cols = 0;
  uint32_t n_tokens = 0;
  bool is_sum = false;
};

std::string Describe(const ExpertCase& c) {
  return std::string(TensorTypeName(c.type)) + ", " + ::testing::PrintToString(c.n_used) + " of " +
         ::testing::PrintToString(c.n_experts) + " experts of " + ::testing::PrintToString(c.n_rows) + " x " +
         ::testing::PrintToString(c.n_cols) + ", " + ::testing::PrintToString(c.n_tokens) + " tokens" +
         (c.is_sum ? ", added up" : "");
}

// Different experts for a token; some are many tokens', some nobody's.
std::vector<uint32_t> Ids(const ExpertCase& c) {
  std::vector<uint32_t> ids;
  for (uint32_t t = 0; t < c.n_tokens; ++t) {
    const uint32_t first = t % 3 == 0 ? c.n_experts - 1 : (t * t + 5) % c.n_experts;
    for (uint32_t j = 0; j < c.n_used; ++j) ids.push_back((first + j) % c.n_experts);
  }
  return ids;
}

// A case on a device, with what it takes.
struct ExpertRun {
  ExpertRun(Device& device, const ExpertCase& c)
      : run(device),
        data(RandomTensor(c.type, size_t{c.n_experts} * c.n_rows * c.n_cols, 5)),
        ids(Ids(c)),
        input(RandomFloats(size_t{c.n_tokens} * (c.is_sum ? c.n_used : 1) * c.n_cols, 6)) {
    if (c.is_sum) weights = RandomFloats(ids.size(), 7);
    if (c.is_sum) {
      const std::vector<float> values = RandomFloats(size_t{c.n_tokens} * c.n_rows, 8);
      before.assign(values.begin(), values.end());
    } else {
      before = Untouched(ids.size() * c.n_rows);
    }
    args = {.weight = run.Weights(c.type, c.n_experts * c.n_rows, c.n_cols, data),
            .input = run.Floats(input),
            .ids = Words(run, ids),
            .weights = c.is_sum ? run.Floats(weights) : nullptr,
            .n_tokens = c.n_tokens,
            .n_used = c.n_used,
            .n_rows = c.n_rows,
            .output = PoisonedBuffer(run, before)};
    run.Run([&](CommandList& list) { return list.ExpertMatMul(args); });
  }

  SelfTestRun run;
  std::vector<std::byte> data;
  std::vector<uint32_t> ids;
  std::vector<float> input;
  std::vector<float> weights;
  std::vector<double> before;
  ExpertMatMulArgs args;
};

void CheckProducts(Device& device, const ExpertCase& c) {
  ExpertRun run(device, c);
  const MatrixSource source{.data = run.data, .n_rows = c.n_experts * c.n_rows};
  ReferenceMatrix weight(c.type, c.n_cols, {&source, 1});
  ExpertMatMulReferenceArgs args{
      .input = run.input, .ids = run.ids, .weights = run.weights, .n_used = c.n_used, .n_rows = c.n_rows};
  std::vector<double> expected = run.before;
  ExpertMatMulReference(weight, args, expected);
  // As matmul_test.cc has it: a rounding of the sum of all magnitudes for each that is added up, and four
  // times the largest weight's for decoding.
  double largest = 0.0;
  for (float& value : weight.values) {
    value = std::abs(value);
    largest = std::max(largest, double{value});
  }
  for (float& value : weight.values) value += static_cast<float>(32 * largest / (c.n_cols + c.n_used + 16.0));
  std::vector<float> input(run.input);
  std::vector<float> weights(run.weights);
  for (float& value : input) value = std::abs(value);
  for (float& value : weights) value = std::abs(value);
  args.input = input;
  args.weights = weights;
  std::vector<double> tolerance = run.before;
  for (double& value : tolerance) value = std::abs(value);
  ExpertMatMulReference(weight, args, tolerance);
  for (double& value : tolerance) value *= (c.n_cols + c.n_used + 16) * kRoundoff;
  EXPECT_TRUE(IsClose(run.run, run.args.output, expected, tolerance)) << Describe(c);
}

constexpr TensorType kSomeTypes[] = {TensorType::kQ4_0, TensorType::kF16,  TensorType::kQ8_0,
                                     TensorType::kQ4_K, TensorType::kQ6_K, TensorType::kF32,
                                     TensorType::kQ5_1, TensorType::kQ2_K, TensorType::kIQ4_XS};

// Rows of an expert that fill groups of rows and that do not; from one token to many of an expert.
TEST_P(ExpertsTest, ExpertMatMul) {
  for (Device* device : devices_) {
    for (const TensorType type : kSomeTypes) {
      for (const bool is_sum : {false, true}) {
        for (const uint32_t n_tokens : {1U, 2U, 5U, 40U}) {
          CheckProducts(*device, {type, 9, 3, 33, 256, n_tokens, is_sum});
          CheckProducts(*device, {type, 16, 2, 64, 512, n_tokens, is_sum});
        }
        CheckProducts(*device, {type, 5, 5, 7, 256, 70, is_sum});
        CheckProducts(*device, {type, 1, 1, 100, 256, 3, is_sum});
      }
    }
  }
}

// Qwen3-30B-A3B's experts, with fewer rows.
TEST_P(ExpertsTest, ExpertsOfAModel) {
  for (Device* device : devices_) {
    for (const uint32_t n_tokens : {1U, 3U, 64U}) {
      CheckProducts(*device, {TensorType::kQ4_0, 128, 8, 48, 2048, n_tokens, false});
      CheckProducts(*device, {TensorType::kQ4_K, 128, 8, 64, 768, n_tokens, true});
    }
  }
}

// The CPU's results are, bit for bit, those of products with each expert as a matrix by itself, a token at a
// time; sums are what these add up to.
void CheckAgainstEach(Device& device, const ExpertCase& c) {
  ExpertRun run(device, c);
  std::vector<double> expected = run.before;
  std::vector<double> tolerance(expected.size());
  const size_t expert_bytes = run.data.size() / c.n_experts;
  std::vector<const Matrix*> experts;
  for (uint32_t e = 0; e < c.n_experts; ++e)
    experts.push_back(run.run.Weights(c.type, c.n_rows, c.n_cols,
                                      std::span(run.data).subspan(e * expert_bytes, expert_bytes)));
  for (size_t use = 0; use < run.ids.size(); ++use) {
    const size_t row = c.is_sum ? use : use / c.n_used;
    const std::vector<float> x(run.input.begin() + static_cast<ptrdiff_t>(row * c.n_cols),
                               run.input.begin() + static_cast<ptrdiff_t>((row + 1) * c.n_cols));
    MatMulArgs args{.weight = experts[run.ids[use]],
                    .input = run.run.Floats(x),
                    .output = PoisonedBuffer(run.run, Untouched(c.n_rows)),
                    .n_tokens = 1};
    run.run.Run([&](CommandList& list) { return list.MatMul(args); });
    const auto product = Download<float>(run.run, args.output, c.n_rows);
    for (size_t r = 0; r < c.n_rows; ++r) {
      if (c.is_sum) {
        const size_t at = use / c.n_used * c.n_rows + r;
        expected[at] += double{run.weights[use]} * product[r];
        tolerance[at] += 4 * c.n_used * kRoundoff * (std::abs(product[r]) + 1.0);
      } else {
        expected[use * c.n_rows + r] = product[r];
      }
    }
  }
  EXPECT_TRUE(IsClose(run.run, run.args.output, expected, tolerance))
      << Describe(c) << (RoundsActivations(device) ? ", rounded" : "");
}

TEST_P(HostExpertsTest, AreProductsWithEach) {
  const auto check = [](Device& device) {
    uint32_t turn = 0;
    for (const TensorType type : kSomeTypes) {
      for (const uint32_t n_tokens : {1U, 2U, 45U}) {
        CheckAgainstEach(device, {type, 7, 3, turn % 2 == 0 ? 40U : 48U, 256, n_tokens, turn % 3 == 0});
        ++turn;
      }
    }
  };
  for (Device* device : devices_) check(*device);
  for (const auto& device : rounding_) check(*device);
}

// What is no number is not lost, and chooses nothing that is not there.
TEST_P(HostExpertsTest, NaNsAreNotLost) {
  for (Device* device : devices_) {
    for (const uint32_t n_nan : {1U, 5U, 6U}) {
      SelfTestRun run(*device);
      std::vector<float> logits = {1.0F, 2.0F, 3.0F, 4.0F, 5.0F, 6.0F};
      std::fill_n(logits.begin(), n_nan, std::nanf(""));
      const ChooseExpertsArgs args{.logits = run.Floats(logits),
                                   .n_tokens = 1,
                                   .n_experts = 6,
                                   .n_used = 2,
                                   .ids = PoisonedBuffer(run, Untouched(2)),
                                   .weights = PoisonedBuffer(run, Untouched(2))};
      run.Run([&](CommandList& list) { return list.ChooseExperts(args); });
      const auto ids = Download<uint32_t>(run, args.ids, 2);
      EXPECT_TRUE(ids[0] < 6 && ids[1] < 6 && ids[0] != ids[1]) << n_nan;
      const auto weights = Download<float>(run, args.weights, 2);
      EXPECT_TRUE(std::isnan(weights[0]) && std::isnan(weights[1])) << n_nan;
    }
  }
}

}  // namespace
}  // namespace kvrun::testing
