#include "tests/support/scalar_reference.h"

#include <algorithm>
#include <cmath>

namespace kvrun::testing {
namespace {

// Element 0 of an entry of K (plane 0) or V (plane 1), by KvShape.
size_t EntryBegin(const KvShape& kv, uint32_t sequence, uint32_t kv_head, uint32_t plane, uint32_t position) {
  return (((size_t{sequence} * kv.n_kv_heads + kv_head) * 2 + plane) * kv.n_ctx + position) * kv.head_dim;
}

// A windowed layer's KV is a ring.
uint32_t PlaceOf(const AttentionReferenceArgs& args, uint32_t position) {
  return args.window_tokens > 0 ? position % args.kv_shape.n_ctx : position;
}

size_t RowStride(const AttentionReferenceArgs& args) {
  return size_t{args.n_heads + 2 * args.kv_shape.n_kv_heads} * args.kv_shape.head_dim;
}

void NormHead(std::span<double> head, std::span<const float> norm, float epsilon) {
  double sum = 0.0;
  for (const double value : head) sum += value * value;
  const double root = std::sqrt(sum / static_cast<double>(head.size()) + epsilon);
  for (size_t i = 0; i < head.size(); ++i) head[i] = head[i] / root * norm[i];
}

void RotateHead(std::span<double> head, std::span<const float> angles, bool halves) {
  const size_t pairs = angles.size() / 2;
  for (size_t i = 0; i < pairs; ++i) {
    double& a = head[halves ? i : 2 * i];
    double& b = head[halves ? i + pairs : 2 * i + 1];
    const double cosine = angles[2 * i];
    const double sine = angles[2 * i + 1];
    const double first = a * cosine - b * sine;
    b = a * sine + b * cosine;
    a = first;
  }
}

}  // namespace

ReferenceMatrix::ReferenceMatrix(TensorType type, uint32_t columns, std::span<const MatrixSource> sources)
    : n_cols(columns) {
  for (const MatrixSource& source : sources) {
    const size_t begin = values.size();
    values.resize(begin + size_t{source.n_rows} * n_cols);
    DecodeTensor(type, source.data, std::span(values).subspan(begin));
    n_rows += source.n_rows;
  }
}

std::vector<double> EmbedReference(const ReferenceMatrix& table, std::span<const StepToken> tokens,
                                   float scale) {
  std::vector<double> out;
  for (const StepToken& token : tokens) {
    const auto row = std::span(table.values).subspan(size_t{token.id} * table.n_cols, table.n_cols);
    for (const float value : row) out.push_back(double{scale} * value);
  }
  return out;
}

std::vector<double> RmsNormReference(std::span<const float> x, std::span<const float> weight, float epsilon,
                                     uint32_t n_rows, uint32_t n_cols) {
  std::vector<double> out(x.begin(), x.end());
  for (uint32_t r = 0; r < n_rows; ++r) {
    NormHead(std::span(out).subspan(size_t{r} * n_cols, n_cols), weight, epsilon);
  }
  return out;
}

void MatMulReference(const ReferenceMatrix& weight, const MatMulReferenceArgs& args,
                     std::span<double> output) {
  const size_t stride = args.output_stride != 0 ? args.output_stride : weight.n_rows;
  for (size_t t = 0; t < args.n_tokens; ++t) {
    for (size_t r = 0; r < weight.n_rows; ++r) {
      double sum = args.bias.empty() ? 0.0 : args.bias[args.bias_offset + r];
      for (size_t c = 0; c < weight.n_cols; ++c) {
        sum += double{weight.values[r * weight.n_cols + c]} * args.input[t * weight.n_cols + c];
      }
      double& to = output[t * stride + args.output_offset + r];
      to = args.accumulate ? to + sum : sum;
    }
  }
}

void MatMulMagnitudes(const ReferenceMatrix& weight, const MatMulReferenceArgs& args,
                      std::span<const float> before, std::span<double> output) {
  const auto magnitudes = [](std::span<const float> values) {
    std::vector<float> absolute(values.size());
    std::transform(values.begin(), values.end(), absolute.begin(), [](float v) { return std::abs(v); });
    return absolute;
  };
  ReferenceMatrix absolute_weight = weight;
  absolute_weight.values = magnitudes(weight.values);
  const std::vector<float> input = magnitudes(args.input);
  const std::vector<float> bias = magnitudes(args.bias);
  MatMulReferenceArgs absolute_args = args;
  absolute_args.input = input;
  absolute_args.bias = bias;
  std::transform(before.begin(), before.end(), output.begin(), [](float v) { return std::abs(v); });
  MatMulReference(absolute_weight, absolute_args, output);
}

void RopeAndStoreReference(const AttentionReferenceArgs& args, std::span<double> qkv, std::span<double> kv) {
  const KvShape& shape = args.kv_shape;
  const uint32_t n_qk = args.n_heads + shape.n_kv_heads;
  for (size_t t = 0; t < args.tokens.size(); ++t) {
    const StepToken& token = args.tokens[t];
    for (uint32_t h = 0; h < n_qk + shape.n_kv_heads; ++h) {
      const std::span<double> head =
          qkv.subspan(t * RowStride(args) + size_t{h} * shape.head_dim, shape.head_dim);
      if (h < n_qk) {
        if (!args.norms.empty()) {
          NormHead(head, args.norms.subspan(h < args.n_heads ? 0 : shape.head_dim, shape.head_dim),
                   args.norm_epsilon);
        }
        RotateHead(head, args.angles.subspan(t * args.rotary_dim, args.rotary_dim), args.rope_halves);
      }
      if (h < args.n_heads) continue;
      const bool is_value = h >= n_qk;
      const uint32_t kv_head = h - (is_value ? n_qk : args.n_heads);
      const size_t entry =
          EntryBegin(shape, token.sequence, kv_head, is_value ? 1 : 0, PlaceOf(args, token.position));
      std::copy(head.begin(), head.end(), kv.begin() + static_cast<std::ptrdiff_t>(entry));
    }
  }
}

double ScoreReference(double product, uint32_t head_dim, float score_scale, float score_cap) {
  const double score = score_scale != 0.0F ? product * score_scale : product / std::sqrt(head_dim);
  return score_cap > 0.0F ? score_cap * std::tanh(score / score_cap) : score;
}

std::vector<double> AttendReference(const AttentionReferenceArgs& args, std::span<const float> qkv,
                                    std::span<const float> kv) {
  const KvShape& shape = args.kv_shape;
  const uint32_t group = args.n_heads / shape.n_kv_heads;
  std::vector<double> out(args.tokens.size() * args.n_heads * shape.head_dim);
  for (size_t row = 0; row < args.tokens.size() * args.n_heads; ++row) {
    const size_t t = row / args.n_heads;
    const auto head = static_cast<uint32_t>(row % args.n_heads);
    const StepToken& token = args.tokens[t];
    const float* query = &qkv[t * RowStride(args) + size_t{head} * shape.head_dim];
    const uint32_t n_seen = token.position + 1;
    const uint32_t first =
        args.window_tokens > 0 && n_seen > args.window_tokens ? n_seen - args.window_tokens : 0;
    std::vector<double> weights(n_seen);
    double maximum = -INFINITY;
    for (uint32_t p = first; p < n_seen; ++p) {
      const float* key = &kv[EntryBegin(shape, token.sequence, head / group, 0, PlaceOf(args, p))];
      double score = 0.0;
      for (uint32_t i = 0; i < shape.head_dim; ++i) score += double{query[i]} * key[i];
      weights[p] = ScoreReference(score, shape.head_dim, args.score_scale, args.score_cap);
      maximum = std::max(maximum, weights[p]);
    }
    double total = 0.0;
    for (uint32_t p = first; p < n_seen; ++p) total += weights[p] = std::exp(weights[p] - maximum);
    for (uint32_t p = first; p < n_seen; ++p) {
      const float* value = &kv[EntryBegin(shape, token.sequence, head / group, 1, PlaceOf(args, p))];
      for (uint32_t i = 0; i < shape.head_dim; ++i) {
        out[row * shape.head_dim + i] += weights[p] / total * value[i];
      }
    }
  }
  return out;
}

std::vector<double> SwiGluReference(std::span<const float> gate_up, uint32_t n_tokens, uint32_t n_ff) {
  std::vector<double> out;
  for (size_t t = 0; t < n_tokens; ++t) {
    for (size_t i = 0; i < n_ff; ++i) {
      const double gate = gate_up[t * 2 * n_ff + i];
      out.push_back(gate / (1.0 + std::exp(-gate)) * gate_up[(2 * t + 1) * n_ff + i]);
    }
  }
  return out;
}

std::vector<double> GatherRowsReference(std::span<const float> x, std::span<const StepToken> tokens,
                                        uint32_t n_cols) {
  std::vector<double> out;
  for (const StepToken& token : tokens) {
    const auto row = x.subspan(size_t{token.output_row} * n_cols, n_cols);
    out.insert(out.end(), row.begin(), row.end());
  }
  return out;
}

}  // namespace kvrun::testing
