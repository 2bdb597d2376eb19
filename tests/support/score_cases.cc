// Not grouped (cmake/KvrunCompile.cmake): its names are others', too.
#include "tests/support/score_cases.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <string>

#include "platform/base/units.h"
#include "runtime/device/host/score.h"
#include "runtime/device/vulkan/score_plan.h"
#include "shaders/shared/sample_params.h"
#include "tests/support/beyond.h"
#include "tests/support/operations_fixture.h"
#include "tests/support/sample_reference.h"
#include "tests/support/scalar_reference.h"

namespace kvrun::testing {
namespace {

std::string Describe(const ChoiceRule& rule) {
  std::string text;
  if (GroupScoreOf(rule) == GroupScore::kMass) text += "mass (" + std::to_string(MassShareOf(rule)) + "), ";
  if (const auto* by_weight = std::get_if<ChooseByWeight>(&rule)) {
    text += "weight " + std::to_string(by_weight->most_weight) + ", ";
    if (by_weight->per_weight) text += "per weight, ";
  }
  if (const auto* and_sample = std::get_if<ChooseAndSample>(&rule))
    text += std::to_string(and_sample->n_sampled) + " drawn, ";
  if (const ScoreStages* stages = StagesOf(rule)) {
    text += std::to_string(stages->n_candidates) + " candidates by " + std::to_string(stages->first_columns) +
            " columns, ";
  }
  return text;
}

std::string Describe(const ScoreCase& c) {
  return std::string(IndexTypeName(c.index.type)) + ", rank " + std::to_string(c.index.rank) +
         ", groups of " + std::to_string(c.index.group_tokens) + " (" + std::to_string(c.index.rows()) +
         " rows), " + std::to_string(c.n_heads) + "/" + std::to_string(c.n_kv_heads) + " heads of " +
         std::to_string(c.head_dim) + ", reduction " + std::to_string(static_cast<int>(c.reduction)) +
         (c.query_form == QueryForm::kSigned ? ", signed" : "") +
         (c.query_form == QueryForm::kAffine ? ", affine" : "") + ", " + Describe(c.rule) +
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

std::vector<uint32_t> RandomWeights(const ScoreCase& c) {
  std::vector<uint32_t> weights(c.index.n_sequences * c.lists_of_token() * c.index.n_groups);
  const std::vector<float> random = RandomFloats(weights.size(), 27);
  for (size_t i = 0; i < weights.size(); ++i) {
    weights[i] =
        static_cast<uint32_t>((random[i] + 1.0F) / 2.0F * (kLargestWeight + 1)) % (kLargestWeight + 1);
  }
  return weights;
}

std::vector<float> WordsAsFloats(std::span<const uint32_t> words) {
  std::vector<float> floats(words.size());
  std::memcpy(floats.data(), words.data(), words.size_bytes());
  return floats;
}

// Six standard deviations of what rounding a query to 8 bits does to a product. Its largest column is taken
// for four times the mean one, and rows are uniform, with a root mean square of 1.15 times their mean.
double RoundedProduct(const ScoreCase& c, double magnitude) {
  return 6 * 4.0 / 127 / std::sqrt(12.0) * 1.15 * magnitude / std::sqrt(c.index.rank);
}

// A product's error: roundings of the query's norm and rotation, of the sums over dimensions, heads and
// columns, and of the factors between, all of the sum of magnitudes. A softmax makes it relative, twice (of
// the score, and of the sum). On the CPU come to that powers of 2, good to 2 units in the last place and of a
// rounded difference of at most 128, in both; and the roundings of the sum over entries. On Vulkan: exp2,
// good to 3 + 2|x| units in the last place, x at most 64 here, in both; and the sums' parts rounded to a
// whole number in 2^-16 of a weight that is at least a half (of fewer than 2^14 entries), by at most 64
// invocations. A group's mass is a sum more, of entries whose errors are relative.
double ScoreTolerance(Device& device, const ScoreCase& c, double magnitude, double score) {
  double product = (3.0 * c.head_dim + c.n_heads + c.index.rank + 64) * kRoundoff * magnitude;
  if (RoundsActivations(device) && c.index.type == KvType::kInt4) product += RoundedProduct(c, magnitude);
  if (c.reduction == HeadReduction::kSum) return product;
  const double mass = GroupScoreOf(c.rule) == GroupScore::kMass ? score * c.index.rows() * kRoundoff : 0.0;
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

// No more than may be; and with any that is left out it might be more, or nothing is.
void ExpectWeight(const ScoreCase& c, uint32_t most_weight, size_t n_groups,
                  std::span<const uint32_t> weights, std::span<const uint32_t> found) {
  uint32_t weight = 0;
  for (uint32_t i = 1; i <= found[0]; ++i) {
    if (found[i] < c.n_pinned) continue;
    EXPECT_GT(weights[found[i]], 0U) << "group " << found[i] << ": " << Describe(c);
    weight += weights[found[i]];
  }
  EXPECT_LE(weight, most_weight) << Describe(c);
  uint64_t all = 0;
  for (size_t g = c.n_pinned; g < n_groups; ++g) all += weights[g];
  if (weight != all) {
    EXPECT_GT(weight + kLargestWeight, most_weight) << Describe(c);
  }
}

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
  return scratch.subspan(plan.groups.scores_begin + list * plan.groups.scores_stride, count);
}

// Whether not all groups that a token can choose from are candidates.
bool HasStages(const ScoreCase& c, const ScoreStages& stages, size_t token) {
  const uint32_t n_groups =
      ChoosableEntriesReference(c.tokens[token].position, c.window_tokens, c.index.group_tokens) /
      c.index.group_tokens;
  return n_groups > stages.n_candidates;
}

// The candidates of a token with two stages, where a device's plan says where they are: ascending.
// The scores are then theirs, one after another.
std::span<const uint32_t> CandidatesOf(Device& device, const ScoreArgs& args,
                                       std::span<const uint32_t> scratch, size_t token) {
  const uint32_t n_candidates = StagesOf(args.rule)->n_candidates;
  if (AsHost(device) != nullptr) {
    const host::ScoreLayout layout = host::LayOutScores(args);
    return scratch.subspan(layout.candidates_begin + token * layout.candidate_words + 1, n_candidates);
  }
  const VulkanComputeDevice* vulkan = AsVulkan(device);
  if (vulkan == nullptr) return {};
  const ScorePlan plan = PlanScore(vulkan->plan(), vulkan->is_cpu(), args);
  return scratch.subspan(plan.candidates_begin + token * plan.candidate_words + 1, n_candidates);
}

// Ascending groups, those that are pinned among them, and none for which a better one was left out.
void ExpectGoodCandidates(Device& device, const ScoreCase& c, const GroupScores& first,
                          std::span<const uint32_t> found) {
  SCOPED_TRACE(::testing::Message() << "candidates: " << Describe(c));
  std::vector<bool> is_candidate(first.scores.size());
  for (size_t i = 0; i < found.size(); ++i) {
    ASSERT_LT(found[i], first.scores.size());
    ASSERT_TRUE(i == 0 || found[i - 1] < found[i]) << found[i] << " after " << found[i - 1];
    is_candidate[found[i]] = true;
  }
  double worst = std::numeric_limits<double>::infinity();
  double best_left_out = -std::numeric_limits<double>::infinity();
  for (size_t group = 0; group < first.scores.size(); ++group) {
    const double score = first.scores[group];
    const double tolerance = ScoreTolerance(device, c, first.magnitude, score);
    if (is_candidate[group]) {
      if (group >= c.n_pinned) worst = std::min(worst, score + tolerance);
    } else {
      ASSERT_GE(group, c.n_pinned);
      best_left_out = std::max(best_left_out, score - tolerance);
    }
  }
  EXPECT_GE(worst, best_left_out);
}

// The candidates of each token, none where it has one stage: those that the device has found, which must be
// good ones, or where it is not known what it has found, the reference's.
std::vector<std::vector<uint32_t>> CandidatesOfTokens(Device& device, const ScoreCase& c,
                                                      const ScoreInputs& inputs,
                                                      std::span<const uint32_t> scratch) {
  std::vector<std::vector<uint32_t>> candidates(c.tokens.size());
  const ScoreStages* const stages = StagesOf(c.rule);
  if (stages == nullptr) return candidates;
  const std::vector<GroupScores> first = ScoreFirstReference(inputs.reference, stages->first_columns);
  for (size_t token = 0; token < c.tokens.size(); ++token) {
    if (!HasStages(c, *stages, token)) continue;
    const auto found = CandidatesOf(device, inputs.args, scratch, token);
    if (!found.empty()) {
      ExpectGoodCandidates(device, c, first[token], found);
      candidates[token].assign(found.begin(), found.end());
      continue;
    }
    const std::vector<float> scores(first[token].scores.begin(), first[token].scores.end());
    candidates[token] = SelectGroupsReference(scores, c.n_pinned, stages->n_candidates);
  }
  return candidates;
}

// A choice of groups as places among `groups`, which are ascending; what follows it stays.
std::vector<uint32_t> AsPlaces(std::span<const uint32_t> choice, std::span<const uint32_t> groups) {
  std::vector<uint32_t> places(choice.begin(), choice.end());
  for (uint32_t i = 1; i <= std::min<size_t>(choice[0], choice.size() - 1); ++i) {
    const auto at = std::lower_bound(groups.begin(), groups.end(), choice[i]);
    EXPECT_TRUE(at != groups.end() && *at == choice[i]) << "group " << choice[i] << " is no candidate's";
    places[i] = static_cast<uint32_t>(at - groups.begin());
  }
  return places;
}

// The groups' scores as the reference has them, and the choice as it follows from the scores that were found.
void ExpectScores(Device& device, const ScoreCase& c, std::span<const float> scores, size_t list,
                  const GroupScores& expected, std::span<const uint32_t> weights,
                  std::span<const uint32_t> found) {
  for (size_t g = 0; g < scores.size(); ++g) {
    const double score = expected.scores[g];
    ASSERT_NEAR(scores[g], score, ScoreTolerance(device, c, expected.magnitude, score))
        << "group " << g << " of list " << list << ": " << Describe(c);
  }
  const float share = MassShareOf(c.rule);
  const auto* const by_weight = std::get_if<ChooseByWeight>(&c.rule);
  if (share != 0.0F) {
    ASSERT_LE(found[0], c.n_wanted());
    EXPECT_TRUE(EndsAtMassShare(std::vector<double>(scores.begin(), scores.end()), c.n_pinned, c.n_wanted(),
                                share, ShareTolerance(scores.size(), share), found.subspan(1, found[0])))
        << "list " << list << ": " << Describe(c);
  }
  const std::vector<uint32_t> groups =
      by_weight != nullptr
          ? SelectWeightedReference(scores, weights, c.n_pinned, by_weight->most_weight,
                                    by_weight->per_weight)
          : SelectGroupsReference(scores, c.n_pinned, share != 0.0F ? found[0] : c.n_wanted());
  ASSERT_EQ(found[0], groups.size()) << "list " << list << ": " << Describe(c);
  EXPECT_TRUE(std::equal(groups.begin(), groups.end(), found.begin() + 1))
      << "list " << list << ": " << Describe(c);
}

// A list that follows from scores within their tolerance, wherever a device keeps them: as many groups as
// there can be, ascending, the pinned ones among them, and none for which a better one was left out. Where
// entries repeat, groups of the same entries have the same score: of those the lower are chosen. Not so with
// masses: the CPU weighs equal entries with the reference of their time, and rounds a smaller one otherwise.
void ExpectGoodChoice(Device& device, const ScoreCase& c, size_t list, const GroupScores& expected,
                      std::span<const uint32_t> weights, std::span<const uint32_t> found) {
  SCOPED_TRACE(::testing::Message() << "list " << list << ": " << Describe(c));
  const size_t n_groups = expected.scores.size();
  ASSERT_LE(found[0], std::min<size_t>(n_groups, c.n_wanted()));
  const float share = MassShareOf(c.rule);
  const auto* const by_weight = std::get_if<ChooseByWeight>(&c.rule);
  const bool per_weight = by_weight != nullptr && by_weight->per_weight;
  if (share == 0.0F && by_weight == nullptr) {
    ASSERT_EQ(found[0], std::min<size_t>(n_groups, c.n_wanted()));
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
    const double weight = per_weight ? std::max(weights[g], 1U) : 1.0;
    const double score = expected.scores[g] / weight;
    double tolerance = ScoreTolerance(device, c, expected.magnitude, expected.scores[g]) / weight;
    if (per_weight) tolerance += 5 * kRoundoff * std::abs(score);  // Vulkan's division
    if (!is_chosen[g]) {
      EXPECT_TRUE(g >= c.n_pinned || g >= found[0]) << "group " << g << " is pinned";
      if (by_weight != nullptr && weights[g] == 0) continue;
      best_left_out = std::max(best_left_out, score - tolerance);
      left_out.try_emplace(score, g);
    } else if (g >= c.n_pinned) {
      worst_chosen = std::min(worst_chosen, score + tolerance);
      const auto same = left_out.find(score);
      EXPECT_TRUE(c.distinct_rows == 0 || GroupScoreOf(c.rule) == GroupScore::kMass || same == left_out.end())
          << "group " << g << ", but not " << same->second;
    }
  }
  EXPECT_GE(worst_chosen, best_left_out);
  if (share == 0.0F || n_groups == 0) return;
  // Of all scores and of those that are chosen; and of the worst, which may be another.
  const double scores_tolerance = 3 * ScoreTolerance(device, c, expected.magnitude, share);
  EXPECT_TRUE(EndsAtMassShare(expected.scores, c.n_pinned, c.n_wanted(), share,
                              scores_tolerance + ShareTolerance(n_groups, share),
                              found.subspan(1, found[0])));
}

// What is drawn follows from the scores that were found.
void ExpectSample(const ScoreCase& c, uint32_t seed, std::span<const float> scores, size_t list,
                  std::span<const uint32_t> found) {
  const uint32_t position = c.tokens[list / c.lists_of_token()].position;
  const auto place = static_cast<uint32_t>(list % c.lists_of_token());
  const double offset = SampleOffset(seed, position, place) * 0x1p-18;
  EXPECT_TRUE(IsSample(std::vector<double>(scores.begin(), scores.end()), c.choice_list(), offset, found))
      << "list " << list << ": " << Describe(c);
  const std::span<const uint32_t> sampled = found.subspan(c.choice_list().sampled_begin());
  ExpectUntouched(sampled.subspan(1 + sampled[0], c.choice_list().most_sampled() - sampled[0]),
                  "what follows a sample: " + Describe(c));
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

}  // namespace

ScoreInputs::ScoreInputs(SelfTestRun& run, const ScoreCase& c)
    : query(RandomFloats(c.tokens.size() * c.n_heads * c.head_dim, 22)),
      angles(RandomFloats(c.tokens.size() * c.rotary_dim(), 23)),
      norms(RandomFloats(size_t{2} * c.head_dim, 24)),
      query_side(RoundedToHalf(RandomFloats(c.query_side_rows() * c.index.rank, 25))),
      scales(RandomFloats(size_t{c.index.n_sequences} * c.index.rank, 26)),
      index(RandomIndex(c)),
      weights(RandomWeights(c)) {
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
                             .rope_halves = c.halves,
                             .score_scale = c.score_scale},
               .query = query,
               .query_side = query_side,
               .scales = scales,
               .index = index,
               .shape = c.index,
               .reduction = c.reduction,
               .group_score = GroupScoreOf(c.rule),
               .window_tokens = c.window_tokens,
               .query_form = c.query_form};
  args = {.query = PoisonedBuffer(run, std::vector<double>(query.begin(), query.end())),
          .attention = {.step = run.Step(c.tokens, c.most_chosen),
                        .kv_shape = reference.attention.kv_shape,
                        .n_heads = c.n_heads,
                        .n_tokens = static_cast<uint32_t>(c.tokens.size()),
                        .angles = run.Floats(angles),
                        .norms = c.norms ? run.Floats(norms) : nullptr,
                        .norm_epsilon = 1e-5F,
                        .rotary_dim = c.rotary_dim(),
                        .rope_halves = c.halves,
                        .score_scale = c.score_scale},
          .sides = {.scales = run.Floats(scales)},
          .index = run.Floats(WordsAsFloats(index)),
          .index_shape = c.index,
          .reduction = c.reduction,
          .window_tokens = c.window_tokens,
          .n_pinned = c.n_pinned,
          .n_chosen = c.n_chosen,
          .query_form = c.query_form,
          .rule = c.rule,
          .scratch = nullptr,
          .chosen = PoisonedBuffer(run, Untouched(c.n_lists() * c.choice_list().words()))};
  args.sides.are_halves = c.query_form == QueryForm::kProjected;
  if (c.query_form == QueryForm::kProjected) args.sides.query_side = run.Halves(query_side);
  if (c.query_form == QueryForm::kAffine) args.sides.query_side = run.Floats(query_side);
  if (auto* by_weight = std::get_if<ChooseByWeight>(&args.rule))
    by_weight->weights = run.Floats(WordsAsFloats(weights));
  scratch_words = run.device().ScoreScratchBytes(args) / sizeof(uint32_t);
  args.scratch = PoisonedBuffer(run, Untouched(scratch_words));
}

void ExpectChoice(SelfTestRun& run, const ScoreCase& c, const ScoreInputs& inputs) {
  const auto scratch = Download<float>(run, inputs.args.scratch, inputs.scratch_words + kBeyond);
  const size_t list_words = c.choice_list().words();
  const auto chosen = Download<uint32_t>(run, inputs.args.chosen, c.n_lists() * list_words + kBeyond);
  ASSERT_TRUE(run.status().ok()) << run.status().message();
  std::vector<uint32_t> words(scratch.size());
  std::memcpy(words.data(), scratch.data(), scratch.size() * sizeof(float));
  const auto candidates = CandidatesOfTokens(run.device(), c, inputs, words);
  if (::testing::Test::HasFatalFailure()) return;
  const std::vector<GroupScores> expected = ScoreCandidatesReference(inputs.reference, candidates);
  ASSERT_EQ(expected.size(), c.n_lists());
  for (size_t list = 0; list < expected.size(); ++list) {
    const auto whole = std::span(chosen).subspan(list * list_words, list_words);
    std::vector<uint32_t> found(whole.begin(), whole.begin() + 1 + c.n_chosen);
    if (const auto& groups = candidates[list / c.lists_of_token()]; !groups.empty())
      found = AsPlaces(found, groups);
    const auto scores = ScoresOf(run.device(), c, inputs.args, scratch, list, expected[list].scores.size());
    const auto weights = inputs.WeightsOf(c, list);
    if (!scores.empty()) ExpectScores(run.device(), c, scores, list, expected[list], weights, found);
    if (!::testing::Test::HasFatalFailure()) {
      ExpectGoodChoice(run.device(), c, list, expected[list], weights, found);
    }
    if (const auto* by_weight = std::get_if<ChooseByWeight>(&c.rule))
      ExpectWeight(c, by_weight->most_weight, expected[list].scores.size(), weights, found);
    if (::testing::Test::HasFatalFailure()) return;
    ExpectUntouched(std::span(found).subspan(1 + found[0]), "what follows a list: " + Describe(c));
    const auto* const and_sample = std::get_if<ChooseAndSample>(&c.rule);
    if (and_sample != nullptr && !scores.empty()) ExpectSample(c, and_sample->seed, scores, list, whole);
  }
  ExpectUntouched(std::span(chosen).last(kBeyond), "what follows the lists: " + Describe(c));
  ExpectUntouched(std::span(words).last(kBeyond), "what follows scratch: " + Describe(c));
}

void ExpectSameForAnyThreads(const ScoreCase& c) {
  std::vector<std::vector<uint32_t>> choices;
  for (const DeviceMode mode : {DeviceMode::kHost, DeviceMode::kHostThreads}) {
    for (Device* device : DevicesOf(mode)) {
      SelfTestRun run(*device);
      const ScoreInputs inputs(run, c);
      run.Run([&](CommandList& list) { return list.ScoreAndSelect(inputs.args); });
      choices.push_back(Download<uint32_t>(run, inputs.args.chosen, c.n_lists() * c.choice_list().words()));
      EXPECT_EQ(choices.back(), choices.front());
    }
  }
  EXPECT_GE(choices.size(), 2U);
}

void CheckScore(Device& device, const ScoreCase& c) {
  SelfTestRun run(device);
  const ScoreInputs inputs(run, c);
  run.Run([&](CommandList& list) { return list.ScoreAndSelect(inputs.args); });
  ExpectChoice(run, c, inputs);
  if (AsHost(device) != nullptr) ExpectRotated(run, c, inputs);
}

}  // namespace kvrun::testing
