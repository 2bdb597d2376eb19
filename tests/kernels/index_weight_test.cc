// Groups that differ in weight, as clusters do: chosen by score until the weight is spent, against the scalar
// reference.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "runtime/device/host/score.h"
#include "tests/support/index_reference.h"
#include "tests/support/operations_fixture.h"
#include "tests/support/score_cases.h"

namespace kvrun::testing {
namespace {

class IndexWeightTest : public OperationsTest {};
class HostIndexWeightTest : public OperationsTest {};

INSTANTIATE_TEST_SUITE_P(Modes, IndexWeightTest,
                         ::testing::ValuesIn(ModesOf(Operations::kIndex,
                                                     {DeviceMode::kPlanned, DeviceMode::kFloor,
                                                      DeviceMode::kGpu, DeviceMode::kGpuFloor})),
                         ModeName);

INSTANTIATE_TEST_SUITE_P(Modes, HostIndexWeightTest, ::testing::ValuesIn(HostModes()), ModeName);

// Of sequences with nothing, one group, a few and many to choose from; of all heads, or each KV head's own.
TEST_P(IndexWeightTest, UntilTheWeightIsSpent) {
  for (Device* device : devices_) {
    for (const HeadReduction reduction : {HeadReduction::kSoftmax, HeadReduction::kPerKvHead}) {
      for (const uint32_t n_pinned : {0U, 2U}) {
        for (const uint32_t most_weight : {1U, 11U, 130U, 900U}) {
          CheckScore(*device, {.index = {KvType::kInt8, 12, 1, 140, 4},
                               .n_heads = 6,
                               .n_kv_heads = 2,
                               .head_dim = 16,
                               .reduction = reduction,
                               .window_tokens = 10,
                               .n_pinned = n_pinned,
                               .n_chosen = n_pinned + most_weight,
                               .rule = ChooseByWeight{.most_weight = most_weight},
                               .tokens = {TokenAt(5, 3), TokenAt(10, 2), TokenAt(16, 1), TokenAt(149, 0)}});
        }
      }
    }
  }
}

// Scores of sums, which may be negative, and masses: which are best is said by what each has of its weight.
TEST_P(IndexWeightTest, RankedByScorePerWeight) {
  for (Device* device : devices_) {
    for (const HeadReduction reduction : kReductions) {
      for (const uint32_t most_weight : {1U, 11U, 130U, 900U}) {
        const bool has_masses = reduction != HeadReduction::kSum;
        CheckScore(*device, {.index = {KvType::kInt8, 12, 1, 140, 4},
                             .n_heads = 6,
                             .n_kv_heads = 2,
                             .head_dim = 16,
                             .reduction = reduction,
                             .window_tokens = 10,
                             .n_pinned = 2,
                             .n_chosen = 2 + most_weight,
                             .rule = ChooseByWeight{.group_score =
                                                        has_masses ? GroupScore::kMass : GroupScore::kLargest,
                                                    .most_weight = most_weight,
                                                    .per_weight = true},
                             .tokens = {TokenAt(5, 3), TokenAt(10, 2), TokenAt(16, 1), TokenAt(149, 0)}});
      }
    }
  }
}

TEST_P(IndexWeightTest, WhereNothingWeighsAnythingThePinnedGroupsAreTheChoice) {
  for (Device* device : devices_) {
    ScoreCase c{.index = {KvType::kInt8, 12, 1, 60, 1},
                .n_heads = 3,
                .n_kv_heads = 1,
                .head_dim = 8,
                .n_pinned = 2,
                .n_chosen = 2,
                .tokens = {TokenAt(59, 0)}};
    SelfTestRun run(*device);
    ScoreInputs inputs(run, c);
    inputs.args.rule = ChooseByWeight{.weights = run.Zeros(60 * sizeof(uint32_t))};
    run.Run([&](CommandList& list) { return list.ScoreAndSelect(inputs.args); });
    const auto chosen = Download<uint32_t>(run, inputs.args.chosen, 3);
    EXPECT_EQ(chosen, (std::vector<uint32_t>{2, 0, 1}));
  }
}

// Few different scores: of those that tie the lowest groups are chosen, as many as fit. (A softmax may round
// equal entries differently.)
TEST_P(IndexWeightTest, Ties) {
  for (Device* device : devices_) {
    for (const uint32_t distinct : {1U, 20U}) {
      for (const uint32_t most_weight : {1U, 40U, 777U, 3000U}) {
        for (const bool per_weight : {false, true}) {
          CheckScore(*device, {.index = {KvType::kInt8, 12, 1, 1000, 1},
                               .n_heads = 3,
                               .n_kv_heads = 1,
                               .head_dim = 8,
                               .reduction = HeadReduction::kSum,
                               .n_pinned = 3,
                               .n_chosen = 3 + most_weight,
                               .rule = ChooseByWeight{.most_weight = most_weight, .per_weight = per_weight},
                               .distinct_rows = distinct,
                               .tokens = {TokenAt(999, 0)}});
        }
      }
    }
  }
}

TEST_P(IndexWeightTest, ManyClusters) {
  for (Device* device : devices_) {
    for (const uint32_t most_weight : {400U, 6000U}) {
      CheckScore(*device,
                 {.index = {KvType::kInt8, 16, 1, 8192, 1},
                  .n_heads = 4,
                  .n_kv_heads = 2,
                  .head_dim = 8,
                  .reduction = HeadReduction::kPerKvHead,
                  .n_pinned = 1,
                  .n_chosen = 1 + most_weight,
                  .rule = ChooseByWeight{.most_weight = most_weight, .per_weight = most_weight == 6000},
                  .tokens = {TokenAt(8100, 0)}});
    }
  }
}

// Scores that are no numbers choose no more than there is room for: whoever reads the groups trusts their
// numbers.
TEST_P(HostIndexWeightTest, NaNsChooseNoMoreThanThereIsRoomFor) {
  for (const size_t n_nans : {1U, 50U, 100U}) {
    std::vector<float> scores(100, 1.0F);
    for (size_t i = 0; i < n_nans; ++i) scores[i * 100 / n_nans] = std::nanf("");
    const std::vector<uint32_t> weights(100, 2);
    std::vector<uint32_t> chosen(2 + 7 + kBeyond, kPoison);
    host::SelectWeighted(scores.data(), weights.data(), 100, 1, 7, chosen.data());
    ASSERT_LE(chosen[0], 4U);
    for (size_t i = 1; i <= chosen[0]; ++i) EXPECT_LT(chosen[i], 100U);
    for (size_t i = 1 + chosen[0]; i < chosen.size(); ++i) EXPECT_EQ(chosen[i], kPoison);
  }
}

// Scores of every kind, chosen from directly.
TEST_P(HostIndexWeightTest, ChoosesAmongScoresOfEveryKind) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::vector<float> kinds = {0.0F, 1e-44F, -1e-44F, 1.0F, -1.0F, kInfinity, -kInfinity, 3e38F, 1.0F};
  for (const uint32_t n : {1U, 2U, 9U, 63U, 64U, 65U, 333U}) {
    const std::vector<float> random = RandomFloats(n, n);
    std::vector<float> scores(n);
    std::vector<uint32_t> weights(n);
    for (size_t i = 0; i < n; ++i) {
      const auto chance = static_cast<size_t>((random[i] + 1.0F) * 1000.0F);
      scores[i] = kinds[chance % kinds.size()];
      weights[i] = chance % 4 == 0 ? UINT32_MAX / n : static_cast<uint32_t>(chance % 5);
    }
    for (const uint32_t most_weight : {0U, 1U, n, 3 * n}) {
      for (const uint32_t n_pinned : {0U, 1U}) {
        std::vector<uint32_t> chosen(n + 2, kPoison);
        host::SelectWeighted(scores.data(), weights.data(), n, n_pinned, most_weight, chosen.data());
        std::vector<uint32_t> expected = SelectWeightedReference(scores, weights, n_pinned, most_weight);
        expected.insert(expected.begin(), static_cast<uint32_t>(expected.size()));
        expected.resize(n + 2, kPoison);
        EXPECT_EQ(chosen, expected) << most_weight << " of " << n << ", " << n_pinned << " pinned";
        if (n_pinned != 0) continue;
        std::vector<float> divided(n);
        host::DivideByWeights(scores.data(), weights.data(), n, divided.data());
        chosen.assign(n + 2, kPoison);
        host::SelectWeighted(divided.data(), weights.data(), n, 0, most_weight, chosen.data());
        expected = SelectWeightedReference(scores, weights, 0, most_weight, true);
        expected.insert(expected.begin(), static_cast<uint32_t>(expected.size()));
        expected.resize(n + 2, kPoison);
        EXPECT_EQ(chosen, expected) << most_weight << " of " << n << ", per weight";
      }
    }
  }
}

}  // namespace
}  // namespace kvrun::testing
