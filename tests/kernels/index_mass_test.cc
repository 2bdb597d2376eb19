// Groups that are chosen by the softmax mass of their entries, and as many as reach a share of it, against
// the scalar reference.
#include <algorithm>
#include <utility>
#include <vector>

#include "tests/support/index_reference.h"
#include "tests/support/operations_fixture.h"
#include "tests/support/score_cases.h"

namespace kvrun::testing {
namespace {

class IndexMassTest : public OperationsTest {};
// What takes another device than the CPU too long.
class HostIndexMassTest : public OperationsTest {};

INSTANTIATE_TEST_SUITE_P(Modes, IndexMassTest,
                         ::testing::ValuesIn(ModesOf(Operations::kIndex,
                                                     {DeviceMode::kPlanned, DeviceMode::kFloor,
                                                      DeviceMode::kGpu, DeviceMode::kGpuFloor})),
                         ModeName);

INSTANTIATE_TEST_SUITE_P(Modes, HostIndexMassTest, ::testing::ValuesIn(HostModes()), ModeName);

// Sums of entries, of a batch whose sequences have nothing, little and all to choose from: with every
// reduction that makes softmaxes, and heads that one dispatch has room for or not.
TEST_P(IndexMassTest, MassesOfGroups) {
  for (Device* device : devices_) {
    std::vector<uint32_t> groups = {1, 2, 3, 4, 16};
    if (IsHost(GetParam())) groups.insert(groups.end(), {8, 70, 300});  // the last are more than a tile
    for (const uint32_t group : groups) {
      for (const HeadReduction reduction : kReductions) {
        if (reduction == HeadReduction::kSum) continue;
        const bool is_many = group >= 2 && group <= 4;
        ScoreCase c{.index = {group == 2 ? KvType::kF16 : KvType::kInt4, 12, group, 43, 4},
                    .n_heads = is_many ? 20U : 6U,
                    .n_kv_heads = is_many ? 1U : 2U,
                    .head_dim = 16,
                    .reduction = reduction,
                    .window_tokens = 10,
                    .n_pinned = 2,
                    .n_chosen = 11,
                    .rule = ChooseByMass{},
                    .tokens = {}};
        for (const uint32_t position : {5U, 9U + group, 9U + 5 * group, 9U + 43 * group}) {
          c.tokens.push_back(TokenAt(position, static_cast<uint32_t>(3 - c.tokens.size())));
        }
        CheckScore(*device, c);
      }
    }
  }
}

// More rows than are added up together on Vulkan, of as many columns as a CPU's driver holds in registers.
TEST_P(IndexMassTest, ManyRowsOfManyColumns) {
  for (Device* device : devices_) {
    CheckScore(*device, {.index = {KvType::kInt4, 128, 4, 43, 2},
                         .n_heads = 72,
                         .n_kv_heads = 2,
                         .head_dim = 16,
                         .reduction = HeadReduction::kSoftmax,
                         .window_tokens = 10,
                         .n_pinned = 2,
                         .n_chosen = 11,
                         .rule = ChooseByMass{},
                         .tokens = {TokenAt(170, 1), TokenAt(77, 0)}});
  }
}

// A share of the mass ends the choice, or n_chosen does: of sequences with nothing, one group, a few and many
// to choose from.
TEST_P(IndexMassTest, AShareOfTheMass) {
  for (Device* device : devices_) {
    for (const uint32_t group : {1U, 4U, 16U}) {
      for (const HeadReduction reduction : kReductions) {
        if (reduction == HeadReduction::kSum) continue;
        for (const float share : {0.1F, 0.5F, 0.9F, 0.999F, 1.0F}) {
          for (const uint32_t n_chosen : {9U, 140U}) {
            const bool has_pinned = reduction != HeadReduction::kGqa;
            CheckScore(*device, {.index = {KvType::kInt4, 12, group, 140, 4},
                                 .n_heads = 6,
                                 .n_kv_heads = 2,
                                 .head_dim = 16,
                                 .reduction = reduction,
                                 .window_tokens = 10,
                                 .n_pinned = has_pinned ? 2U : 0U,
                                 .n_chosen = n_chosen,
                                 .rule = ChooseByMass{.mass_share = share},
                                 .tokens = {TokenAt(5, 3), TokenAt(9 + group, 2), TokenAt(9 + 5 * group, 1),
                                            TokenAt(9 + 140 * group, 0)}});
          }
        }
      }
    }
  }
}

// More groups than kernels keep in registers, of few entries that have most of the mass.
TEST_P(IndexMassTest, AShareOfTheMassOfALongContext) {
  for (Device* device : devices_) {
    for (const float share : {0.3F, 0.95F, 0.9999F}) {
      CheckScore(*device, {.index = {KvType::kInt4, 12, 1, 12000, 1},
                           .n_heads = 6,
                           .n_kv_heads = 2,
                           .head_dim = 16,
                           .reduction = HeadReduction::kPerKvHead,
                           .n_pinned = 4,
                           .n_chosen = 12000,
                           .rule = ChooseByMass{.mass_share = share},
                           .tokens = {TokenAt(11990, 0)}});
    }
  }
}

// What a step says is the most: the choice ends there, or with its mass before.
TEST_P(IndexMassTest, AStepMayAskForLess) {
  for (Device* device : devices_) {
    for (const uint32_t most_chosen : {5U, 60U, 900U}) {
      const ScoreCase c{.index = {KvType::kInt4, 12, 4, 140, 1},
                        .n_heads = 6,
                        .n_kv_heads = 2,
                        .head_dim = 16,
                        .reduction = HeadReduction::kPerKvHead,
                        .window_tokens = 10,
                        .n_pinned = 2,
                        .n_chosen = 130,
                        .rule = ChooseAndSample{.mass_share = 0.9F, .n_sampled = 10},
                        .most_chosen = most_chosen,
                        .tokens = {TokenAt(9 + 140 * 4, 0)}};
      SelfTestRun run(*device);
      const ScoreInputs inputs(run, c);
      run.Run([&](CommandList& list) { return list.ScoreAndSelect(inputs.args); });
      ExpectChoice(run, c, inputs);
    }
  }
}

TEST_P(HostIndexMassTest, ThreadsDoNotChangeAShareOfTheMass) {
  ScoreCase c{.index = {KvType::kInt4, 12, 4, 5000, 1},
              .n_heads = 4,
              .n_kv_heads = 2,
              .head_dim = 8,
              .window_tokens = 64,
              .n_pinned = 1,
              .n_chosen = 5000,
              .rule = ChooseByMass{.mass_share = 0.7F},
              .tokens = {TokenAt(19999 + 64, 0)}};
  for (const HeadReduction reduction : {HeadReduction::kSoftmax, HeadReduction::kPerKvHead}) {
    c.reduction = reduction;
    ExpectSameForAnyThreads(c);
  }
}

// Of groups of the same mass the lower are chosen, and as many as reach the share: with one row, that is a
// share of the groups.
TEST_P(IndexMassTest, TiesOfMasses) {
  for (Device* device : devices_) {
    for (const uint32_t distinct : {4U, 20U}) {
      for (const float share : {0.1F, 0.5F, 0.99F}) {
        for (const uint32_t n_chosen : {30U, 1000U}) {
          CheckScore(*device, {.index = {KvType::kInt8, 12, 4, 1000, 1},
                               .n_heads = 3,
                               .n_kv_heads = 1,
                               .head_dim = 8,
                               .n_pinned = 3,
                               .n_chosen = n_chosen,
                               .rule = ChooseByMass{.mass_share = share},
                               .distinct_rows = distinct,
                               .tokens = {TokenAt(3999, 0)}});
        }
      }
    }
  }
}

// Pinned groups that have the share already, or that are all there may be.
TEST_P(IndexMassTest, PinnedGroupsAreOfTheMass) {
  for (Device* device : devices_) {
    for (const auto& [n_pinned, n_chosen] : {std::pair{50U, 60U}, {7U, 7U}, {0U, 1U}, {99U, 100U}}) {
      for (const float share : {0.01F, 0.6F}) {
        CheckScore(*device, {.index = {KvType::kInt8, 12, 4, 100, 1},
                             .n_heads = 3,
                             .n_kv_heads = 1,
                             .head_dim = 8,
                             .n_pinned = n_pinned,
                             .n_chosen = n_chosen,
                             .rule = ChooseByMass{.mass_share = share},
                             .tokens = {TokenAt(399, 0)}});
      }
    }
  }
}

}  // namespace
}  // namespace kvrun::testing
