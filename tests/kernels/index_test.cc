// Scoring and choosing groups by an index, its upkeep, and the sums that adapters are made of, against the
// scalar reference.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <map>

#include "runtime/device/host/score.h"
#include "runtime/device/vulkan/score_plan.h"
#include "shaders/shared/index_params.h"
#include "tests/support/index_reference.h"
#include "tests/support/operations_fixture.h"
#include "tests/support/scalar_reference.h"

namespace kvrun::testing {
namespace {

constexpr KvType kIndexTypes[] = {KvType::kF16, KvType::kInt8, KvType::kInt4};
constexpr uint32_t kRanks[] = {1, 6, 12, 24, 33};
constexpr uint32_t kGroups[] = {1, 3, 4, 8, 16};
// Of the CPU; the last are more than a tile.
constexpr uint32_t kHostGroups[] = {1, 3, 4, 8, 16, 2, 70, 300};
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
  GroupScore group_score = GroupScore::kLargest;
  float mass_share = 0.0F;
  QueryForm query_form = QueryForm::kProjected;
  uint32_t distinct_rows = 0;  // index rows repeat after so many; 0: they do not
  std::vector<StepToken> tokens;

  uint32_t rotary_dim() const { return head_dim / 4 * 2; }
  size_t n_lists() const { return tokens.size() * (reduction == HeadReduction::kPerKvHead ? n_kv_heads : 1); }
};

std::string Describe(const ScoreCase& c) {
  return std::string(IndexTypeName(c.index.type)) + ", rank " + std::to_string(c.index.rank) +
         ", groups of " + std::to_string(c.index.group_tokens) + " (" + std::to_string(c.index.rows()) +
         " rows), " + std::to_string(c.n_heads) + "/" + std::to_string(c.n_kv_heads) + " heads of " +
         std::to_string(c.head_dim) + ", reduction " + std::to_string(static_cast<int>(c.reduction)) +
         (c.query_form == QueryForm::kSigned ? ", signed" : "") +
         (c.group_score == GroupScore::kMass ? ", mass (" + std::to_string(c.mass_share) + "), " : ", ") +
         std::to_string(c.n_chosen) + " of " + std::to_string(c.index.n_groups) + ", " +
         std::to_string(c.tokens.size()) + " tokens from " + std::to_string(c.tokens[0].position);
}

void PutElement(std::vector<uint32_t>& index, const IndexShape& shape, size_t group, size_t element,
                uint32_t code) {
  const uint32_t bits = KvElementBits(shape.type);
  index[group * shape.group_words() + element * bits / 32] |= code << (element * bits % 32);
}

float LargestCode(KvType type) { return static_cast<float>((1U << (KvElementBits(type) - 1)) - 1); }

// Random rows; NaNs where an f16 index has room but no group that can be chosen: they may be read, not used.
std::vector<uint32_t> RandomIndex(const ScoreCase& c) {
  const IndexShape& shape = c.index;
  std::vector<uint32_t> choosable(shape.n_sequences);
  for (const StepToken& token : c.tokens) {
    choosable[token.sequence] =
        std::max(choosable[token.sequence],
                 ChoosableEntriesReference(token.position, c.window_tokens, shape.group_tokens) /
                     shape.group_tokens * shape.rows());
  }
  const size_t per_group = size_t{shape.rows()} * shape.rank;
  const std::vector<float> values = RandomFloats(shape.n_sequences * shape.n_groups * per_group, 21);
  const uint32_t bits = KvElementBits(shape.type);
  std::vector<uint32_t> index(shape.size_bytes() / sizeof(uint32_t));
  for (size_t i = 0; i < values.size(); ++i) {
    const size_t group = i / per_group;
    const size_t row = i / shape.rank % (size_t{shape.n_groups} * shape.rows());
    const size_t like = c.distinct_rows != 0 ? row % c.distinct_rows * shape.rank + i % shape.rank : i;
    auto code = static_cast<uint32_t>(std::lround(values[like] * LargestCode(c.index.type)));
    if (shape.type == KvType::kF16) code = FloatToHalf(values[like]);
    if (shape.type == KvType::kF16 && row >= choosable[group / shape.n_groups]) code = 0x7fff;
    PutElement(index, shape, group, i % per_group, code & ((1U << bits) - 1));
  }
  return index;
}

std::vector<float> WordsAsFloats(std::span<const uint32_t> words) {
  std::vector<float> floats(words.size());
  std::memcpy(floats.data(), words.data(), words.size_bytes());
  return floats;
}

template <typename T>
std::vector<T> Download(SelfTestRun& run, const Buffer* buffer, size_t count) {
  std::vector<T> values(count);
  const std::vector<std::byte> bytes = run.Bytes(buffer, count * sizeof(T));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

// Inputs of a case, on the host and on the device.
struct ScoreInputs {
  ScoreInputs(SelfTestRun& run, const ScoreCase& c)
      : query(RandomFloats(c.tokens.size() * c.n_heads * c.head_dim, 22)),
        angles(RandomFloats(c.tokens.size() * c.rotary_dim(), 23)),
        norms(RandomFloats(size_t{2} * c.head_dim, 24)),
        query_side(RandomFloats(size_t{c.n_kv_heads} * c.head_dim * c.index.rank, 25)),
        scales(RandomFloats(size_t{c.index.n_sequences} * c.index.rank, 26)),
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
                 .group_score = c.group_score,
                 .window_tokens = c.window_tokens,
                 .query_form = c.query_form};
    args = {.query = PoisonedBuffer(run, std::vector<double>(query.begin(), query.end())),
            .attention = {.step = run.Step(c.tokens),
                          .kv_shape = reference.attention.kv_shape,
                          .n_heads = c.n_heads,
                          .n_tokens = static_cast<uint32_t>(c.tokens.size()),
                          .angles = run.Floats(angles),
                          .norms = c.norms ? run.Floats(norms) : nullptr,
                          .norm_epsilon = 1e-5F,
                          .rotary_dim = c.rotary_dim(),
                          .rope_halves = c.halves},
            .sides = {.query_side = run.Floats(query_side), .scales = run.Floats(scales)},
            .index = run.Floats(WordsAsFloats(index)),
            .index_shape = c.index,
            .reduction = c.reduction,
            .window_tokens = c.window_tokens,
            .n_pinned = c.n_pinned,
            .n_chosen = c.n_chosen,
            .query_form = c.query_form,
            .group_score = c.group_score,
            .mass_share = c.mass_share,
            .scratch = nullptr,
            .chosen = PoisonedBuffer(run, Untouched(c.n_lists() * (1 + c.n_chosen)))};
    if (c.query_form == QueryForm::kSigned) args.sides.query_side = nullptr;
    scratch_words = run.device().ScoreScratchBytes(args) / sizeof(uint32_t);
    args.scratch = PoisonedBuffer(run, Untouched(scratch_words));
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
// the score, and of the sum). On the CPU come to that powers of 2, good to 2 units in the last place and of a
// rounded difference of at most 128, in both; and the roundings of the sum over entries. On Vulkan: exp2,
// good to 3 + 2|x| units in the last place, x at most 64 here, in both; and the sums' parts rounded to a
// whole number in 2^-16 of a weight that is at least a half (of fewer than 2^14 entries), by at most 64
// invocations. A group's mass is a sum more, of entries whose errors are relative.
double ScoreTolerance(Device& device, const ScoreCase& c, double magnitude, double score) {
  const double product = (3.0 * c.head_dim + c.n_heads + c.index.rank + 64) * kRoundoff * magnitude;
  if (c.reduction == HeadReduction::kSum) return product;
  const double mass = c.group_score == GroupScore::kMass ? score * c.index.rows() * kRoundoff : 0.0;
  if (AsHost(device) != nullptr) {
    const double sums = (1.0 * c.index.n_groups * c.index.rows() + c.n_heads + 16) * kRoundoff;
    return score * (2 * product + 2 * kRoundoff * (4 + 128) + sums) + mass;
  }
  const double exponential = 2 * kRoundoff * (3 + 2 * 64) * 2;
  return score * (2 * product + exponential + 64 * 0x1p-16 + (c.n_heads + 16) * kRoundoff) + mass;
}

// A share's error, where masses are known: they are summed in floats, all and those that are chosen, by 8
// invocations at least, each a component of a vector at a time (the CPU: 512 at most, in blocks); or in whole
// numbers, of which all are 2^30 or more, each rounded.
double ShareTolerance(size_t n_groups, double share) {
  const auto n = static_cast<double>(n_groups);
  return 3 * (n / 32 + 512) * kRoundoff * share + n * 0x1p-30;
}

constexpr uint32_t kPoison = 0x7fc0fead;

void ExpectUntouched(std::span<const uint32_t> words, const std::string& what) {
  EXPECT_TRUE(std::all_of(words.begin(), words.end(), [](uint32_t word) { return word == kPoison; })) << what;
}

// A list's groups' scores, where a device's plan says that they are; empty where there is no such plan.
std::span<const float> ScoresOf(Device& device, const ScoreCase& c, const ScoreArgs& args,
                                std::span<const float> scratch, size_t list, size_t count) {
  if (AsHost(device) != nullptr)
    return scratch.subspan(host::LayOutScores(args).scores_begin + list * c.index.n_groups, count);
  const VulkanComputeDevice* vulkan = AsVulkan(device);
  if (vulkan == nullptr) return {};
  const ScorePlan plan = PlanScore(vulkan->plan(), vulkan->is_cpu(), args);
  return scratch.subspan(plan.scores_begin + list * plan.scores_stride, count);
}

// The groups' scores as the reference has them, and the choice as it follows from the scores that were found.
void ExpectScores(Device& device, const ScoreCase& c, std::span<const float> scores, size_t list,
                  const GroupScores& expected, std::span<const uint32_t> found) {
  for (size_t g = 0; g < scores.size(); ++g) {
    const double score = expected.scores[g];
    ASSERT_NEAR(scores[g], score, ScoreTolerance(device, c, expected.magnitude, score))
        << "group " << g << " of list " << list << ": " << Describe(c);
  }
  if (c.mass_share != 0.0F) {
    ASSERT_LE(found[0], c.n_chosen);
    EXPECT_TRUE(EndsAtMassShare(std::vector<double>(scores.begin(), scores.end()), c.n_pinned, c.n_chosen,
                                c.mass_share, ShareTolerance(scores.size(), c.mass_share),
                                found.subspan(1, found[0])))
        << "list " << list << ": " << Describe(c);
  }
  const std::vector<uint32_t> groups =
      SelectGroupsReference(scores, c.n_pinned, c.mass_share != 0.0F ? found[0] : c.n_chosen);
  ASSERT_EQ(found[0], groups.size()) << "list " << list << ": " << Describe(c);
  EXPECT_TRUE(std::equal(groups.begin(), groups.end(), found.begin() + 1))
      << "list " << list << ": " << Describe(c);
}

// A list that follows from scores within their tolerance, wherever a device keeps them: as many groups as
// there can be, ascending, the pinned ones among them, and none for which a better one was left out. Where
// entries repeat, groups of the same entries have the same score: of those the lower are chosen. Not so with
// masses: the CPU weighs equal entries with the reference of their time, and rounds a smaller one otherwise.
void ExpectGoodChoice(Device& device, const ScoreCase& c, size_t list, const GroupScores& expected,
                      std::span<const uint32_t> found) {
  SCOPED_TRACE(::testing::Message() << "list " << list << ": " << Describe(c));
  const size_t n_groups = expected.scores.size();
  ASSERT_LE(found[0], std::min<size_t>(n_groups, c.n_chosen));
  if (c.mass_share == 0.0F) {
    ASSERT_EQ(found[0], std::min<size_t>(n_groups, c.n_chosen));
  }
  std::vector<bool> is_chosen(n_groups);
  for (uint32_t i = 1; i <= found[0]; ++i) {
    ASSERT_LT(found[i], n_groups);
    ASSERT_TRUE(i == 1 || found[i - 1] < found[i]) << found[i] << " after " << found[i - 1];
    is_chosen[found[i]] = true;
  }
  double worst_chosen = std::numeric_limits<double>::infinity();
  double best_left_out = -std::numeric_limits<double>::infinity();
  std::map<double, size_t> left_out;  // the lowest group of a score
  for (size_t g = 0; g < n_groups; ++g) {
    const double score = expected.scores[g];
    const double tolerance = ScoreTolerance(device, c, expected.magnitude, score);
    if (!is_chosen[g]) {
      EXPECT_TRUE(g >= c.n_pinned || g >= found[0]) << "group " << g << " is pinned";
      best_left_out = std::max(best_left_out, score - tolerance);
      left_out.try_emplace(score, g);
    } else if (g >= c.n_pinned) {
      worst_chosen = std::min(worst_chosen, score + tolerance);
      const auto same = left_out.find(score);
      EXPECT_TRUE(c.distinct_rows == 0 || c.group_score == GroupScore::kMass || same == left_out.end())
          << "group " << g << ", but not " << same->second;
    }
  }
  EXPECT_GE(worst_chosen, best_left_out);
  if (c.mass_share == 0.0F || n_groups == 0) return;
  // Of all scores and of those that are chosen; and of the worst, which may be another.
  const double scores_tolerance = 3 * ScoreTolerance(device, c, expected.magnitude, c.mass_share);
  EXPECT_TRUE(EndsAtMassShare(expected.scores, c.n_pinned, c.n_chosen, c.mass_share,
                              scores_tolerance + ShareTolerance(n_groups, c.mass_share),
                              found.subspan(1, found[0])));
}

void ExpectChoice(SelfTestRun& run, const ScoreCase& c, const ScoreInputs& inputs) {
  const auto scratch = Download<float>(run, inputs.args.scratch, inputs.scratch_words + kBeyond);
  const auto chosen = Download<uint32_t>(run, inputs.args.chosen, c.n_lists() * (1 + c.n_chosen) + kBeyond);
  ASSERT_TRUE(run.status().ok()) << run.status().message();
  const std::vector<GroupScores> expected = ScoreGroupsReference(inputs.reference);
  ASSERT_EQ(expected.size(), c.n_lists());
  for (size_t list = 0; list < expected.size(); ++list) {
    const auto found = std::span(chosen).subspan(list * (1 + c.n_chosen), 1 + c.n_chosen);
    const auto scores = ScoresOf(run.device(), c, inputs.args, scratch, list, expected[list].scores.size());
    if (!scores.empty()) ExpectScores(run.device(), c, scores, list, expected[list], found);
    if (!::testing::Test::HasFatalFailure()) ExpectGoodChoice(run.device(), c, list, expected[list], found);
    if (::testing::Test::HasFatalFailure()) return;
    ExpectUntouched(found.subspan(1 + found[0]), "what follows a list: " + Describe(c));
  }
  ExpectUntouched(std::span(chosen).last(kBeyond), "what follows the lists: " + Describe(c));
  std::vector<uint32_t> beyond(kBeyond);
  std::memcpy(beyond.data(), scratch.data() + inputs.scratch_words, kBeyond * sizeof(float));
  ExpectUntouched(beyond, "what follows scratch: " + Describe(c));
}

// The query, which the CPU normalises and rotates where it is.
void ExpectRotated(SelfTestRun& run, const ScoreCase& c, const ScoreInputs& inputs) {
  AttentionReferenceArgs attention = inputs.reference.attention;
  attention.kv_shape.n_kv_heads = 0;
  std::vector<double> expected(inputs.query.begin(), inputs.query.end());
  RopeAndStoreReference(attention, expected, {});
  const double tolerance = (c.head_dim + 24) * kRoundoff * 2 * std::max(1.0, LargestMagnitude(expected));
  EXPECT_TRUE(IsClose(run, inputs.args.query, expected, tolerance)) << "query: " << Describe(c);
}

void CheckScore(Device& device, const ScoreCase& c) {
  SelfTestRun run(device);
  const ScoreInputs inputs(run, c);
  run.Run([&](CommandList& list) { return list.ScoreAndSelect(inputs.args); });
  ExpectChoice(run, c, inputs);
  if (AsHost(device) != nullptr) ExpectRotated(run, c, inputs);
}

class IndexTest : public OperationsTest {
 protected:
  static std::span<const uint32_t> Groups() {
    return IsHost(GetParam()) ? std::span<const uint32_t>(kHostGroups) : std::span<const uint32_t>(kGroups);
  }
};
// What is the CPU's alone, or takes another device too long.
class HostIndexTest : public OperationsTest {};

INSTANTIATE_TEST_SUITE_P(Modes, IndexTest,
                         ::testing::ValuesIn(ModesOf(Operations::kIndex,
                                                     {DeviceMode::kPlanned, DeviceMode::kFloor,
                                                      DeviceMode::kGpu, DeviceMode::kGpuFloor})),
                         ModeName);

INSTANTIATE_TEST_SUITE_P(Modes, HostIndexTest, ::testing::ValuesIn(HostModes()), ModeName);

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

// Sums of entries, of a batch whose sequences have nothing, little and all to choose from: with every
// reduction that makes softmaxes, and heads that one dispatch has room for or not.
TEST_P(IndexTest, MassesOfGroups) {
  for (Device* device : devices_) {
    std::vector<uint32_t> groups = {1, 2, 3, 4, 16};
    if (IsHost(GetParam())) groups.assign(std::begin(kHostGroups), std::end(kHostGroups));
    for (const uint32_t group : groups) {
      for (const HeadReduction reduction : kReductions) {
        if (reduction == HeadReduction::kSum) continue;
        const bool is_many = group == 4 || group == 3;
        ScoreCase c{.index = {group == 2 ? KvType::kF16 : KvType::kInt4, 12, group, 43, 4},
                    .n_heads = is_many ? 20U : 6U,
                    .n_kv_heads = is_many ? 1U : 2U,
                    .head_dim = 16,
                    .reduction = reduction,
                    .window_tokens = 10,
                    .n_pinned = 2,
                    .n_chosen = 11,
                    .group_score = GroupScore::kMass,
                    .tokens = {}};
        for (const uint32_t position : {5U, 9U + group, 9U + 5 * group, 9U + 43 * group}) {
          c.tokens.push_back(TokenAt(position, static_cast<uint32_t>(3 - c.tokens.size())));
        }
        CheckScore(*device, c);
      }
    }
  }
}

// A share of the mass ends the choice, or n_chosen does: of sequences with nothing, one group, a few and many
// to choose from.
TEST_P(IndexTest, AShareOfTheMass) {
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
                                 .group_score = GroupScore::kMass,
                                 .mass_share = share,
                                 .tokens = {TokenAt(5, 3), TokenAt(9 + group, 2), TokenAt(9 + 5 * group, 1),
                                            TokenAt(9 + 140 * group, 0)}});
          }
        }
      }
    }
  }
}

// More groups than kernels keep in registers, of few entries that have most of the mass.
TEST_P(IndexTest, AShareOfTheMassOfALongContext) {
  for (Device* device : devices_) {
    for (const float share : {0.3F, 0.95F, 0.9999F}) {
      CheckScore(*device, {.index = {KvType::kInt4, 12, 1, 12000, 1},
                           .n_heads = 6,
                           .n_kv_heads = 2,
                           .head_dim = 16,
                           .reduction = HeadReduction::kPerKvHead,
                           .n_pinned = 4,
                           .n_chosen = 12000,
                           .group_score = GroupScore::kMass,
                           .mass_share = share,
                           .tokens = {TokenAt(11990, 0)}});
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

TEST_P(HostIndexTest, ThreadsDoNotChangeAShareOfTheMass) {
  ScoreCase c{.index = {KvType::kInt4, 12, 4, 5000, 1},
              .n_heads = 4,
              .n_kv_heads = 2,
              .head_dim = 8,
              .window_tokens = 64,
              .n_pinned = 1,
              .n_chosen = 5000,
              .group_score = GroupScore::kMass,
              .mass_share = 0.7F,
              .tokens = {TokenAt(19999 + 64, 0)}};
  for (const HeadReduction reduction : {HeadReduction::kSoftmax, HeadReduction::kPerKvHead}) {
    c.reduction = reduction;
    std::vector<std::vector<uint32_t>> choices;
    for (const DeviceMode mode : {DeviceMode::kHost, DeviceMode::kHostThreads}) {
      for (Device* device : DevicesOf(mode)) {
        SelfTestRun run(*device);
        const ScoreInputs inputs(run, c);
        run.Run([&](CommandList& list) { return list.ScoreAndSelect(inputs.args); });
        choices.push_back(Download<uint32_t>(run, inputs.args.chosen, c.n_lists() * (1 + c.n_chosen)));
        EXPECT_EQ(choices.back(), choices.front());
      }
    }
    EXPECT_GE(choices.size(), 2U);
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

// Of groups of the same mass the lower are chosen, and as many as reach the share: with one row, that is a
// share of the groups.
TEST_P(IndexTest, TiesOfMasses) {
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
                               .group_score = GroupScore::kMass,
                               .mass_share = share,
                               .distinct_rows = distinct,
                               .tokens = {TokenAt(3999, 0)}});
        }
      }
    }
  }
}

// Pinned groups that have the share already, or that are all there may be.
TEST_P(IndexTest, PinnedGroupsAreOfTheMass) {
  for (Device* device : devices_) {
    for (const auto& [n_pinned, n_chosen] : {std::pair{50U, 60U}, {7U, 7U}, {0U, 1U}, {99U, 100U}}) {
      for (const float share : {0.01F, 0.6F}) {
        CheckScore(*device, {.index = {KvType::kInt8, 12, 4, 100, 1},
                             .n_heads = 3,
                             .n_kv_heads = 1,
                             .head_dim = 8,
                             .n_pinned = n_pinned,
                             .n_chosen = n_chosen,
                             .group_score = GroupScore::kMass,
                             .mass_share = share,
                             .tokens = {TokenAt(399, 0)}});
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

// Positions and queries are data: the list that was recorded once chooses as one that is recorded for them.
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
      std::copy(c.tokens.begin(), c.tokens.end(),
                reinterpret_cast<StepParams*>((*step)->host().data())->tokens);
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
