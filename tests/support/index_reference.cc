#include "tests/support/index_reference.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "runtime/model/tensor_type.h"

namespace kvrun::testing {
namespace {

// Rows of z [n_rows, rank] of one token, and the same of magnitudes.
struct Projected {
  std::vector<double> z;
  std::vector<double> magnitudes;
};

std::vector<double> RotatedQuery(const ScoreReferenceArgs& args) {
  // K and V are not there: only the heads of Q are normalised and rotated.
  AttentionReferenceArgs attention = args.attention;
  attention.kv_shape.n_kv_heads = 0;
  std::vector<double> query(args.query.begin(), args.query.end());
  RopeAndStoreReference(attention, query, {});
  return query;
}

Projected ProjectToken(const ScoreReferenceArgs& args, std::span<const double> query, uint32_t sequence) {
  const uint32_t rank = args.shape.rank;
  const uint32_t n_heads = args.attention.n_heads;
  const uint32_t head_dim = args.attention.kv_shape.head_dim;
  const uint32_t group = n_heads / args.attention.kv_shape.n_kv_heads;
  Projected out{std::vector<double>(size_t{n_heads} * rank), std::vector<double>(size_t{n_heads} * rank)};
  for (uint32_t h = 0; h < n_heads; ++h) {
    for (uint32_t r = 0; r < rank; ++r) {
      const double scale = args.scales[size_t{sequence} * rank + r] / std::sqrt(head_dim);
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

// Each row the sum of `count` rows, times `factor`.
std::vector<double> AddRows(std::span<const double> rows, uint32_t rank, uint32_t count, double factor) {
  std::vector<double> out(rows.size() / count);
  for (size_t i = 0; i < rows.size(); ++i) out[i / rank / count * rank + i % rank] += rows[i] * factor;
  return out;
}

void Softmax(std::span<double> scores) {
  const double largest = *std::max_element(scores.begin(), scores.end());
  double sum = 0.0;
  for (double& score : scores) sum += score = std::exp(score - largest);
  for (double& score : scores) score /= sum;
}

// Of one token: the rows' scores of every entry, then their sums in each list, then the groups' maxima.
void ScoreToken(const ScoreReferenceArgs& args, const StepToken& token, const Projected& projected,
                std::span<GroupScores> lists) {
  const IndexShape& shape = args.shape;
  const uint32_t n_entries =
      ChoosableEntriesReference(token.position, args.window_tokens, shape.group_tokens);
  const size_t n_rows = projected.z.size() / shape.rank;
  std::vector<double> totals(lists.size() * n_entries);
  for (size_t row = 0; row < n_rows && n_entries != 0; ++row) {
    const size_t list = row * lists.size() / n_rows;
    std::vector<double> scores(n_entries);
    for (uint32_t entry = 0; entry < n_entries; ++entry) {
      double magnitude = 0.0;
      for (uint32_t r = 0; r < shape.rank; ++r) {
        const double value = IndexValue(args.index, shape, token.sequence, entry, r);
        scores[entry] += projected.z[row * shape.rank + r] * value;
        magnitude += projected.magnitudes[row * shape.rank + r] * std::abs(value);
      }
      lists[list].magnitude = std::max(lists[list].magnitude, magnitude);
    }
    if (args.reduction != HeadReduction::kSum) Softmax(scores);
    for (uint32_t entry = 0; entry < n_entries; ++entry) totals[list * n_entries + entry] += scores[entry];
  }
  for (size_t list = 0; list < lists.size(); ++list) {
    for (uint32_t entry = 0; entry < n_entries; entry += shape.group_tokens) {
      const auto begin = totals.begin() + static_cast<std::ptrdiff_t>(list * n_entries + entry);
      lists[list].scores.push_back(*std::max_element(begin, begin + shape.group_tokens));
    }
  }
}

}  // namespace

float IndexValue(std::span<const uint32_t> index, const IndexShape& shape, uint32_t sequence, uint32_t entry,
                 uint32_t column) {
  const uint32_t bits = KvElementBits(shape.type);
  const size_t group = size_t{sequence} * shape.n_groups + entry / shape.group_tokens;
  const size_t bit = (size_t{entry % shape.group_tokens} * shape.rank + column) * bits;
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
  const std::vector<double> query = RotatedQuery(args);
  const uint32_t n_kv_heads = args.attention.kv_shape.n_kv_heads;
  const uint32_t n_heads = args.attention.n_heads;
  const size_t n_lists = args.reduction == HeadReduction::kPerKvHead ? n_kv_heads : 1;
  std::vector<GroupScores> lists(args.attention.tokens.size() * n_lists);
  for (size_t t = 0; t < args.attention.tokens.size(); ++t) {
    const StepToken& token = args.attention.tokens[t];
    const size_t stride = query.size() / args.attention.tokens.size();
    Projected projected = ProjectToken(args, std::span(query).subspan(t * stride, stride), token.sequence);
    uint32_t count = 1;
    double factor = 1.0;
    if (args.reduction == HeadReduction::kSum) count = n_heads;
    if (args.reduction == HeadReduction::kGqa) {
      count = n_heads / n_kv_heads;
      factor = 1.0 / count;
    }
    projected.z = AddRows(projected.z, args.shape.rank, count, factor);
    projected.magnitudes = AddRows(projected.magnitudes, args.shape.rank, count, factor);
    ScoreToken(args, token, projected, std::span(lists).subspan(t * n_lists, n_lists));
  }
  return lists;
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
