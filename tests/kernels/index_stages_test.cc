// Groups that are chosen in two stages: all of them by few products, then the best of those by all heads,
// against the scalar reference.
#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "tests/support/index_reference.h"
#include "tests/support/operations_fixture.h"
#include "tests/support/score_cases.h"

namespace kvrun::testing {
namespace {

constexpr KvType kIndexTypes[] = {KvType::kF16, KvType::kInt8, KvType::kInt4};

class IndexStagesTest : public OperationsTest {};
// What is the CPU's alone, or takes another device too long.
class HostIndexStagesTest : public RoundingOperationsTest {};

INSTANTIATE_TEST_SUITE_P(Modes, IndexStagesTest,
                         ::testing::ValuesIn(ModesOf(Operations::kIndex,
                                                     {DeviceMode::kPlanned, DeviceMode::kFloor,
                                                      DeviceMode::kGpu, DeviceMode::kGpuFloor})),
                         ModeName);

INSTANTIATE_TEST_SUITE_P(Modes, HostIndexStagesTest, ::testing::ValuesIn(HostModes()), ModeName);

ChoiceRule InStages(bool by_mass, const ScoreStages& stages) {
  if (by_mass) return ChooseByMass{.stages = stages};
  return ChooseByLargest{.stages = stages};
}

// Every type and reduction, in a batch whose sequences have nothing, fewer groups than candidates, as many,
// one more, and all.
TEST_P(IndexStagesTest, ChoosesForABatch) {
  for (Device* device : devices_) {
    uint32_t turn = 0;
    for (const KvType type : kIndexTypes) {
      for (const uint32_t rank : {24U, 12U, 33U}) {
        for (const HeadReduction reduction :
             {HeadReduction::kSum, HeadReduction::kSoftmax, HeadReduction::kGqa}) {
          // Each is kernels to compile: of every two of the three, each pair once.
          const bool is_one_of_three = (turn / 9 + turn / 3 + turn) % 3 == 0;
          ++turn;
          if (!IsHost(GetParam()) && !is_one_of_three) continue;
          const uint32_t group = std::array{4U, 1U, 3U}[turn % 3];
          ScoreCase c{.index = {type, rank, group, 85, 6},
                      .n_heads = 9,
                      .n_kv_heads = 3,
                      .head_dim = 16,
                      .reduction = reduction,
                      .window_tokens = 10,
                      .n_pinned = turn % 5,
                      .n_chosen = 11,
                      .norms = turn % 2 == 0,
                      .halves = turn % 3 == 0,
                      .rule = InStages(reduction != HeadReduction::kSum && turn % 2 != 0,
                                       {.n_candidates = 20,
                                        .first_columns = turn % 4 == 0   ? rank
                                                         : turn % 4 == 1 ? 8U
                                                                         : turn % 12 + 1}),
                      .tokens = {}};
          for (const uint32_t n_groups : {0U, 3U, 20U, 21U, 64U, 85U})
            c.tokens.push_back(TokenAt(9 + n_groups * group, static_cast<uint32_t>(5 - c.tokens.size())));
          CheckScore(*device, c);
        }
      }
    }
  }
}

// Groups of one row, two, three and four; candidates as many as are chosen, and nearly all.
TEST_P(IndexStagesTest, AnyNumberOfCandidates) {
  for (Device* device : devices_) {
    uint32_t turn = 0;
    for (const uint32_t group : {4U, 1U, 2U, 3U, 8U}) {
      const uint32_t n_groups = 1000;
      for (const uint32_t n_candidates : {30U, 31U, 335U, n_groups - 1}) {
        ++turn;
        CheckScore(*device, {.index = {kIndexTypes[turn % 3], 24, group, n_groups, 1},
                             .n_heads = 6,
                             .n_kv_heads = 2,
                             .head_dim = 16,
                             .reduction = HeadReduction::kSoftmax,
                             .window_tokens = 10,
                             .n_pinned = 2,
                             .n_chosen = 30,
                             .rule = InStages(turn % 4 < 2, {n_candidates, turn % 2 == 0 ? 8U : 24U}),
                             .tokens = {TokenAt(9 + (n_groups - turn % 3) * group, 0)}});
      }
    }
  }
}

// A share of the candidates' mass ends the choice, or a step that asks for less does.
TEST_P(IndexStagesTest, AShareOfTheMass) {
  for (Device* device : devices_) {
    for (const HeadReduction reduction : {HeadReduction::kSoftmax, HeadReduction::kGqa}) {
      for (const float share : {0.1F, 0.5F, 0.9F, 1.0F}) {
        for (const uint32_t most : {0U, 7U}) {
          CheckScore(*device, {.index = {KvType::kInt4, 24, 4, 300, 2},
                               .n_heads = 6,
                               .n_kv_heads = 2,
                               .head_dim = 16,
                               .reduction = reduction,
                               .window_tokens = 10,
                               .n_pinned = 2,
                               .n_chosen = 60,
                               .rule = ChooseByMass{.mass_share = share, .stages = ScoreStages{124, 8}},
                               .most_chosen = most,
                               .tokens = {TokenAt(1209, 0), TokenAt(700, 1)}});
        }
      }
    }
  }
}

// Few different scores: the lower groups of the candidates are chosen.
TEST_P(IndexStagesTest, Ties) {
  for (Device* device : devices_) {
    for (const uint32_t distinct : {1U, 20U}) {
      for (const uint32_t n_chosen : {2U, 100U, 390U}) {
        CheckScore(*device, {.index = {KvType::kInt8, 12, 4, 1000, 1},
                             .n_heads = 3,
                             .n_kv_heads = 1,
                             .head_dim = 8,
                             .reduction = HeadReduction::kSum,
                             .n_pinned = std::min(n_chosen, 3U),
                             .n_chosen = n_chosen,
                             .rule = ChooseByLargest{.stages = ScoreStages{400, 4}},
                             .distinct_rows = distinct,
                             .tokens = {TokenAt(3999, 0)}});
      }
    }
  }
}

// Shapes of models, with more heads and columns than the others here.
TEST_P(IndexStagesTest, ShapesOfModels) {
  struct Shape {
    uint32_t n_heads;
    uint32_t n_kv_heads;
    uint32_t head_dim;
    uint32_t rank;
  };
  for (Device* device : devices_) {
    for (const Shape& shape : {Shape{32, 8, 64, 64}, {24, 8, 128, 128}, {16, 8, 128, 24}, {14, 2, 64, 101}}) {
      CheckScore(*device, {.index = {KvType::kInt4, shape.rank, 4, 700, 2},
                           .n_heads = shape.n_heads,
                           .n_kv_heads = shape.n_kv_heads,
                           .head_dim = shape.head_dim,
                           .reduction = HeadReduction::kSoftmax,
                           .window_tokens = 64,
                           .n_pinned = 1,
                           .n_chosen = 64,
                           .rule = ChooseByMass{.stages = ScoreStages{200, std::min(shape.rank, 32U)}},
                           .tokens = {TokenAt(2863, 1), TokenAt(1234, 0)}});
    }
  }
}

// Spans are the same for any number of threads, in both stages.
TEST_P(HostIndexStagesTest, ThreadsDoNotChangeAChoice) {
  ScoreCase c{.index = {KvType::kInt4, 24, 4, 5000, 1},
              .n_heads = 4,
              .n_kv_heads = 2,
              .head_dim = 16,
              .window_tokens = 64,
              .n_pinned = 1,
              .n_chosen = 400,
              .rule = ChooseByMass{.stages = ScoreStages{1200, 8}},
              .tokens = {TokenAt(19999 + 64, 0)}};
  for (const HeadReduction reduction : {HeadReduction::kSoftmax, HeadReduction::kGqa}) {
    c.reduction = reduction;
    ExpectSameForAnyThreads(c);
  }
}

// Numbers that are none choose what can be read.
TEST_P(HostIndexStagesTest, AQueryOfNaNsChoosesGroupsThatAreThere) {
  for (Device* device : devices_) {
    for (const HeadReduction reduction : {HeadReduction::kSum, HeadReduction::kSoftmax}) {
      const ScoreCase c{.index = {KvType::kInt4, 24, 4, 200, 1},
                        .n_heads = 3,
                        .n_kv_heads = 1,
                        .head_dim = 8,
                        .reduction = reduction,
                        .n_pinned = 1,
                        .n_chosen = 50,
                        .rule = ChooseByLargest{.stages = ScoreStages{80, 12}},
                        .tokens = {TokenAt(799, 0)}};
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

}  // namespace
}  // namespace kvrun::testing
