#include "tests/support/layer_reference.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

namespace kvrun::testing {
namespace {

double Sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }
double Silu(double x) { return x * Sigmoid(x); }

double GeluTanh(double x) {
  return x / 2 * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
}

std::vector<double> Normalised(std::span<const float> head, float epsilon) {
  double sum = epsilon;
  for (const float value : head) sum += double{value} * value;
  std::vector<double> out(head.begin(), head.end());
  for (double& value : out) value /= std::sqrt(sum);
  return out;
}

// S: [head_dim (keys), head_dim (values)].
void StepState(std::span<const double> key, std::span<const float> value, double decay, double beta,
               std::span<double> state) {
  const size_t dims = key.size();
  for (double& element : state) element *= decay;
  for (size_t j = 0; j < dims; ++j) {
    double found = 0.0;
    for (size_t i = 0; i < dims; ++i) found += state[i * dims + j] * key[i];
    const double change = beta * (value[j] - found);
    for (size_t i = 0; i < dims; ++i) state[i * dims + j] += key[i] * change;
  }
}

}  // namespace

std::vector<double> GatedUnitReference(Activation activation, std::span<const float> gate_up,
                                       uint32_t n_tokens, uint32_t n_ff) {
  std::vector<double> out;
  for (size_t t = 0; t < n_tokens; ++t) {
    for (size_t i = 0; i < n_ff; ++i) {
      const double gate = gate_up[2 * t * n_ff + i];
      out.push_back((activation == Activation::kSilu ? Silu(gate) : GeluTanh(gate)) *
                    gate_up[(2 * t + 1) * n_ff + i]);
    }
  }
  return out;
}

std::vector<double> SigmoidGateReference(std::span<const float> gate, std::span<const float> values) {
  std::vector<double> out(values.begin(), values.end());
  for (size_t i = 0; i < out.size(); ++i) out[i] *= Sigmoid(gate[i]);
  return out;
}

void CopyReference(std::span<const CopyArgs::Piece> pieces, std::span<const std::byte> from,
                   std::span<std::byte> to) {
  for (const CopyArgs::Piece& piece : pieces) {
    for (size_t i = 0; i < piece.size_bytes; ++i) to[piece.to_bytes + i] = from[piece.from_bytes + i];
  }
}

ChosenExperts ChooseExpertsReference(std::span<const float> logits, uint32_t n_experts, uint32_t n_used) {
  ChosenExperts chosen;
  for (size_t begin = 0; begin < logits.size(); begin += n_experts) {
    const auto row = logits.subspan(begin, n_experts);
    std::vector<uint32_t> order(n_experts);
    std::iota(order.begin(), order.end(), 0U);
    std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return row[a] > row[b]; });
    double sum = 0.0;
    for (uint32_t j = 0; j < n_used; ++j) sum += std::exp(double{row[order[j]]} - row[order[0]]);
    for (uint32_t j = 0; j < n_used; ++j) {
      chosen.ids.push_back(order[j]);
      chosen.weights.push_back(std::exp(double{row[order[j]]} - row[order[0]]) / sum);
    }
  }
  return chosen;
}

void ExpertMatMulReference(const ReferenceMatrix& weight, const ExpertMatMulReferenceArgs& args,
                           std::span<double> output) {
  const size_t n_cols = weight.n_cols;
  const bool is_sum = !args.weights.empty();
  for (size_t use = 0; use < args.ids.size(); ++use) {
    const size_t token = use / args.n_used;
    for (size_t r = 0; r < args.n_rows; ++r) {
      const size_t row = size_t{args.ids[use]} * args.n_rows + r;
      double sum = 0.0;
      for (size_t c = 0; c < n_cols; ++c) {
        sum += double{weight.values[row * n_cols + c]} * args.input[(is_sum ? use : token) * n_cols + c];
      }
      if (is_sum) {
        output[token * args.n_rows + r] += args.weights[use] * sum;
      } else {
        output[use * args.n_rows + r] = sum;
      }
    }
  }
}

std::vector<double> ShortConvolutionReference(const ShortConvolutionReferenceArgs& args,
                                              std::span<double> state) {
  const size_t n = args.n_channels;
  const size_t n_kept = args.n_taps - 1;
  std::vector<double> out;
  for (size_t t = 0; t < args.tokens.size(); ++t) {
    const StepToken& token = args.tokens[t];
    const auto kept = state.subspan(token.sequence * n_kept * n, n_kept * n);
    if (token.position == 0) std::fill(kept.begin(), kept.end(), 0.0);
    const auto row = args.input.subspan(t * args.input_stride);
    for (size_t c = 0; c < n; ++c) {
      const double now = args.is_gated ? double{row[c]} * row[2 * n + c] : row[c];
      double sum = args.taps[c * args.n_taps + n_kept] * now;
      for (size_t i = 0; i < n_kept; ++i) sum += args.taps[c * args.n_taps + i] * kept[i * n + c];
      for (size_t i = 0; i + 1 < n_kept; ++i) kept[i * n + c] = kept[(i + 1) * n + c];
      kept[(n_kept - 1) * n + c] = now;
      if (args.has_silu) sum = Silu(sum);
      out.push_back(args.is_gated ? row[n + c] * sum : sum);
    }
  }
  return out;
}

std::vector<double> DeltaRuleReference(const DeltaRuleReferenceArgs& args, std::span<double> state) {
  const size_t dims = args.head_dim;
  const size_t n_key_heads = args.n_key_heads;
  const size_t n_value_heads = args.n_value_heads;
  std::vector<double> out(args.tokens.size() * n_value_heads * dims);
  for (size_t t = 0; t < args.tokens.size(); ++t) {
    const StepToken& token = args.tokens[t];
    const auto row = args.qkv.subspan(t * (2 * n_key_heads + n_value_heads) * dims);
    const auto gates = args.gates.subspan(t * args.gates_stride);
    for (size_t h = 0; h < n_value_heads; ++h) {
      const size_t key_head = h % n_key_heads;
      const std::vector<double> query = Normalised(row.subspan(key_head * dims, dims), args.epsilon);
      const std::vector<double> key =
          Normalised(row.subspan((n_key_heads + key_head) * dims, dims), args.epsilon);
      const auto of_head = state.subspan((token.sequence * n_value_heads + h) * dims * dims, dims * dims);
      if (token.position == 0) std::fill(of_head.begin(), of_head.end(), 0.0);
      const double alpha = double{gates[args.alpha_offset + h]} + args.constants[n_value_heads + h];
      const double softplus = std::max(alpha, 0.0) + std::log1p(std::exp(-std::abs(alpha)));
      StepState(key, row.subspan((2 * n_key_heads + h) * dims, dims), std::exp(args.constants[h] * softplus),
                Sigmoid(gates[args.beta_offset + h]), of_head);
      for (size_t j = 0; j < dims; ++j) {
        double sum = 0.0;
        for (size_t i = 0; i < dims; ++i) sum += of_head[i * dims + j] * query[i];
        out[(t * n_value_heads + h) * dims + j] = sum / std::sqrt(static_cast<double>(dims));
      }
    }
  }
  return out;
}

std::vector<double> GatedNormReference(const GatedNormReferenceArgs& args) {
  const size_t dims = args.head_dim;
  std::vector<double> out(args.values.begin(), args.values.end());
  for (size_t row = 0; row < out.size() / dims; ++row) {
    const auto values = std::span(out).subspan(row * dims, dims);
    double sum = 0.0;
    for (const double value : values) sum += value * value;
    const double root = std::sqrt(sum / static_cast<double>(dims) + args.epsilon);
    const auto gate = args.gate.subspan(row / args.n_heads * args.gate_stride + args.gate_offset +
                                        row % args.n_heads * dims);
    for (size_t i = 0; i < dims; ++i) values[i] = values[i] / root * args.weight[i] * Silu(gate[i]);
  }
  return out;
}

}  // namespace kvrun::testing
