// Scoring and choosing groups by an index on the CPU device, against the scalar reference: the cases of
// tests/kernels/index_test.cc.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "runtime/device/host/score.h"
#include "shaders/shared/index_params.h"
#include "tests/support/host_operation_run.h"
#include "tests/support/index_reference.h"

namespace kvrun::testing {
namespace {

constexpr KvType kIndexTypes[] = {KvType::kF16, KvType::kInt8, KvType::kInt4};
constexpr uint32_t kRanks[] = {1, 6, 12, 24, 33};
constexpr uint32_t kGroups[] = {1, 3, 4, 8, 16, 2, 70, 300};  // the last are more than a tile
constexpr HeadReduction kReductions[] = {HeadReduction::kSum, HeadReduction::kSoftmax, HeadReduction::kGqa,
                                         HeadReduction::kPerKvHead};

StepToken TokenAt(uint32_t position, uint32_t sequence) {
  return {.id = 0, .position = position, .sequence = sequence, .output_row = 0};
}

struct ScoreCase {
  IndexShape index;
  uint32_t n_heads = 0;
  uint32_t n_kv_heads = 0;
  uint32_t head_dim = 0;
  HeadReduction reduction = HeadReduction::kSoftmax;
  uint32_t window_tokens = 0;
  uint32_t n_pinned = 0;
  uint32_t n_chosen = 0;
  bool norms = false;
  bool halves = false;
  uint32_t distinct_rows = 0;  // entries repeat after so many; 0: they do not
  std::vector<StepToken> tokens;

  uint32_t rotary_dim() const { return head_dim / 4 * 2; }
  size_t n_lists() const { return tokens.size() * (reduction == HeadReduction::kPerKvHead ? n_kv_heads : 1); }
};

std::string Describe(const ScoreCase& c) {
  return std::to_string(KvElementBits(c.index.type)) + " bits, rank " + std::to_string(c.index.rank) +
         ", groups of " + std::to_string(c.index.group_tokens) + ", " + std::to_string(c.n_heads) + "/" +
         std::to_string(c.n_kv_heads) + " heads of " + std::to_string(c.head_dim) + ", reduction " +
         std::to_string(static_cast<int>(c.reduction)) + ", " + std::to_string(c.n_chosen) + " of " +
         std::to_string(c.index.n_groups) + ", " + std::to_string(c.tokens.size()) + " tokens from " +
         std::to_string(c.tokens[0].position);
}

float LargestCode(KvType type) { return static_cast<float>((1U << (KvElementBits(type) - 1)) - 1); }

// Random rows; NaNs where an f16 index has room but no entry that can be chosen: they may be read, not used.
std::vector<uint32_t> RandomIndex(const ScoreCase& c) {
  const IndexShape& shape = c.index;
  std::vector<uint32_t> choosable(shape.n_sequences);
  for (const StepToken& token : c.tokens) {
    choosable[token.sequence] =
        std::max(choosable[token.sequence],
                 ChoosableEntriesReference(token.position, c.window_tokens, shape.group_tokens));
  }
  const size_t per_group = size_t{shape.group_tokens} * shape.rank;
  const std::vector<float> values = HostRandomFloats(shape.n_sequences * shape.n_groups * per_group, 21);
  const uint32_t bits = KvElementBits(shape.type);
  std::vector<uint32_t> index(shape.size_bytes() / sizeof(uint32_t));
  for (size_t i = 0; i < values.size(); ++i) {
    const size_t group = i / per_group;
    const size_t entry = i / shape.rank % (size_t{shape.n_groups} * shape.group_tokens);
    const size_t like = c.distinct_rows != 0 ? entry % c.distinct_rows * shape.rank + i % shape.rank : i;
    auto code = static_cast<uint32_t>(std::lround(values[like] * LargestCode(shape.type)));
    if (shape.type == KvType::kF16) code = FloatToHalf(values[like]);
    if (shape.type == KvType::kF16 && entry >= choosable[group / shape.n_groups]) code = 0x7fff;
    const size_t bit = i % per_group * bits;
    index[group * shape.group_words() + bit / 32] |= (code & ((1U << bits) - 1)) << (bit % 32);
  }
  return index;
}

// Inputs of a case, for the reference and for the device.
struct ScoreInputs {
  ScoreInputs(HostOperationRun& run, const ScoreCase& c)
      : query(HostRandomFloats(c.tokens.size() * c.n_heads * c.head_dim, 22)),
        angles(HostRandomFloats(c.tokens.size() * c.rotary_dim(), 23)),
        norms(HostRandomFloats(size_t{2} * c.head_dim, 24)),
        query_side(HostRandomFloats(size_t{c.n_kv_heads} * c.head_dim * c.index.rank, 25)),
        scales(HostRandomFloats(size_t{c.index.n_sequences} * c.index.rank, 26)),
        index(RandomIndex(c)) {
    // Softmaxes then range over some powers of e.
    const float largest = c.index.type == KvType::kF16 ? 1.0F : LargestCode(c.index.type);
    const float factor = 8.0F / largest / std::sqrt(static_cast<float>(c.index.rank));
    for (float& scale : scales) scale = (1.5F + scale) * factor;
    reference = {.attention = {.tokens = c.tokens,
                               .kv_shape = {.n_kv_heads = c.n_kv_heads, .head_dim = c.head_dim},
                               .n_heads = c.n_heads,
                               .angles = angles,
                               .norms = c.norms ? std::span<const float>(norms) : std::span<const float>{},
                               .norm_epsilon = 1e-5F,
                               .rotary_dim = c.rotary_dim(),
                               .rope_halves = c.halves},
                 .query = query,
                 .query_side = query_side,
                 .scales = scales,
                 .index = index,
                 .shape = c.index,
                 .reduction = c.reduction,
                 .window_tokens = c.window_tokens};
    args = {.query = run.Output(query),
            .attention = {.step = run.Step(c.tokens),
                          .kv_shape = reference.attention.kv_shape,
                          .n_heads = c.n_heads,
                          .n_tokens = static_cast<uint32_t>(c.tokens.size()),
                          .angles = run.Values(angles),
                          .norms = c.norms ? run.Values(norms) : nullptr,
                          .norm_epsilon = 1e-5F,
                          .rotary_dim = c.rotary_dim(),
                          .rope_halves = c.halves},
            .sides = {.query_side = run.Values(query_side), .scales = run.Values(scales)},
            .index = run.Values(index),
            .index_shape = c.index,
            .reduction = c.reduction,
            .window_tokens = c.window_tokens,
            .n_pinned = c.n_pinned,
            .n_chosen = c.n_chosen,
            .scratch = nullptr,
            .chosen = run.Poisoned(c.n_lists() * (1 + c.n_chosen))};
    scratch_words = run.device().ScoreScratchBytes(args) / sizeof(uint32_t);
    args.scratch = run.Poisoned(scratch_words);
  }

  std::vector<float> query;
  std::vector<float> angles;
  std::vector<float> norms;
  std::vector<float> query_side;
  std::vector<float> scales;
  std::vector<uint32_t> index;
  ScoreReferenceArgs reference;
  ScoreArgs args;
  size_t scratch_words = 0;
};

// A product's error: roundings of the query's norm and rotation, of the sums over dimensions, heads and
// columns, and of the factors between, all of the sum of magnitudes. A softmax makes it relative, twice (of
// the score, and of the sum). To that come powers of 2, good to 2 units in the last place and of a rounded
// difference of at most 128, in both; and the roundings of the sum over entries.
double ScoreTolerance(const ScoreCase& c, double magnitude, double score) {
  const double product = (3.0 * c.head_dim + c.n_heads + c.index.rank + 64) * kHostRoundoff * magnitude;
  if (c.reduction == HeadReduction::kSum) return product;
  const double exponential = 2 * kHostRoundoff * (4 + 128);
  const double sums = (1.0 * c.index.n_groups * c.index.group_tokens + c.n_heads + 16) * kHostRoundoff;
  return score * (2 * product + exponential + sums);
}

// The query, normalised and rotated.
void ExpectRotated(HostOperationRun& run, const ScoreCase& c, const ScoreInputs& inputs) {
  AttentionReferenceArgs attention = inputs.reference.attention;
  attention.kv_shape.n_kv_heads = 0;
  std::vector<double> expected(inputs.query.begin(), inputs.query.end());
  RopeAndStoreReference(attention, expected, {});
  double largest = 1.0;
  for (const double value : expected) largest = std::max(largest, std::abs(value));
  const std::vector<double> tolerance = {(c.head_dim + 24) * kHostRoundoff * 2 * largest};
  EXPECT_TRUE(AreClose(run.Read<float>(inputs.args.query, expected.size()), expected, tolerance))
      << Describe(c);
  EXPECT_TRUE(run.IsUntouched(inputs.args.query, expected.size())) << Describe(c);
}

// The groups' scores as the reference has them, and the choice as it follows from the scores that were found.
void ExpectChoice(HostOperationRun& run, const ScoreCase& c, const ScoreInputs& inputs) {
  const host::ScoreLayout layout = host::LayOutScores(inputs.args);
  const auto scratch = run.Read<float>(inputs.args.scratch, inputs.scratch_words);
  const auto chosen = run.Read<uint32_t>(inputs.args.chosen, c.n_lists() * (1 + c.n_chosen));
  const std::vector<GroupScores> expected = ScoreGroupsReference(inputs.reference);
  ASSERT_EQ(expected.size(), c.n_lists());
  for (size_t list = 0; list < expected.size(); ++list) {
    const std::span<const float> scores = std::span(scratch).subspan(
        layout.scores_begin + list * c.index.n_groups, expected[list].scores.size());
    for (size_t g = 0; g < scores.size(); ++g) {
      const double score = expected[list].scores[g];
      ASSERT_NEAR(scores[g], score, ScoreTolerance(c, expected[list].magnitude, score))
          << "group " << g << " of list " << list << ": " << Describe(c);
    }
    const std::vector<uint32_t> groups = SelectGroupsReference(scores, c.n_pinned, c.n_chosen);
    const auto found = std::span(chosen).subspan(list * (1 + c.n_chosen), 1 + c.n_chosen);
    ASSERT_EQ(found[0], groups.size()) << "list " << list << ": " << Describe(c);
    EXPECT_TRUE(std::equal(groups.begin(), groups.end(), found.begin() + 1))
        << "list " << list << ": " << Describe(c);
    for (const uint32_t word : found.subspan(1 + groups.size())) ASSERT_EQ(word, kHostPoison) << Describe(c);
  }
  EXPECT_TRUE(run.IsUntouched(inputs.args.chosen, chosen.size())) << Describe(c);
  EXPECT_TRUE(run.IsUntouched(inputs.args.scratch, scratch.size())) << Describe(c);
}

void CheckScore(host::HostDevice& device, const ScoreCase& c) {
  HostOperationRun run(device);
  const ScoreInputs inputs(run, c);
  run.Run([&](CommandList& list) { return list.ScoreAndSelect(inputs.args); });
  ExpectRotated(run, c, inputs);
  ExpectChoice(run, c, inputs);
}

// Every type, rank, group and reduction, in a batch whose sequences have nothing, little and all to choose
// from.
TEST(HostIndexTest, ChoosesForABatch) {
  OnEveryHostTarget([](host::HostDevice& device) {
    uint32_t turn = 0;
    for (const KvType type : kIndexTypes) {
      for (const uint32_t rank : kRanks) {
        const uint32_t group = kGroups[turn++ % 5];
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
          CheckScore(device, c);
        }
      }
    }
  });
}

TEST(HostIndexTest, GroupsOfEverySize) {
  OnEveryHostTarget([](host::HostDevice& device) {
    for (const uint32_t group : kGroups) {
      for (const uint32_t rank : {24U, 13U}) {
        ScoreCase c{.index = {KvType::kInt4, rank, group, 70, 2},
                    .n_heads = 4,
                    .n_kv_heads = 2,
                    .head_dim = 8,
                    .n_pinned = 1,
                    .n_chosen = 20,
                    .tokens = {TokenAt(69 * group, 1), TokenAt(31 * group + 1, 0)}};
        for (const HeadReduction reduction : {HeadReduction::kSum, HeadReduction::kSoftmax}) {
          c.reduction = reduction;
          CheckScore(device, c);
        }
      }
    }
  });
}

TEST(HostIndexTest, TheLargestRank) {
  OnEveryHostTarget([](host::HostDevice& device) {
    for (const KvType type : kIndexTypes) {
      CheckScore(device, {.index = {type, KVRUN_MAX_INDEX_RANK, 4, 60, 1},
                          .n_heads = 4,
                          .n_kv_heads = 2,
                          .head_dim = 64,
                          .n_pinned = 1,
                          .n_chosen = 20,
                          .tokens = {TokenAt(239, 0)}});
    }
  });
}

// Few heads, many, and heads that are not a multiple of a tile's.
TEST(HostIndexTest, HeadsOfEveryModel) {
  struct Heads {
    uint32_t n_heads;
    uint32_t n_kv_heads;
    uint32_t head_dim;
  };
  OnEveryHostTarget([](host::HostDevice& device) {
    for (const Heads& heads :
         {Heads{1, 1, 64}, {2, 2, 10}, {14, 2, 64}, {32, 8, 80}, {20, 1, 256}, {5, 5, 48}}) {
      for (const HeadReduction reduction : kReductions) {
        CheckScore(device, {.index = {KvType::kInt4, 24, 4, 130, 1},
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
  });
}

// The last has more weights than a worker keeps of any processor.
TEST(HostIndexTest, LongContexts) {
  OnEveryHostTarget([](host::HostDevice& device) {
    ScoreCase c{.index = {KvType::kInt4, 6, 1, 32768, 1},
                .n_heads = 3,
                .n_kv_heads = 1,
                .head_dim = 8,
                .reduction = HeadReduction::kSum,
                .window_tokens = 64,
                .n_pinned = 4,
                .n_chosen = 400,
                .tokens = {TokenAt(32767 + 64, 0)}};
    CheckScore(device, c);
    c.n_chosen = 20000;
    CheckScore(device, c);
    c.tokens = {TokenAt(20000, 0)};  // fewer than there is room for
    CheckScore(device, c);
    c.index = {KvType::kInt4, 24, 1, 8192, 1};
    c.reduction = HeadReduction::kSoftmax;
    c.tokens = {TokenAt(8191, 0)};
    c.n_chosen = 100;
    CheckScore(device, c);
    c.index = {KvType::kInt4, 12, 4, 32768 / 4, 1};
    c.n_heads = 12;
    c.n_kv_heads = 2;
    c.tokens = {TokenAt(32767 + 64, 0)};
    for (const HeadReduction reduction : {HeadReduction::kSoftmax, HeadReduction::kPerKvHead}) {
      c.reduction = reduction;
      CheckScore(device, c);
    }
  });
}

// Few different scores: the lowest groups of those that tie are chosen.
TEST(HostIndexTest, Ties) {
  OnEveryHostTarget([](host::HostDevice& device) {
    for (const HeadReduction reduction : {HeadReduction::kSum, HeadReduction::kSoftmax}) {
      for (const uint32_t distinct : {1U, 20U}) {
        for (const uint32_t n_chosen : {1U, 2U, 100U, 777U, 1000U}) {
          CheckScore(device, {.index = {KvType::kInt8, 12, 4, 1000, 1},
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
  });
}

TEST(HostIndexTest, PinnedGroupsAreTheChoiceWhereTheyAreAsMany) {
  OnEveryHostTarget([](host::HostDevice& device) {
    for (const auto& [n_pinned, position] : {std::pair{7U, 399U}, {7U, 19U}, {0U, 399U}}) {
      CheckScore(device, {.index = {KvType::kInt8, 12, 4, 100, 1},
                          .n_heads = 3,
                          .n_kv_heads = 1,
                          .head_dim = 8,
                          .reduction = HeadReduction::kSum,
                          .n_pinned = n_pinned,
                          .n_chosen = 7,
                          .tokens = {TokenAt(position, 0)}});
    }
  });
}

// Scores of every kind, chosen from directly: equal ones, zeros of both signs, infinities, tiny ones.
TEST(HostIndexTest, ChoosesAmongScoresOfEveryKind) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::vector<float> kinds = {0.0F,  -0.0F,     1e-44F,     -1e-44F, 1.0F,
                                    -1.0F, kInfinity, -kInfinity, 3e38F,   1.0F};
  OnEveryHostTarget([&](host::HostDevice&) {
    for (const uint32_t n : {1U, 2U, 9U, 63U, 64U, 65U, 333U}) {
      const std::vector<float> random = HostRandomFloats(n, n);
      std::vector<float> scores(n);
      for (size_t i = 0; i < n; ++i) {
        scores[i] = kinds[static_cast<size_t>((random[i] + 1.0F) * 1000.0F) % kinds.size()];
      }
      for (const uint32_t n_chosen : {1U, n / 3 + 1, n / 2 + 1, n, n + 5}) {
        for (const uint32_t n_pinned : {0U, 1U, n_chosen}) {
          std::vector<uint32_t> chosen(n_chosen + 2, kHostPoison);
          host::SelectGroups(scores.data(), n, n_pinned, n_chosen, chosen.data());
          std::vector<uint32_t> expected = SelectGroupsReference(scores, n_pinned, n_chosen);
          expected.insert(expected.begin(), static_cast<uint32_t>(expected.size()));
          expected.resize(n_chosen + 2, kHostPoison);
          EXPECT_EQ(chosen, expected) << n_chosen << " of " << n << ", " << n_pinned << " pinned";
        }
      }
    }
  });
}

// Numbers that are none choose what can be read: whoever reads the groups trusts their numbers.
TEST(HostIndexTest, AQueryOfNaNsChoosesGroupsThatAreThere) {
  OnEveryHostTarget([](host::HostDevice& device) {
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
        HostOperationRun run(device);
        const ScoreInputs inputs(run, c);
        std::fill_n(host::Data<float>(inputs.args.query), inputs.query.size(), std::nanf(""));
        run.Run([&](CommandList& list) { return list.ScoreAndSelect(inputs.args); });
        const auto chosen = run.Read<uint32_t>(inputs.args.chosen, 1 + c.n_chosen);
        ASSERT_EQ(chosen[0], c.n_chosen);
        EXPECT_LT(chosen.back(), 200U);
        EXPECT_TRUE(std::is_sorted(chosen.begin() + 1, chosen.end(), std::less_equal<>()));
      }
    }
  });
}

// Positions and queries are data: the list that was recorded once chooses as one that is recorded for them.
TEST(HostIndexTest, ARecordedListServesEveryPosition) {
  ScoreCase c{.index = {KvType::kInt4, 24, 4, 300, 2},
              .n_heads = 9,
              .n_kv_heads = 3,
              .head_dim = 64,
              .window_tokens = 16,
              .n_pinned = 1,
              .n_chosen = 25,
              .tokens = {TokenAt(1215, 0), TokenAt(1215, 1)}};
  const auto device = host::HostDevice::Create({.n_threads = 2, .note = {}});
  ASSERT_TRUE(device.ok());
  HostOperationRun run(**device);
  ScoreInputs inputs(run, c);
  auto list = (*device)->CreateCommandList();
  ASSERT_TRUE(list.ok());
  ASSERT_TRUE((*list)->ScoreAndSelect(inputs.args).ok());
  ASSERT_TRUE((*list)->Finish().ok());
  auto* step = reinterpret_cast<StepParams*>(const_cast<Buffer*>(inputs.args.attention.step)->host().data());
  for (const uint32_t position : {1215U, 3U, 40U, 1000U}) {
    c.tokens = {TokenAt(position, 1), TokenAt(1215 - position, 0)};
    inputs.reference.attention.tokens = c.tokens;
    std::copy(c.tokens.begin(), c.tokens.end(), step->tokens);
    std::copy(inputs.query.begin(), inputs.query.end(), host::Data<float>(inputs.args.query));
    std::fill_n(host::Data<uint32_t>(inputs.args.chosen), c.n_lists() * (1 + c.n_chosen), kHostPoison);
    auto value = (*device)->Submit(**list);
    ASSERT_TRUE(value.ok()) << value.status().message();
    ASSERT_TRUE((*device)->Wait(*value).ok());
    ExpectChoice(run, c, inputs);
  }
}

}  // namespace
}  // namespace kvrun::testing
