#include "tests/support/index_reference.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "runtime/model/tensor_type.h"

namespace kvrun::testing {
namespace {

// Rows of z [n_rows, rank] of one token, and the same of magnitudes.
struct Projected {
  std::vector<double> z;
  std::vector<double> magnitudes;
};

double ScaleOf(const ScoreReferenceArgs& args) {
  return ScoreReference(1.0, args.attention.kv_shape.head_dim, args.attention.score_scale, 0.0F);
}

std::vector<double> RotatedQuery(const ScoreReferenceArgs& args) {
  // K and V are not there: only the heads of Q are normalised and rotated.
  AttentionReferenceArgs attention = args.attention;
  attention.kv_shape.n_kv_heads = 0;
  std::vector<double> query(args.query.begin(), args.query.end());
  RopeAndStoreReference(attention, query, {});
  return query;
}

// Each row the sum of `count` rows, times `factor`.
std::vector<double> AddRows(std::span<const double> rows, uint32_t rank, uint32_t count, double factor) {
  std::vector<double> out(rows.size() / count);
  for (size_t i = 0; i < rows.size(); ++i) out[i / rank / count * rank + i % rank] += rows[i] * factor;
  return out;
}

// QueryForm::kSigned: rows of z of every `heads` query heads' sum.
Projected SignToken(const ScoreReferenceArgs& args, std::span<const double> query, uint32_t sequence,
                    uint32_t heads) {
  const uint32_t rank = args.shape.rank;
  const uint32_t head_dim = args.attention.kv_shape.head_dim;
  const uint32_t rows_of_kv_head = args.attention.n_heads / args.attention.kv_shape.n_kv_heads / heads;
  std::vector<double> magnitudes(query.begin(), query.end());
  for (double& value : magnitudes) value = std::abs(value);
  const std::vector<double> sums = AddRows(query, head_dim, heads, 1.0);
  magnitudes = AddRows(magnitudes, head_dim, heads, 1.0);
  const size_t n_rows = sums.size() / head_dim;
  Projected out{std::vector<double>(n_rows * rank), std::vector<double>(n_rows * rank)};
  for (size_t i = 0; i < sums.size(); ++i) {
    const size_t row = i / head_dim;
    size_t column = row / rows_of_kv_head * head_dim + i % head_dim;
    if (sums[i] < 0) column += rank / 2;
    const double scale = args.scales[size_t{sequence} * rank + column] * ScaleOf(args);
    out.z[row * rank + column] = sums[i] * scale;
    out.magnitudes[row * rank + column] = magnitudes[i] * scale;
  }
  return out;
}

Projected ProjectToken(const ScoreReferenceArgs& args, std::span<const double> query, uint32_t sequence) {
  const uint32_t rank = args.shape.rank;
  const uint32_t n_heads = args.attention.n_heads;
  const uint32_t head_dim = args.attention.kv_shape.head_dim;
  const uint32_t group = n_heads / args.attention.kv_shape.n_kv_heads;
  Projected out{std::vector<double>(size_t{n_heads} * rank), std::vector<double>(size_t{n_heads} * rank)};
  for (uint32_t h = 0; h < n_heads; ++h) {
    for (uint32_t r = 0; r < rank; ++r) {
      const double scale = args.scales[size_t{sequence} * rank + r] * ScaleOf(args);
      for (uint32_t i = 0; i < head_dim; ++i) {
        const double product = query[size_t{h} * head_dim + i] *
                               args.query_side[(size_t{h / group} * head_dim + i) * rank + r] * scale;
        out.z[size_t{h} * rank + r] += product;
        out.magnitudes[size_t{h} * rank + r] += std::abs(product);
      }
    }
  }
  return out;
}

// QueryForm::kAffine: query_side's last row, added to every row of z.
void AddLastRow(const ScoreReferenceArgs& args, uint32_t sequence, Projected* projected) {
  const uint32_t rank = args.shape.rank;
  const auto last = args.query_side.last(rank);
  for (size_t i = 0; i < projected->z.size(); ++i) {
    const double scale = args.scales[size_t{sequence} * rank + i % rank] * ScaleOf(args);
    projected->z[i] += last[i % rank] * scale;
    projected->magnitudes[i] += std::abs(last[i % rank] * scale);
  }
}

void Softmax(std::span<double> scores) {
  const double largest = *std::max_element(scores.begin(), scores.end());
  double sum = 0.0;
  for (double& score : scores) sum += score = std::exp(score - largest);
  for (double& score : scores) score /= sum;
}

// What of one token is scored: rows of the index, how many of these one after another make a score together,
// and by how many of their columns. by_means: by one row of each KV head.
struct ScoredToken {
  std::vector<uint32_t> rows;
  uint32_t per_score = 1;
  uint32_t n_columns = 0;
  bool by_means = false;
};

uint32_t ChoosableGroupsOf(const ScoreReferenceArgs& args, const StepToken& token) {
  const uint32_t group_tokens = args.shape.group_tokens;
  return ChoosableEntriesReference(token.position, args.window_tokens, group_tokens) / group_tokens;
}

ScoredToken RowsOfGroups(const ScoreReferenceArgs& args, std::span<const uint32_t> groups) {
  ScoredToken scored{.rows = {}, .per_score = args.shape.rows(), .n_columns = args.shape.rank};
  for (const uint32_t group : groups) {
    for (uint32_t row = 0; row < args.shape.rows(); ++row)
      scored.rows.push_back(group * args.shape.rows() + row);
  }
  return scored;
}

std::vector<uint32_t> GroupsBelow(uint32_t n) {
  std::vector<uint32_t> groups(n);
  std::iota(groups.begin(), groups.end(), 0U);
  return groups;
}

// Of one token: the z rows' scores of every entry (a row of the index), then their sums in
// each list, then the groups' maxima.
void ScoreToken(const ScoreReferenceArgs& args, uint32_t sequence, const Projected& projected,
                const ScoredToken& scored, std::span<GroupScores> lists) {
  const IndexShape& shape = args.shape;
  const size_t n_entries = scored.rows.size();
  const size_t n_rows = projected.z.size() / shape.rank;
  std::vector<double> totals(lists.size() * n_entries);
  for (size_t row = 0; row < n_rows && n_entries != 0; ++row) {
    const size_t list = row * lists.size() / n_rows;
    std::vector<double> scores(n_entries);
    for (size_t entry = 0; entry < n_entries; ++entry) {
      double magnitude = 0.0;
      for (uint32_t r = 0; r < scored.n_columns; ++r) {
        const double value = IndexValue(args.index, shape, sequence, scored.rows[entry], r);
        scores[entry] += projected.z[row * shape.rank + r] * value;
        magnitude += projected.magnitudes[row * shape.rank + r] * std::abs(value);
      }
      lists[list].magnitude = std::max(lists[list].magnitude, magnitude);
    }
    if (args.reduction != HeadReduction::kSum) Softmax(scores);
    for (size_t entry = 0; entry < n_entries; ++entry) totals[list * n_entries + entry] += scores[entry];
  }
  for (size_t list = 0; list < lists.size(); ++list) {
    for (size_t entry = 0; entry < n_entries; entry += scored.per_score) {
      const auto begin = totals.begin() + static_cast<std::ptrdiff_t>(list * n_entries + entry);
      if (args.group_score == GroupScore::kMass) {
        lists[list].scores.push_back(std::accumulate(begin, begin + scored.per_score, 0.0));
        continue;
      }
      lists[list].scores.push_back(*std::max_element(begin, begin + scored.per_score));
    }
  }
}

// The lists of all tokens, of each what scored_of(token) says.
template <typename ScoredOf>
std::vector<GroupScores> ScoreAll(const ScoreReferenceArgs& args, const ScoredOf& scored_of) {
  const std::vector<double> query = RotatedQuery(args);
  const uint32_t n_kv_heads = args.attention.kv_shape.n_kv_heads;
  const uint32_t n_heads = args.attention.n_heads;
  const size_t n_lists = args.reduction == HeadReduction::kPerKvHead ? n_kv_heads : 1;
  std::vector<GroupScores> lists(args.attention.tokens.size() * n_lists);
  for (size_t t = 0; t < args.attention.tokens.size(); ++t) {
    const StepToken& token = args.attention.tokens[t];
    const size_t stride = query.size() / args.attention.tokens.size();
    uint32_t count = 1;
    double factor = 1.0;
    if (args.reduction == HeadReduction::kSum) count = n_heads;
    if (args.reduction == HeadReduction::kGqa) {
      count = n_heads / n_kv_heads;
      factor = 1.0 / count;
    }
    const auto of_token = std::span(query).subspan(t * stride, stride);
    Projected projected;
    if (args.query_form != QueryForm::kSigned) {
      projected = ProjectToken(args, of_token, token.sequence);
    } else {
      // The mean's signs, but each head's own where heads are summed.
      const uint32_t heads = args.reduction == HeadReduction::kGqa ? count : 1;
      projected = SignToken(args, of_token, token.sequence, heads);
      count /= heads;
    }
    projected.z = AddRows(projected.z, args.shape.rank, count, factor);
    projected.magnitudes = AddRows(projected.magnitudes, args.shape.rank, count, factor);
    if (args.query_form == QueryForm::kAffine) AddLastRow(args, token.sequence, &projected);
    const ScoredToken scored = scored_of(t);
    if (scored.by_means && args.reduction == HeadReduction::kSoftmax) {
      const uint32_t group = n_heads / n_kv_heads;
      projected.z = AddRows(projected.z, args.shape.rank, group, 1.0 / group);
      projected.magnitudes = AddRows(projected.magnitudes, args.shape.rank, group, 1.0 / group);
    }
    ScoreToken(args, token.sequence, projected, scored, std::span(lists).subspan(t * n_lists, n_lists));
  }
  return lists;
}

}  // namespace

float IndexValue(std::span<const uint32_t> index, const IndexShape& shape, uint32_t sequence, uint32_t row,
                 uint32_t column) {
  const uint32_t bits = KvElementBits(shape.type);
  const size_t group = size_t{sequence} * shape.n_groups + row / shape.rows();
  const size_t bit = (size_t{row % shape.rows()} * shape.rank + column) * bits;
  const uint32_t word = index[group * shape.group_words() + bit / 32] >> (bit % 32);
  if (shape.type == KvType::kF16) return HalfToFloat(static_cast<uint16_t>(word));
  const auto code = static_cast<int32_t>(word & ((1U << bits) - 1));
  return static_cast<float>(code >= 1 << (bits - 1) ? code - (1 << bits) : code);
}

uint32_t ChoosableEntriesReference(uint32_t position, uint32_t window_tokens, uint32_t group_tokens) {
  const uint32_t n = position + 1;
  return n > window_tokens ? (n - window_tokens) / group_tokens * group_tokens : 0;
}

std::vector<GroupScores> ScoreGroupsReference(const ScoreReferenceArgs& args) {
  const std::vector<std::vector<uint32_t>> all(args.attention.tokens.size());
  return ScoreCandidatesReference(args, all);
}

std::vector<GroupScores> ScoreFirstReference(const ScoreReferenceArgs& args, uint32_t first_columns) {
  return ScoreAll(args, [&](size_t t) {
    ScoredToken scored = RowsOfGroups(args, GroupsBelow(ChoosableGroupsOf(args, args.attention.tokens[t])));
    scored.n_columns = first_columns;
    scored.by_means = true;
    return scored;
  });
}

std::vector<GroupScores> ScoreCandidatesReference(
    const ScoreReferenceArgs& args, std::span<const std::vector<uint32_t>> candidates_of_token) {
  return ScoreAll(args, [&](size_t t) {
    if (!candidates_of_token[t].empty()) return RowsOfGroups(args, candidates_of_token[t]);
    return RowsOfGroups(args, GroupsBelow(ChoosableGroupsOf(args, args.attention.tokens[t])));
  });
}

std::vector<uint32_t> SelectGroupsReference(std::span<const float> scores, uint32_t n_pinned,
                                            uint32_t n_chosen) {
  std::vector<uint32_t> groups(scores.size());
  std::iota(groups.begin(), groups.end(), 0U);
  std::stable_sort(groups.begin(), groups.end(), [&](uint32_t a, uint32_t b) {
    const bool is_a_pinned = a < n_pinned;
    const bool is_b_pinned = b < n_pinned;
    if (is_a_pinned || is_b_pinned) return is_a_pinned && !is_b_pinned;
    return scores[a] > scores[b];
  });
  groups.resize(std::min<size_t>(groups.size(), n_chosen));
  std::sort(groups.begin(), groups.end());
  return groups;
}

std::vector<uint32_t> SelectWeightedReference(std::span<const float> scores,
                                              std::span<const uint32_t> weights, uint32_t n_pinned,
                                              uint32_t most_weight, bool per_weight) {
  std::vector<float> values(scores.begin(), scores.end());
  std::vector<uint32_t> order;
  for (uint32_t group = n_pinned; group < scores.size(); ++group) {
    if (weights[group] == 0) continue;
    order.push_back(group);
    if (per_weight) values[group] /= static_cast<float>(weights[group]);
  }
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return values[a] > values[b]; });
  std::vector<uint32_t> groups(std::min<size_t>(n_pinned, scores.size()));
  std::iota(groups.begin(), groups.end(), 0U);
  uint64_t weight = 0;
  for (const uint32_t group : order) {
    weight += weights[group];
    if (weight > most_weight) break;
    groups.push_back(group);
  }
  std::sort(groups.begin(), groups.end());
  return groups;
}

ChosenMass ChosenMassReference(std::span<const double> scores, uint32_t n_pinned,
                               std::span<const uint32_t> chosen) {
  const double all = std::accumulate(scores.begin(), scores.end(), 0.0);
  double sum = 0.0;
  double worst = std::numeric_limits<double>::infinity();
  ChosenMass mass;
  for (const uint32_t group : chosen) {
    sum += scores[group];
    if (group < n_pinned) continue;
    worst = std::min(worst, scores[group]);
    ++mass.n_free;
  }
  mass.share = sum / all;
  mass.without_worst = (sum - worst) / all;
  return mass;
}

::testing::AssertionResult EndsAtMassShare(std::span<const double> scores, uint32_t n_pinned,
                                           uint32_t n_chosen, float mass_share, double tolerance,
                                           std::span<const uint32_t> chosen) {
  const size_t most = std::min<size_t>(scores.size(), n_chosen);
  const size_t least = std::min<size_t>(most, size_t{n_pinned} + 1);
  if (chosen.size() < least || chosen.size() > most) {
    return ::testing::AssertionFailure() << chosen.size() << " groups, not " << least << " to " << most;
  }
  const ChosenMass mass = ChosenMassReference(scores, n_pinned, chosen);
  const bool is_all = chosen.size() == most;
  if (!is_all && (mass_share >= 1.0F || mass.share < mass_share - tolerance)) {
    return ::testing::AssertionFailure()
           << chosen.size() << " of " << most << " groups have only " << mass.share << ", not " << mass_share;
  }
  if (mass.n_free > 1 && mass_share < 1.0F && mass.without_worst >= mass_share + tolerance) {
    return ::testing::AssertionFailure() << "without the worst of " << chosen.size() << " groups they have "
                                         << mass.without_worst << ", and " << mass_share << " is enough";
  }
  return ::testing::AssertionSuccess();
}

std::vector<double> ProjectReference(std::span<const float> rows, uint32_t n_dims,
                                     std::span<const float> key_side, std::span<const float> bias) {
  const size_t rank = bias.size();
  std::vector<double> out(rows.size() / n_dims * rank);
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = -bias[i % rank];
    for (size_t k = 0; k < n_dims; ++k) {
      out[i] += double{rows[i / rank * n_dims + k]} * key_side[k * rank + i % rank];
    }
  }
  return out;
}

std::vector<double> GramReference(const GramArgs& args, std::span<const float> rows) {
  const size_t dim = args.dim;
  std::vector<double> sums((dim + 1) * dim);
  for (size_t row = args.skip_rows; row < args.n_rows; ++row) {
    for (size_t block = 0; block < args.n_blocks; ++block) {
      const float* v = &rows[row * args.row_stride + args.first_column + block * dim];
      for (size_t j = 0; j < dim; ++j) {
        for (size_t i = 0; i < dim; ++i) sums[i * dim + j] += double{v[i]} * v[j];
        sums[dim * dim + j] += v[j];
      }
    }
  }
  return sums;
}

}  // namespace kvrun::testing
