// Scoring and choosing groups by an index, against the scalar reference: what is the CPU's alone, or takes
// another device too long.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "runtime/device/host/score.h"
#include "shaders/shared/index_params.h"
#include "tests/support/index_reference.h"
#include "tests/support/operations_fixture.h"
#include "tests/support/score_cases.h"

namespace kvrun::testing {
namespace {

constexpr KvType kIndexTypes[] = {KvType::kF16, KvType::kInt8, KvType::kInt4};

class HostIndexTest : public RoundingOperationsTest {};

INSTANTIATE_TEST_SUITE_P(Modes, HostIndexTest, ::testing::ValuesIn(HostModes()), ModeName);

// As many rows for a group as it has tokens: signs and pages do not depend on each other.
TEST_P(HostIndexTest, SignedQueriesOfEntries) {
  for (Device* device : devices_) {
    for (const HeadReduction reduction : kReductions) {
      CheckScore(*device, {.index = {KvType::kInt8, 64, 4, 47, 1},
                           .n_heads = 6,
                           .n_kv_heads = 2,
                           .head_dim = 16,
                           .reduction = reduction,
                           .n_chosen = 9,
                           .norms = true,
                           .query_form = QueryForm::kSigned,
                           .tokens = {TokenAt(170, 0)}});
    }
  }
}

TEST_P(HostIndexTest, TheLargestRank) {
  for (Device* device : devices_) {
    for (const KvType type : kIndexTypes) {
      for (const uint32_t rank : {KVRUN_SHARED_INDEX_RANK, KVRUN_MAX_INDEX_RANK}) {
        CheckScore(*device, {.index = {type, rank, 4, 60, 1},
                             .n_heads = 4,
                             .n_kv_heads = 2,
                             .head_dim = 64,
                             .n_pinned = 1,
                             .n_chosen = 20,
                             .tokens = {TokenAt(239, 0)}});
      }
    }
  }
}

// Rows of whole words and others, several and few groups of a vector, sequences that share an index.
TEST_P(HostIndexTest, RoundedQueries) {
  for (const auto& device : rounding_) {
    for (const HeadReduction reduction : kReductions) {
      for (const uint32_t rank : {24U, 2U, 6U, 7U, 8U, 12U, 16U, 30U, 40U, 64U}) {
        for (const uint32_t group_tokens : {1U, 3U, 4U, 70U}) {
          const bool is_mass = rank % 4 == 0 && reduction != HeadReduction::kSum;
          CheckScore(*device, {.index = {KvType::kInt4, rank, group_tokens, 500 / group_tokens + 1, 2},
                               .n_heads = 6,
                               .n_kv_heads = 2,
                               .head_dim = 32,
                               .reduction = reduction,
                               .window_tokens = 3,
                               .n_pinned = 1,
                               .n_chosen = 3,
                               .norms = true,
                               .rule = is_mass ? ChoiceRule(ChooseByMass{}) : ChooseByLargest{},
                               .tokens = {TokenAt(450, 1), TokenAt(300, 0), TokenAt(499, 1)}});
        }
      }
    }
  }
}

// More weights than a worker keeps of any processor.
TEST_P(HostIndexTest, ManyHeadsOfALongContext) {
  ScoreCase c{.index = {KvType::kInt4, 12, 4, 32768 / 4, 1},
              .n_heads = 12,
              .n_kv_heads = 2,
              .head_dim = 8,
              .window_tokens = 64,
              .n_pinned = 4,
              .n_chosen = 100,
              .tokens = {TokenAt(32767 + 64, 0)}};
  for (Device* device : devices_) {
    for (const HeadReduction reduction : {HeadReduction::kSoftmax, HeadReduction::kPerKvHead}) {
      c.reduction = reduction;
      CheckScore(*device, c);
    }
  }
}

// Scores of every kind, chosen from directly: equal ones, zeros of both signs, infinities, tiny ones.
TEST_P(HostIndexTest, ChoosesAmongScoresOfEveryKind) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::vector<float> kinds = {0.0F,  -0.0F,     1e-44F,     -1e-44F, 1.0F,
                                    -1.0F, kInfinity, -kInfinity, 3e38F,   1.0F};
  for (const uint32_t n : {1U, 2U, 9U, 63U, 64U, 65U, 333U}) {
    const std::vector<float> random = RandomFloats(n, n);
    std::vector<float> scores(n);
    for (size_t i = 0; i < n; ++i) {
      scores[i] = kinds[static_cast<size_t>((random[i] + 1.0F) * 1000.0F) % kinds.size()];
    }
    for (const uint32_t n_chosen : {1U, n / 3 + 1, n / 2 + 1, n, n + 5}) {
      for (const uint32_t n_pinned : {0U, 1U, n_chosen}) {
        std::vector<uint32_t> chosen(n_chosen + 2, kPoison);
        host::SelectGroups(scores.data(), n, n_pinned, n_chosen, 0.0F, chosen.data());
        std::vector<uint32_t> expected = SelectGroupsReference(scores, n_pinned, n_chosen);
        expected.insert(expected.begin(), static_cast<uint32_t>(expected.size()));
        expected.resize(n_chosen + 2, kPoison);
        EXPECT_EQ(chosen, expected) << n_chosen << " of " << n << ", " << n_pinned << " pinned";
      }
    }
  }
}

// Numbers that are none choose what can be read: whoever reads the groups trusts their numbers.
TEST_P(HostIndexTest, AQueryOfNaNsChoosesGroupsThatAreThere) {
  for (Device* device : devices_) {
    for (const HeadReduction reduction : {HeadReduction::kSum, HeadReduction::kSoftmax}) {
      for (const uint32_t group : {1U, 3U, 4U}) {
        const ScoreCase c{.index = {KvType::kInt4, 24, group, 200, 1},
                          .n_heads = 3,
                          .n_kv_heads = 1,
                          .head_dim = 8,
                          .reduction = reduction,
                          .n_pinned = 1,
                          .n_chosen = 50,
                          .tokens = {TokenAt(200 * group - 1, 0)}};
        SelfTestRun run(*device);
        ScoreInputs inputs(run, c);
        inputs.args.query = run.Floats(std::vector<float>(inputs.query.size(), std::nanf("")));
        run.Run([&](CommandList& list) { return list.ScoreAndSelect(inputs.args); });
        const auto chosen = Download<uint32_t>(run, inputs.args.chosen, 1 + c.n_chosen);
        ASSERT_EQ(chosen[0], c.n_chosen);
        EXPECT_LT(chosen.back(), 200U);
        EXPECT_TRUE(std::is_sorted(chosen.begin() + 1, chosen.end(), std::less_equal<>()));
      }
    }
  }
}

}  // namespace
}  // namespace kvrun::testing
