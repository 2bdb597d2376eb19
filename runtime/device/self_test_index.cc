#include "runtime/device/self_test_index.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "runtime/device/self_test_data.h"
#include "runtime/device/self_test_run.h"
#include "shaders/shared/sample_params.h"

namespace kvrun {
namespace {

constexpr uint32_t kRank = 12;
constexpr uint32_t kGroupTokens = 4;
constexpr uint32_t kGroups = 80;
constexpr uint32_t kHeadDim = 16;
constexpr uint32_t kRotaryDim = 8;
constexpr uint32_t kWindow = 10;
constexpr uint32_t kPosition = 300;
constexpr uint32_t kOldGroups = (kPosition + 1 - kWindow) / kGroupTokens;
constexpr uint32_t kChosen = 9;
constexpr float kEpsilon = 1e-3F;

uint32_t RankOf(const ScoreCase& c) {
  return c.query_form == QueryForm::kSigned ? 2 * c.n_kv_heads * kHeadDim : kRank;
}

// Column c of row r, at [r * rank + c], as codes of the type and as what they stand for.
struct IndexData {
  std::vector<float> words;
  std::vector<float> values;
};

float LargestCode(KvType type) { return type == KvType::kInt8 ? 127.0F : 7.0F; }

IndexData MakeIndex(const IndexShape& shape) {
  IndexData data;
  data.values = RandomFloats(size_t{shape.n_groups} * shape.rows() * shape.rank, 11);
  const uint32_t bits = KvElementBits(shape.type);
  std::vector<uint32_t> words(shape.size_bytes() / sizeof(uint32_t));
  for (size_t i = 0; i < data.values.size(); ++i) {
    float& value = data.values[i];
    uint32_t code = FloatToHalf(value);
    if (shape.type == KvType::kF16) {
      value = HalfToFloat(static_cast<uint16_t>(code));
    } else {
      value = std::round(value * LargestCode(shape.type));
      code = static_cast<uint32_t>(static_cast<int32_t>(value));
    }
    // Groups are whole words here: elements lie without gaps.
    words[i * bits / 32] |= (code & ((1U << bits) - 1)) << (i * bits % 32);
  }
  data.words.resize(words.size());
  std::memcpy(data.words.data(), words.data(), shape.size_bytes());
  return data;
}

struct QueryData {
  std::vector<float> query;
  std::vector<float> angles;
  std::vector<float> norm;
  std::vector<float> side;
  std::vector<float> scales;
};

QueryData MakeQuery(const ScoreCase& c) {
  QueryData data{.query = RandomFloats(size_t{c.n_heads} * kHeadDim, 12),
                 .angles = RandomFloats(kRotaryDim, 13),
                 .norm = RandomFloats(kHeadDim, 14),
                 .side = RoundedToHalf(RandomFloats((size_t{c.n_kv_heads} * kHeadDim + 1) * kRank, 15)),
                 .scales = RandomFloats(RankOf(c), 16)};
  const float largest = c.type == KvType::kF16 ? 1.0F : LargestCode(c.type);
  for (float& scale : data.scales) scale = (1.5F + scale) / largest;
  return data;
}

// z of one head, [rank]; with what is added to a row once.
std::vector<double> ProjectHead(const ScoreCase& c, const QueryData& data, const float* query,
                                uint32_t kv_head, bool is_first_of_row) {
  const uint32_t rank = RankOf(c);
  std::vector<double> head(query, query + kHeadDim);
  double sum = 0.0;
  for (const double value : head) sum += value * value;
  for (uint32_t i = 0; i < kHeadDim; ++i) head[i] *= data.norm[i] / std::sqrt(sum / kHeadDim + kEpsilon);
  for (uint32_t i = 0; i < kRotaryDim; i += 2) {
    const double a = head[i];
    head[i] = a * data.angles[i] - head[i + 1] * data.angles[i + 1];
    head[i + 1] = a * data.angles[i + 1] + head[i + 1] * data.angles[i];
  }
  std::vector<double> z(rank);
  for (uint32_t i = 0; i < kHeadDim; ++i) {
    const uint32_t k = kv_head * kHeadDim + i;
    if (c.query_form == QueryForm::kSigned) z[head[i] > 0 ? k : k + rank / 2] = head[i];
    for (uint32_t r = 0; r < rank && c.query_form != QueryForm::kSigned; ++r) {
      z[r] += head[i] * data.side[k * rank + r];
    }
  }
  if (c.query_form == QueryForm::kAffine && is_first_of_row) {
    for (uint32_t r = 0; r < rank; ++r) z[r] += data.side[c.n_kv_heads * kHeadDim * rank + r];
  }
  for (uint32_t r = 0; r < rank; ++r) z[r] *= data.scales[r] / std::sqrt(kHeadDim);
  return z;
}

// Rows of an index that are scored by their first n_columns; of each n_joined one after another scores are
// joined.
struct Scored {
  std::vector<float> values;
  uint32_t n_columns = 0;
  uint32_t n_joined = 1;
};

// Scores of every list, one list after another.
std::vector<double> ExpectedScores(const ScoreCase& c, const QueryData& data, const Scored& scored,
                                   const ScorePlace& place) {
  const uint32_t heads = c.n_heads / place.n_rows;  // of a row
  const size_t n_entries = scored.values.size() / RankOf(c);
  const double factor = c.reduction == HeadReduction::kGqa ? 1.0 / heads : 1.0;
  std::vector<double> totals(size_t{place.n_lists} * n_entries);
  for (uint32_t row = 0; row < place.n_rows; ++row) {
    std::vector<double> scores(n_entries);
    for (uint32_t h = row * heads; h < (row + 1) * heads; ++h) {
      const std::vector<double> z = ProjectHead(c, data, &data.query[size_t{h} * kHeadDim],
                                                h * c.n_kv_heads / c.n_heads, h == row * heads);
      for (size_t i = 0; i < scored.values.size(); ++i) {
        if (i % z.size() < scored.n_columns)
          scores[i / z.size()] += factor * z[i % z.size()] * scored.values[i];
      }
    }
    if (c.reduction != HeadReduction::kSum) {
      const double largest = *std::max_element(scores.begin(), scores.end());
      for (double& score : scores) score = std::exp(score - largest);
      const double sum = std::accumulate(scores.begin(), scores.end(), 0.0);
      for (double& score : scores) score /= sum;
    }
    const size_t list = row / (place.n_rows / place.n_lists);
    for (size_t e = 0; e < n_entries; ++e) totals[list * n_entries + e] += scores[e];
  }
  std::vector<double> joined;
  for (size_t e = 0; e < totals.size(); e += scored.n_joined) {
    const std::span<const double> one(&totals[e], scored.n_joined);
    joined.push_back(GroupScoreOf(c.rule) == GroupScore::kMass ? std::accumulate(one.begin(), one.end(), 0.0)
                                                               : *std::max_element(one.begin(), one.end()));
  }
  return joined;
}

// Of the first of two stages.
std::vector<double> FirstScores(ScoreCase c, const QueryData& data, const Scored& scored) {
  const bool is_sum = c.reduction == HeadReduction::kSum;
  if (!is_sum) c.reduction = HeadReduction::kGqa;
  return ExpectedScores(c, data, scored, {.n_rows = is_sum ? 1 : c.n_kv_heads, .n_lists = 1});
}

// The pinned group, and then the others, best first.
std::vector<uint32_t> ExpectedOrder(std::span<const float> scores) {
  std::vector<uint32_t> groups(scores.size());
  std::iota(groups.begin(), groups.end(), 0U);
  std::stable_sort(groups.begin() + 1, groups.end(),
                   [&](uint32_t a, uint32_t b) { return scores[a] > scores[b]; });
  return groups;
}

// The choice as it follows from the scores that the device found, of n groups.
std::vector<uint32_t> ExpectedChoice(std::span<const float> scores, uint32_t n) {
  std::vector<uint32_t> groups = ExpectedOrder(scores);
  groups.resize(n);
  std::sort(groups.begin(), groups.end());
  return groups;
}

uint32_t WeightOf(uint32_t group) { return group % 5; }

std::vector<float> WeightsOfLists(uint32_t n_lists) {
  std::vector<float> words(size_t{n_lists} * kGroups);
  for (size_t i = 0; i < words.size(); ++i)
    words[i] = std::bit_cast<float>(WeightOf(static_cast<uint32_t>(i % kGroups)));
  return words;
}

// The pinned group, and the best of the others that weigh anything, until they would weigh too much.
bool IsExpectedByWeight(const ChooseByWeight& rule, std::span<const float> scores,
                        std::span<const uint32_t> chosen) {
  std::vector<uint32_t> expected = {0};
  uint32_t weight = 0;
  std::vector<float> values(scores.begin(), scores.end());
  for (uint32_t group = 0; rule.per_weight && group < values.size(); ++group)
    values[group] /= static_cast<float>(std::max(WeightOf(group), 1U));
  for (const uint32_t group : ExpectedOrder(values)) {
    if (group == 0 || WeightOf(group) == 0) continue;
    weight += WeightOf(group);
    if (weight > rule.most_weight) break;
    expected.push_back(group);
  }
  std::sort(expected.begin(), expected.end());
  return chosen[0] == expected.size() && std::equal(expected.begin(), expected.end(), chosen.begin() + 1);
}

bool IsExpectedChoice(const ScoreCase& c, std::span<const float> scores, std::span<const uint32_t> chosen) {
  if (const auto* by_weight = std::get_if<ChooseByWeight>(&c.rule))
    return IsExpectedByWeight(*by_weight, scores, chosen);
  const uint32_t n = chosen[0];
  if (n < 2 || n > kChosen) return false;
  const std::vector<uint32_t> groups = ExpectedChoice(scores, n);
  if (!std::equal(groups.begin(), groups.end(), chosen.begin() + 1)) return false;
  const float share = MassShareOf(c.rule);
  if (share == 0.0F) return n == kChosen;
  constexpr double kTolerance = 1e-4;
  const double enough = share * std::accumulate(scores.begin(), scores.end(), 0.0);
  double sum = 0.0;
  float worst = scores[groups[1]];
  for (const uint32_t group : groups) {
    sum += scores[group];
    if (group != 0) worst = std::min(worst, scores[group]);
  }
  return (n == kChosen || sum >= enough * (1 - kTolerance)) &&
         (n == 2 || sum - worst < enough * (1 + kTolerance));
}

// Ascending groups with the pinned one, and none for which a better one was left out.
bool AreExpectedCandidates(std::span<const double> scores, std::span<const uint32_t> candidates,
                           double tolerance) {
  std::vector<bool> is_candidate(scores.size());
  for (size_t i = 0; i < candidates.size(); ++i) {
    if (candidates[i] >= scores.size() || (i > 0 && candidates[i] <= candidates[i - 1])) return false;
    is_candidate[candidates[i]] = true;
  }
  double worst = std::numeric_limits<double>::infinity();
  double best_left_out = -worst;
  for (size_t group = 1; group < scores.size(); ++group) {
    if (is_candidate[group]) worst = std::min(worst, scores[group]);
    if (!is_candidate[group]) best_left_out = std::max(best_left_out, scores[group]);
  }
  const double largest = std::abs(*std::max_element(
      scores.begin(), scores.end(), [](double a, double b) { return std::abs(a) < std::abs(b); }));
  return is_candidate[0] && worst >= best_left_out - 2 * tolerance * largest;
}

// All groups that can be chosen.
std::vector<uint32_t> OldGroups() {
  std::vector<uint32_t> groups(kOldGroups);
  std::iota(groups.begin(), groups.end(), 0U);
  return groups;
}

// A choice of `groups` as places among them; of what is not there, none.
std::vector<uint32_t> AsPlaces(std::span<const uint32_t> choice, std::span<const uint32_t> groups) {
  std::vector<uint32_t> places(choice.begin(), choice.end());
  for (uint32_t i = 1; i <= choice[0] && i < choice.size(); ++i) {
    const auto at = std::lower_bound(groups.begin(), groups.end(), choice[i]);
    if (at == groups.end() || *at != choice[i]) return {0};
    places[i] = static_cast<uint32_t>(at - groups.begin());
  }
  return places;
}

// The rows of `groups`.
std::vector<float> RowsOf(const IndexData& index, const ScoreCase& c, std::span<const uint32_t> groups) {
  const size_t per_group = size_t{ScoreArgsOf(c).index_shape.rows()} * RankOf(c);
  std::vector<float> rows;
  for (const uint32_t group : groups) {
    const auto begin = index.values.begin() + static_cast<std::ptrdiff_t>(group * per_group);
    rows.insert(rows.end(), begin, begin + static_cast<std::ptrdiff_t>(per_group));
  }
  return rows;
}

bool TellsScores(const ChoiceList& shape, std::span<const float> scores, std::span<const uint32_t> choice) {
  for (uint32_t i = 0; i < choice[0]; ++i) {
    if (choice[shape.scores_begin() + i] != std::bit_cast<uint32_t>(scores[choice[1 + i]])) return false;
  }
  return true;
}

// The probability with which a group was drawn, by its bias.
double ProbabilityOf(uint32_t bias) { return std::exp(-double{std::bit_cast<float>(bias)}); }

// The groups' probabilities are in proportion to the roots of their scores, as one of those drawn says; and
// running sums of them, cut from an offset on, give what was drawn.
bool IsExpectedSample(const ChooseAndSample& rule, uint32_t list, std::span<const float> scores,
                      std::span<const uint32_t> choice) {
  constexpr double kLeast = 1.0 / 1024;
  constexpr double kTolerance = 0.02;
  const ChoiceList shape = ChoiceListOf(rule, kChosen);
  const auto chosen = choice.subspan(1, choice[0]);
  const auto sampled = choice.subspan(shape.sampled_begin());
  const auto biases = choice.subspan(shape.biases_begin());
  const uint32_t n = sampled[0];
  if (n == 0 || n > shape.most_sampled()) return false;
  double factor = 0.0;
  for (uint32_t i = 0; i < n; ++i) {
    if (sampled[1 + i] >= scores.size() || (i > 0 && sampled[1 + i] <= sampled[i])) return false;
    const double p = ProbabilityOf(biases[i]);
    if (p < 0.99 && p > 4 * kLeast) factor = p / std::sqrt(scores[sampled[1 + i]]);
  }
  double sum = 0.0;
  uint32_t drawn = 0;
  const double offset = SampleOffset(rule.seed, kPosition, list) / double{KVRUN_SAMPLE_UNIT};
  for (uint32_t group = 0; group < scores.size(); ++group) {
    if (std::binary_search(chosen.begin(), chosen.end(), group)) continue;
    const double p = std::clamp(factor * std::sqrt(double{scores[group]}), kLeast, 1.0);
    sum += p;
    if (drawn < n && sampled[1 + drawn] == group) {
      if (std::abs(ProbabilityOf(biases[drawn]) - p) > kTolerance * p) return false;
      if (std::abs(offset + drawn - (sum - p / 2)) > p / 2 + kTolerance) return false;
      ++drawn;
    }
  }
  return drawn == n && std::abs(sum - shape.n_sampled) <= kTolerance * shape.n_sampled &&
         offset + n > sum - kTolerance;
}

// What a list has chosen, and what comes with that, by the scores that the device found. `choice` may be
// short where it is of groups that are no candidates.
Status CheckChoice(const ScoreCase& c, uint32_t list, std::span<const float> scores,
                   std::span<const uint32_t> choice) {
  const ChoiceList shape = ChoiceListOf(c.rule, kChosen);
  if (!IsExpectedChoice(c, scores, choice.first(std::min<size_t>(choice.size(), 1 + kChosen)))) {
    return {StatusCode::kDevice,
            "the chosen groups are not those with the largest scores; the driver or the kernel is wrong"};
  }
  if (shape.tells_scores && !TellsScores(shape, scores, choice)) {
    return {StatusCode::kDevice,
            "the scores that are told of chosen groups are not theirs; the driver or the kernel is wrong"};
  }
  const auto* const and_sample = std::get_if<ChooseAndSample>(&c.rule);
  if (and_sample != nullptr && !IsExpectedSample(*and_sample, list, scores, choice)) {
    return {
        StatusCode::kDevice,
        "the groups that were drawn are not those of their probabilities; the driver or the kernel is wrong"};
  }
  return Status::Ok();
}

}  // namespace

ScoreArgs ScoreArgsOf(const ScoreCase& c) {
  ScoreArgs args;
  args.attention.kv_shape.n_kv_heads = c.n_kv_heads;
  args.attention.kv_shape.head_dim = kHeadDim;
  args.attention.n_heads = c.n_heads;
  args.attention.n_tokens = 1;
  args.attention.norm_epsilon = kEpsilon;
  args.attention.rotary_dim = kRotaryDim;
  args.index_shape = {c.type, RankOf(c), kGroupTokens, kGroups, 1, c.rows_per_group};
  args.reduction = c.reduction;
  args.window_tokens = kWindow;
  args.n_pinned = 1;
  args.n_chosen = kChosen;
  args.rule = c.rule;
  args.query_form = c.query_form;
  return args;
}

Result<std::string> CheckScore(Device& device, const ScoreCase& c, const ScorePlace& place,
                               double tolerance) {
  SelfTestRun run(device);
  const QueryData data = MakeQuery(c);
  ScoreArgs args = ScoreArgsOf(c);
  const IndexData index = MakeIndex(args.index_shape);
  args.query = run.Floats(data.query);
  const StepToken token{.id = 0, .position = kPosition, .sequence = 0, .output_row = 0};
  args.attention.step = run.Step({&token, 1});
  args.attention.angles = run.Floats(data.angles);
  args.attention.norms = run.Floats(data.norm);
  args.sides.are_halves = c.query_form == QueryForm::kProjected;
  if (c.query_form == QueryForm::kProjected) args.sides.query_side = run.Halves(data.side);
  if (c.query_form == QueryForm::kAffine) args.sides.query_side = run.Floats(data.side);
  args.sides.scales = run.Floats(data.scales);
  args.index = run.Floats(index.words);
  if (auto* by_weight = std::get_if<ChooseByWeight>(&args.rule))
    by_weight->weights = run.Floats(WeightsOfLists(place.n_lists));
  args.scratch = run.Poisoned(place.scratch_floats);
  const size_t list_words = args.choice_list().words();
  args.chosen = run.Poisoned(place.n_lists * list_words);
  run.Run([&](CommandList& list) { return list.ScoreAndSelect(args); });
  KVRUN_RETURN_IF_ERROR(run.status());

  std::vector<float> scratch(place.scratch_floats);
  std::memcpy(scratch.data(), run.Bytes(args.scratch, scratch.size() * sizeof(float)).data(),
              scratch.size() * sizeof(float));
  std::vector<uint32_t> chosen(place.n_lists * list_words);
  std::memcpy(chosen.data(), run.Bytes(args.chosen, chosen.size() * sizeof(uint32_t)).data(),
              chosen.size() * sizeof(uint32_t));
  const uint32_t group_rows = args.index_shape.rows();
  std::vector<uint32_t> groups = OldGroups();
  const ScoreStages* const stages = StagesOf(c.rule);
  if (stages != nullptr) {
    std::vector<uint32_t> candidates(stages->n_candidates);
    std::memcpy(candidates.data(), &scratch[place.candidates_begin], candidates.size() * sizeof(uint32_t));
    const Scored by_few{RowsOf(index, c, groups), stages->first_columns, group_rows};
    if (!AreExpectedCandidates(FirstScores(c, data, by_few), candidates, tolerance)) {
      return Status(
          StatusCode::kDevice,
          "the candidates are not the groups with the largest scores of the first stage; the driver "
          "or the kernel is wrong");
    }
    groups = std::move(candidates);
  }
  std::vector<float> found;
  for (uint32_t list = 0; list < place.n_lists; ++list) {
    const auto scores =
        std::span(scratch).subspan(place.scores_begin + size_t{list} * place.scores_stride, groups.size());
    found.insert(found.end(), scores.begin(), scores.end());
    std::vector<uint32_t> choice(chosen.begin() + static_cast<std::ptrdiff_t>(list * list_words),
                                 chosen.begin() + static_cast<std::ptrdiff_t>((list + 1) * list_words));
    if (stages != nullptr) choice = AsPlaces(choice, groups);
    KVRUN_RETURN_IF_ERROR(CheckChoice(c, list, scores, choice));
  }
  const Scored rows{RowsOf(index, c, groups), RankOf(c), group_rows};
  return run.Compare(ExpectedScores(c, data, rows, place), found, tolerance);
}

Result<std::string> CheckProjectKeys(Device& device, KvType type) {
  const KvShape kv{type, 1, 2, kHeadDim, 50};
  constexpr uint32_t kFirst = 3;
  constexpr uint32_t kTokens = 40;
  constexpr uint32_t kDims = 2 * kHeadDim;
  SelfTestRun run(device);
  std::vector<float> values = RandomFloats(kv.size_bytes() / KvElementBytes(type), 20);
  std::vector<float> stored = values;
  if (type == KvType::kF16) {
    std::vector<uint16_t> halves(values.size());
    std::transform(values.begin(), values.end(), halves.begin(), FloatToHalf);
    std::transform(halves.begin(), halves.end(), values.begin(), HalfToFloat);
    stored.resize(values.size() / 2);
    std::memcpy(stored.data(), halves.data(), kv.size_bytes());
  }
  const std::vector<float> side = RoundedToHalf(RandomFloats(size_t{kDims} * kRank, 21));
  const std::vector<float> bias = RandomFloats(kRank, 22);
  std::vector<double> expected;
  for (uint32_t i = 0; i < kTokens * kRank; ++i) {
    double sum = -bias[i % kRank];
    for (uint32_t k = 0; k < kDims; ++k) {
      const size_t row = size_t{k / kHeadDim} * 2 * kv.n_ctx + kFirst + i / kRank;
      sum += double{values[row * kHeadDim + k % kHeadDim]} * side[k * kRank + i % kRank];
    }
    expected.push_back(sum);
  }
  Buffer* out = run.Poisoned(expected.size());
  const Buffer* buffer = run.Floats(stored);
  const bool are_halves = kv.type == KvType::kF16;
  const IndexSides sides{.are_halves = are_halves,
                         .query_side = nullptr,
                         .key_side = are_halves ? run.Halves(side) : run.Floats(side),
                         .bias = run.Floats(bias),
                         .scales = nullptr};
  run.Run(
      [&](CommandList& list) { return list.ProjectKeys(*buffer, kv, kFirst, kTokens, sides, kRank, out); });
  return run.Compare(expected, out, 1e-4);
}

Result<std::string> CheckGram(Device& device, uint32_t dim) {
  constexpr uint32_t kRows = 40;
  SelfTestRun run(device);
  const std::vector<float> rows = RandomFloats(size_t{kRows} * dim, 23);
  std::vector<double> expected(size_t{dim + 1} * dim, 1.0);
  for (size_t row = 0; row < kRows; ++row) {
    const float* v = &rows[row * dim];
    for (size_t j = 0; j < dim; ++j) {
      for (size_t i = 0; i < dim; ++i) expected[i * dim + j] += double{v[i]} * v[j];
      expected[dim * dim + j] += v[j];
    }
  }
  GramArgs args;
  args.rows = run.Floats(rows);
  args.n_rows = kRows;
  args.row_stride = args.dim = dim;
  args.sums = run.Floats(std::vector<float>(expected.size(), 1.0F));
  run.Run([&](CommandList& list) { return list.AccumulateGram(args); });
  return run.Compare(expected, args.sums, 1e-4);
}

}  // namespace kvrun
