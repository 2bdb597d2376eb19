// Scoring and choosing groups by an index, against the scalar reference.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "shaders/shared/index_params.h"
#include "tests/support/index_reference.h"
#include "tests/support/operations_fixture.h"
#include "tests/support/score_cases.h"

namespace kvrun::testing {
namespace {

constexpr KvType kIndexTypes[] = {KvType::kF16, KvType::kInt8, KvType::kInt4};
constexpr uint32_t kRanks[] = {1, 6, 12, 24, 33};
constexpr uint32_t kGroups[] = {1, 3, 4, 8, 16};
// Of the CPU; the last are more than a tile.
constexpr uint32_t kHostGroups[] = {1, 3, 4, 8, 16, 2, 70, 300};

class IndexTest : public OperationsTest {
 protected:
  static std::span<const uint32_t> Groups() {
    return IsHost(GetParam()) ? std::span<const uint32_t>(kHostGroups) : std::span<const uint32_t>(kGroups);
  }
};
class ProjectedIndexTest : public OperationsTest {};

INSTANTIATE_TEST_SUITE_P(Modes, IndexTest,
                         ::testing::ValuesIn(ModesOf(Operations::kIndex,
                                                     {DeviceMode::kPlanned, DeviceMode::kFloor,
                                                      DeviceMode::kGpu, DeviceMode::kGpuFloor})),
                         ModeName);

INSTANTIATE_TEST_SUITE_P(Modes, ProjectedIndexTest,
                         ::testing::Values(DeviceMode::kPlanned, DeviceMode::kNoTexels), ModeName);

// Every type, rank, group and reduction, in a batch whose sequences have nothing, little and all to choose
// from.
TEST_P(IndexTest, ChoosesForABatch) {
  for (Device* device : devices_) {
    uint32_t turn = 0;
    for (const KvType type : kIndexTypes) {
      for (const uint32_t rank : kRanks) {
        const uint32_t group = Groups()[turn++ % 5];
        const uint32_t room = 43 * group;
        for (const HeadReduction reduction : kReductions) {
          ScoreCase c{.index = {type, rank, group, 43, 4},
                      .n_heads = 9,
                      .n_kv_heads = 3,
                      .head_dim = 16,
                      .reduction = reduction,
                      .window_tokens = 10,
                      .n_pinned = 2,
                      .n_chosen = 11,
                      .norms = turn % 2 == 0,
                      .halves = turn % 3 == 0,
                      .tokens = {}};
          for (const uint32_t position : {5U, 9U + group, 9U + 5 * group, 9U + room}) {
            c.tokens.push_back(TokenAt(position, static_cast<uint32_t>(3 - c.tokens.size())));
          }
          CheckScore(*device, c);
        }
      }
    }
  }
}

TEST_P(IndexTest, GroupsOfEverySize) {
  for (Device* device : devices_) {
    for (const uint32_t group : Groups()) {
      ScoreCase c{.index = {KvType::kInt4, 24, group, 70, 2},
                  .n_heads = 4,
                  .n_kv_heads = 2,
                  .head_dim = 8,
                  .n_pinned = 1,
                  .n_chosen = 20,
                  .tokens = {TokenAt(69 * group, 1), TokenAt(31 * group + 1, 0)}};
      for (const uint32_t rank : {24U, 13U}) {
        if (rank == 13 && !IsHost(GetParam())) continue;  // another kernel to compile
        c.index.rank = rank;
        for (const HeadReduction reduction : {HeadReduction::kSum, HeadReduction::kSoftmax}) {
          c.reduction = reduction;
          CheckScore(*device, c);
        }
      }
    }
  }
}

// A CPU's driver projects in the kernel that scores: with every variant of it, up to as wide heads and as
// many columns as it has memory for, and where heads of a KV head are not whole tiles.
TEST_P(ProjectedIndexTest, UpToItsLimits) {
  struct Shape {
    uint32_t rank;
    uint32_t n_heads;
    uint32_t n_kv_heads;
    uint32_t head_dim;
    QueryForm form;
  };
  constexpr Shape kShapes[] = {
      {24, 9, 3, 64, QueryForm::kProjected},
      {50, 14, 2, KVRUN_MAX_PROJECTED_HEAD_DIM, QueryForm::kAffine},
      {64, 32, 8, 20, QueryForm::kProjected},
      {101, 14, 2, 64, QueryForm::kProjected},
      {KVRUN_SHARED_INDEX_RANK, 4, 1, KVRUN_MAX_PROJECTED_HEAD_DIM, QueryForm::kAffine}};
  for (Device* device : devices_) {
    uint32_t turn = 0;
    for (const KvType type : kIndexTypes) {
      for (const Shape& shape : kShapes) {
        for (const HeadReduction reduction :
             {HeadReduction::kSoftmax, HeadReduction::kGqa, HeadReduction::kPerKvHead}) {
          ++turn;
          if (reduction != HeadReduction::kSoftmax && turn % 3 != 0) continue;  // each is kernels to compile
          CheckScore(*device, {.index = {type, shape.rank, 4, 43, 2},
                               .n_heads = shape.n_heads,
                               .n_kv_heads = shape.n_kv_heads,
                               .head_dim = shape.head_dim,
                               .reduction = reduction,
                               .window_tokens = 10,
                               .n_pinned = 2,
                               .n_chosen = 11,
                               .norms = turn % 2 == 0,
                               .halves = turn % 4 < 2,
                               .rotates_all = true,
                               .query_form = shape.form,
                               .tokens = {TokenAt(170, 1), TokenAt(77, 0)}});
        }
      }
    }
  }
}

// Rows that stand for a whole group, whatever tokens it has; rows that fill words, and rows that share them.
TEST_P(IndexTest, RowsOfWholeGroups) {
  for (Device* device : devices_) {
    uint32_t turn = 0;
    for (const KvType type : kIndexTypes) {
      for (const uint32_t rows : {1U, 2U}) {
        for (const HeadReduction reduction : kReductions) {
          const uint32_t group = std::array{1U, 4U, 16U, 64U}[(turn++ + rows) % 4];
          // Each pair is a kernel to compile.
          const HeadReduction one = type == KvType::kF16 ? HeadReduction::kSoftmax : HeadReduction::kSum;
          if (!IsHost(GetParam()) && type != KvType::kInt4 && reduction != one) continue;
          ScoreCase c{.index = {type, type == KvType::kInt8 ? 13U : 24U, group, 101, 4, rows},
                      .n_heads = 9,
                      .n_kv_heads = 3,
                      .head_dim = 16,
                      .reduction = reduction,
                      .window_tokens = 10,
                      .n_pinned = 2,
                      .n_chosen = 11,
                      .norms = turn % 2 == 0,
                      .tokens = {}};
          for (const uint32_t position : {5U, 9U + group, 9U + 50 * group, 9U + 101 * group}) {
            c.tokens.push_back(TokenAt(position, static_cast<uint32_t>(3 - c.tokens.size())));
          }
          CheckScore(*device, c);
          // As many rows as tokens, which can be said in two ways.
          c.index.group_tokens = rows;
          c.tokens = {TokenAt(90, 2)};
          CheckScore(*device, c);
        }
      }
    }
  }
}

// Bounds of pages, as Quest has them: of few heads, and with more columns than shared memory has room for.
TEST_P(IndexTest, SignedQueries) {
  struct Heads {
    uint32_t n_heads;
    uint32_t n_kv_heads;
    uint32_t head_dim;
    KvType type;  // elsewhere than on the CPU
  };
  for (Device* device : devices_) {
    uint32_t turn = 0;
    for (const KvType type : kIndexTypes) {
      for (const Heads& heads :
           {Heads{9, 3, 12, KvType::kInt8}, {2, 1, 10, KvType::kF16}, {3, 3, 64, KvType::kInt4}}) {
        const uint32_t group = std::array{1U, 4U, 16U, 64U}[turn % 4];
        ++turn;
        for (const HeadReduction reduction : kReductions) {
          const uint32_t rank = 2 * heads.n_kv_heads * heads.head_dim;
          const bool is_wide = rank > KVRUN_SHARED_INDEX_RANK && reduction == HeadReduction::kSoftmax;
          if (!IsHost(GetParam()) && type != heads.type && !is_wide) continue;
          ScoreCase c{.index = {type, rank, group, 47, 3, 1 + turn % 2},
                      .n_heads = heads.n_heads,
                      .n_kv_heads = heads.n_kv_heads,
                      .head_dim = heads.head_dim,
                      .reduction = reduction,
                      .window_tokens = 5,
                      .n_pinned = 1,
                      .n_chosen = 9,
                      .norms = turn % 2 == 0,
                      .halves = turn % 3 == 0,
                      .query_form = QueryForm::kSigned,
                      .tokens = {}};
          for (const uint32_t position : {5U, 5 + 20 * group, 4 + 47 * group}) {
            c.tokens.push_back(TokenAt(position, static_cast<uint32_t>(2 - c.tokens.size())));
          }
          CheckScore(*device, c);
        }
      }
    }
  }
}

// A row more of query_side, added to the projections of heads or once to their sum: ranks that are whole
// vectors and others, more than are shared on Vulkan; heads of a KV head more than a tile's rows or fewer.
TEST_P(IndexTest, AffineQueries) {
  struct Heads {
    uint32_t n_heads;
    uint32_t n_kv_heads;
    uint32_t head_dim;
  };
  for (Device* device : devices_) {
    uint32_t turn = 0;
    for (const Heads& heads : {Heads{9, 3, 64}, {6, 1, 10}, {2, 2, 48}}) {
      for (const uint32_t rank : {20U, 13U, 260U}) {
        for (const HeadReduction reduction : kReductions) {
          if (reduction == HeadReduction::kGqa) continue;
          // Elsewhere than on the CPU each type and rank is a kernel to compile.
          const bool is_host = IsHost(GetParam());
          const KvType type = is_host ? kIndexTypes[turn % std::size(kIndexTypes)]
                                      : (rank == 13 ? KvType::kF16 : KvType::kInt8);
          if (!is_host && rank == 260 && reduction != HeadReduction::kSum) continue;
          ++turn;
          CheckScore(*device, {.index = {type, rank, 4, 47, 3},
                               .n_heads = heads.n_heads,
                               .n_kv_heads = heads.n_kv_heads,
                               .head_dim = heads.head_dim,
                               .reduction = reduction,
                               .window_tokens = 5,
                               .n_pinned = 1,
                               .n_chosen = 9,
                               .norms = turn % 2 == 0,
                               .halves = turn % 3 == 0,
                               .query_form = QueryForm::kAffine,
                               .tokens = {TokenAt(150, 1), TokenAt(4, 0), TokenAt(190, 2)}});
        }
      }
    }
  }
}

// A column of ones takes a constant times sqrt(head_dim) into each entry's score.
TEST_P(IndexTest, AConstantInAScore) {
  constexpr uint32_t kHeadDim = 16;
  constexpr uint32_t kRank = 4;
  constexpr uint32_t kGroups = 40;
  constexpr float kConstant = 3.0F;
  for (Device* device : devices_) {
    const ScoreCase c{.index = {KvType::kF16, kRank, 1, kGroups, 1},
                      .n_heads = 4,
                      .n_kv_heads = 2,
                      .head_dim = kHeadDim,
                      .reduction = HeadReduction::kSum,
                      .n_chosen = 1,
                      .query_form = QueryForm::kAffine,
                      .tokens = {TokenAt(kGroups - 1, 0)}};
    SelfTestRun run(*device);
    ScoreInputs inputs(run, c);
    for (size_t i = 0; i < inputs.query_side.size(); ++i) {
      const bool is_last = i + kRank >= inputs.query_side.size();
      if (i % kRank == 3 || is_last) inputs.query_side[i] = 0.0F;
    }
    inputs.query_side.back() = kConstant * std::sqrt(static_cast<float>(kHeadDim));
    inputs.scales.assign(kRank, 1.0F);
    // The reference looks at the same vectors.
    inputs.args.sides.query_side = run.Floats(inputs.query_side);
    inputs.args.sides.scales = run.Floats(inputs.scales);
    const double with_constant = ScoreGroupsReference(inputs.reference)[0].scores[7];
    inputs.query_side.back() = 0.0F;
    const double without = ScoreGroupsReference(inputs.reference)[0].scores[7];
    inputs.query_side.back() = kConstant * std::sqrt(static_cast<float>(kHeadDim));
    EXPECT_NEAR(with_constant - without, kConstant * IndexValue(inputs.index, c.index, 0, 7, 3), 1e-6);
    run.Run([&](CommandList& list) { return list.ScoreAndSelect(inputs.args); });
    ExpectChoice(run, c, inputs);
  }
}

// Few heads, heads that are not a multiple of a tile's, and more than fit into one dispatch.
TEST_P(IndexTest, HeadsOfEveryModel) {
  struct Heads {
    uint32_t n_heads;
    uint32_t n_kv_heads;
    uint32_t head_dim;
  };
  for (Device* device : devices_) {
    for (const Heads& heads :
         {Heads{1, 1, 64}, {2, 2, 10}, {14, 2, 64}, {32, 8, 80}, {20, 1, 256}, {5, 5, 48}}) {
      for (const HeadReduction reduction : kReductions) {
        CheckScore(*device, {.index = {KvType::kInt4, 24, 4, 130, 1},
                             .n_heads = heads.n_heads,
                             .n_kv_heads = heads.n_kv_heads,
                             .head_dim = heads.head_dim,
                             .reduction = reduction,
                             .window_tokens = 3,
                             .n_chosen = 17,
                             .norms = true,
                             .tokens = {TokenAt(500, 0)}});
      }
    }
  }
}

TEST_P(IndexTest, LongContexts) {
  for (Device* device : devices_) {
    ScoreCase c{.index = {KvType::kInt4, 6, 1, 32768, 1},
                .n_heads = 3,
                .n_kv_heads = 1,
                .head_dim = 8,
                .reduction = HeadReduction::kSum,
                .window_tokens = 64,
                .n_pinned = 4,
                .n_chosen = 400,
                .tokens = {TokenAt(32767 + 64, 0)}};
    CheckScore(*device, c);
    c.n_chosen = 20000;
    CheckScore(*device, c);
    c.tokens = {TokenAt(20000, 0)};  // fewer than there is room for
    CheckScore(*device, c);
    c.index = {KvType::kInt4, 24, 1, 8192, 1};
    c.reduction = HeadReduction::kSoftmax;
    c.tokens = {TokenAt(8191, 0)};
    c.n_chosen = 100;
    CheckScore(*device, c);
  }
}

// Few different scores: the lowest groups of those that tie are chosen.
TEST_P(IndexTest, Ties) {
  for (Device* device : devices_) {
    for (const HeadReduction reduction : {HeadReduction::kSum, HeadReduction::kSoftmax}) {
      for (const uint32_t distinct : {1U, 20U}) {
        for (const uint32_t n_chosen : {1U, 2U, 100U, 777U, 1000U}) {
          CheckScore(*device, {.index = {KvType::kInt8, 12, 4, 1000, 1},
                               .n_heads = 3,
                               .n_kv_heads = 1,
                               .head_dim = 8,
                               .reduction = reduction,
                               .n_pinned = std::min(n_chosen, 3U),
                               .n_chosen = n_chosen,
                               .distinct_rows = distinct,
                               .tokens = {TokenAt(3999, 0)}});
        }
      }
    }
  }
}

TEST_P(IndexTest, PinnedGroupsAreTheChoiceWhereTheyAreAsMany) {
  for (Device* device : devices_) {
    for (const auto& [n_pinned, position] : {std::pair{7U, 399U}, {7U, 19U}, {0U, 399U}}) {
      CheckScore(*device, {.index = {KvType::kInt8, 12, 4, 100, 1},
                           .n_heads = 3,
                           .n_kv_heads = 1,
                           .head_dim = 8,
                           .reduction = HeadReduction::kSum,
                           .n_pinned = n_pinned,
                           .n_chosen = 7,
                           .tokens = {TokenAt(position, 0)}});
    }
  }
}

// Positions, queries and how many a choice may have are data: the list that was recorded once chooses as one
// that is recorded for them.
TEST_P(IndexTest, ARecordedListServesEveryPosition) {
  ScoreCase c{.index = {KvType::kInt4, 24, 4, 300, 2},
              .n_heads = 9,
              .n_kv_heads = 3,
              .head_dim = 64,
              .window_tokens = 16,
              .n_pinned = 1,
              .n_chosen = 25,
              .tokens = {TokenAt(1215, 0), TokenAt(1215, 1)}};
  for (Device* device : devices_) {
    SelfTestRun run(*device);
    ScoreInputs inputs(run, c);
    const size_t chosen_words = c.n_lists() * (1 + c.n_chosen) + kBeyond;
    auto step = device->CreateBuffer(sizeof(StepParams), BufferUse::kUpload, "test");
    auto query = device->CreateBuffer(inputs.query.size() * sizeof(float), BufferUse::kUpload, "test");
    auto chosen = device->CreateBuffer(chosen_words * sizeof(uint32_t), BufferUse::kShared, "test");
    ASSERT_TRUE(step.ok() && query.ok() && chosen.ok());
    inputs.args.attention.step = step->get();
    inputs.args.query = query->get();
    inputs.args.chosen = chosen->get();
    auto list = device->CreateCommandList();
    ASSERT_TRUE(list.ok());
    ASSERT_TRUE((*list)->ScoreAndSelect(inputs.args).ok());
    ASSERT_TRUE((*list)->Finish().ok());
    for (const uint32_t position : {1215U, 3U, 40U, 1000U}) {
      c.tokens = {TokenAt(position, 1), TokenAt(1215 - position, 0)};
      inputs.reference.attention.tokens = c.tokens;
      auto* params = reinterpret_cast<StepParams*>((*step)->host().data());
      std::copy(c.tokens.begin(), c.tokens.end(), params->tokens);
      params->most_chosen = c.most_chosen = position == 40 ? 100 : position % 14;  // 11, 3, none, 6
      std::memcpy((*query)->host().data(), inputs.query.data(), inputs.query.size() * sizeof(float));
      const std::vector<uint32_t> poison(chosen_words, kPoison);
      std::memcpy((*chosen)->host().data(), poison.data(), chosen_words * sizeof(uint32_t));
      ASSERT_TRUE((*chosen)->Flush(0, (*chosen)->size_bytes()).ok());
      auto value = device->Submit(**list);
      ASSERT_TRUE(value.ok()) << value.status().message();
      ASSERT_TRUE(device->Wait(*value).ok());
      ExpectChoice(run, c, inputs);
    }
  }
}

}  // namespace
}  // namespace kvrun::testing
