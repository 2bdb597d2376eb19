#include "runtime/device/self_test_layers.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>
#include <span>
#include <vector>

#include "runtime/device/self_test_data.h"
#include "runtime/device/self_test_operations.h"
#include "runtime/device/self_test_run.h"

namespace kvrun {
namespace {

constexpr float kLayerEpsilon = 1e-3F;

double SigmoidOf(double x) { return 1.0 / (1.0 + std::exp(-x)); }

// Factors of a norm's row.
double NormFactor(std::span<const float> row, float epsilon) {
  double sum = 0.0;
  for (const float value : row) sum += double{value} * value;
  return 1.0 / std::sqrt(sum / static_cast<double>(row.size()) + epsilon);
}

// Rows of the last of a few sequences, at consecutive positions.
constexpr uint32_t kStateSequences = 2;
std::vector<StepToken> TokensFrom(uint32_t position, uint32_t n_tokens) {
  std::vector<StepToken> tokens;
  for (uint32_t t = 0; t < n_tokens; ++t)
    tokens.push_back({.id = 0, .position = position + t, .sequence = kStateSequences - 1, .output_row = 0});
  return tokens;
}

// How a sequence's first rows come in two steps: a prompt's, then another few or one.
struct StateSteps {
  uint32_t first = 0;
  uint32_t second = 0;

  explicit StateSteps(bool of_prompt) : first(of_prompt ? 40 : 1), second(of_prompt ? 2 : 1) {}
  uint32_t count() const { return first + second; }
};

// Of `expected` the first n_first are those of the first step.
Result<std::string> CompareSteps(SelfTestRun& run, std::span<const double> expected, size_t n_first,
                                 const Buffer* first, const Buffer* second) {
  KVRUN_RETURN_IF_ERROR(run.Compare(expected.first(n_first), first, kSelfTestTolerance).status());
  return run.Compare(expected.subspan(n_first), second, kSelfTestTolerance);
}

}  // namespace

Result<std::string> CheckRmsNormThatAdds(Device& device, uint32_t n_cols) {
  constexpr uint32_t kRows = 3;

  SelfTestRun run(device);
  const std::vector<float> x = RandomFloats(size_t{kRows} * n_cols, 1);
  const std::vector<float> weight = RandomFloats(n_cols, 2);
  const std::vector<float> before = RandomFloats(x.size(), 3);
  const RmsNormArgs args{run.Floats(x), run.Floats(weight), kLayerEpsilon, kRows,
                         n_cols,        run.Floats(before), true};
  run.Run([&](CommandList& list) { return list.RmsNorm(args); });
  std::vector<double> expected(before.begin(), before.end());
  for (size_t i = 0; i < x.size(); ++i) {
    const auto row = std::span(x).subspan(i / n_cols * n_cols, n_cols);
    expected[i] += x[i] * weight[i % n_cols] * NormFactor(row, kLayerEpsilon);
  }
  return run.Compare(expected, args.out, kSelfTestTolerance);
}

Result<std::string> CheckGelu(Device& device, uint32_t n_ff) {
  constexpr uint32_t kTokens = 3;
  SelfTestRun run(device);
  std::vector<float> gate_up = RandomFloats(size_t{kTokens} * 2 * n_ff, 1);
  for (float& value : gate_up) value *= 3.0F;
  const GatedUnitArgs args{run.Floats(gate_up), kTokens, n_ff, run.Poisoned(size_t{kTokens} * n_ff),
                           Activation::kGeluTanh};
  run.Run([&](CommandList& list) { return list.GatedUnit(args); });
  std::vector<double> expected;
  for (size_t t = 0; t < kTokens; ++t) {
    for (size_t i = 0; i < n_ff; ++i) {
      const double x = gate_up[t * 2 * n_ff + i];
      const double inner = std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x);
      expected.push_back(x / 2 * (1 + std::tanh(inner)) * gate_up[(t * 2 + 1) * n_ff + i]);
    }
  }
  return run.Compare(expected, args.out, kSelfTestTolerance);
}

Result<std::string> CheckSigmoidGate(Device& device, uint32_t n_cols) {
  constexpr uint32_t kRows = 3;
  SelfTestRun run(device);
  const std::vector<float> gate = RandomFloats(size_t{kRows} * n_cols, 1);
  const std::vector<float> values = RandomFloats(gate.size(), 2);
  const SigmoidGateArgs args{run.Floats(gate), kRows, n_cols, run.Floats(values)};
  run.Run([&](CommandList& list) { return list.SigmoidGate(args); });
  std::vector<double> expected;
  for (size_t i = 0; i < gate.size(); ++i) expected.push_back(values[i] * SigmoidOf(gate[i]));
  return run.Compare(expected, args.values, kSelfTestTolerance);
}

// Of what an operation before it wrote, and what one after it reads.
Result<std::string> CheckCopy(Device& device) {
  constexpr uint32_t kColumns = 100;
  constexpr uint32_t kFrom = 40;
  constexpr uint32_t kCopied = 50;
  SelfTestRun run(device);
  const std::vector<float> values = RandomFloats(kColumns, 1);
  const std::vector<float> gate = RandomFloats(kColumns, 2);
  const Buffer* gates = run.Floats(gate);
  Buffer* from = run.Floats(values);
  Buffer* to = run.Floats(values);
  const CopyArgs copy{from, to, {{kFrom * sizeof(float), 0, kCopied * sizeof(float)}}};
  run.Run([&](CommandList& list) -> Status {
    KVRUN_RETURN_IF_ERROR(list.SigmoidGate({gates, 1, kColumns, from}));
    KVRUN_RETURN_IF_ERROR(list.Copy(copy));
    return list.SigmoidGate({gates, 1, kColumns, to});
  });
  std::vector<double> expected(values.begin(), values.end());
  for (size_t i = 0; i < kCopied; ++i) expected[i] = values[kFrom + i] * SigmoidOf(gate[kFrom + i]);
  for (size_t i = 0; i < kColumns; ++i) expected[i] *= SigmoidOf(gate[i]);
  return run.Compare(expected, to, kSelfTestTolerance);
}

Result<std::string> CheckChooseExperts(Device& device, uint32_t n_experts, uint32_t n_used) {
  constexpr uint32_t kTokens = 3;
  SelfTestRun run(device);
  std::vector<float> logits = RandomFloats(size_t{kTokens} * n_experts, 1);
  logits[1] = logits[0] = 2.0F;  // the lower of equals comes first
  const size_t n_uses = size_t{kTokens} * n_used;
  const ChooseExpertsArgs args{run.Floats(logits),  kTokens, n_experts, n_used, run.Poisoned(n_uses),
                               run.Poisoned(n_uses)};
  run.Run([&](CommandList& list) { return list.ChooseExperts(args); });
  std::vector<double> ids;
  std::vector<double> weights;
  for (size_t t = 0; t < kTokens; ++t) {
    const float* row = &logits[t * n_experts];
    std::vector<uint32_t> order(n_experts);
    for (uint32_t e = 0; e < n_experts; ++e) order[e] = e;
    std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return row[a] > row[b]; });
    double total = 0.0;
    for (uint32_t j = 0; j < n_used; ++j) total += std::exp(double{row[order[j]]});
    for (uint32_t j = 0; j < n_used; ++j) {
      ids.push_back(order[j]);
      weights.push_back(std::exp(double{row[order[j]]}) / total);
    }
  }
  if (!run.status().ok()) return run.Compare({}, args.weights, 0.0);
  std::vector<uint32_t> found(n_uses);
  const std::vector<std::byte> bytes = run.Bytes(args.ids, n_uses * sizeof(uint32_t));
  std::memcpy(found.data(), bytes.data(), bytes.size());
  KVRUN_RETURN_IF_ERROR(run.Compare(ids, std::vector<float>(found.begin(), found.end()), 0.0).status());
  return run.Compare(weights, args.weights, kSelfTestTolerance);
}

Result<std::string> CheckExpertMatMul(Device& device, const ExpertsCase& c, double tolerance) {
  constexpr uint32_t kRows = ExpertsCase::kRows;
  SelfTestRun run(device);
  const size_t n_weights = size_t{ExpertsCase::kExperts} * kRows * c.n_cols;
  const std::vector<std::byte> data = RandomTensor(c.type, n_weights, 1);
  std::vector<float> weights(n_weights);
  DecodeTensor(c.type, data, weights);
  const uint32_t n_uses = c.n_tokens * ExpertsCase::kUsed;
  const uint32_t n_inputs = c.adds_up ? n_uses : c.n_tokens;
  const std::vector<float> input = RandomFloats(size_t{n_inputs} * c.n_cols, 2);
  const std::vector<float> shares = RandomFloats(n_uses, 3);
  std::vector<uint32_t> ids;
  for (uint32_t use = 0; use < n_uses; ++use) ids.push_back((use * use + 4) % ExpertsCase::kExperts);
  std::vector<float> id_bits(n_uses);
  std::memcpy(id_bits.data(), ids.data(), n_uses * sizeof(uint32_t));
  const std::vector<float> before = RandomFloats(size_t{c.adds_up ? c.n_tokens : n_uses} * kRows, 4);
  const ExpertMatMulArgs args{.weight = run.Weights(c.type, ExpertsCase::kExperts * kRows, c.n_cols, data),
                              .input = run.Floats(input),
                              .ids = run.Floats(id_bits),
                              .weights = c.adds_up ? run.Floats(shares) : nullptr,
                              .n_tokens = c.n_tokens,
                              .n_used = ExpertsCase::kUsed,
                              .n_rows = kRows,
                              .output = run.Floats(before)};
  run.Run([&](CommandList& list) { return list.ExpertMatMul(args); });

  std::vector<double> expected(before.begin(), before.end());
  for (size_t use = 0; use < n_uses; ++use) {
    const float* row_input = &input[(c.adds_up ? use : use / ExpertsCase::kUsed) * c.n_cols];
    for (size_t r = 0; r < kRows; ++r) {
      const float* row = &weights[(size_t{ids[use]} * kRows + r) * c.n_cols];
      double sum = 0.0;
      for (size_t i = 0; i < c.n_cols; ++i) sum += double{row[i]} * row_input[i];
      if (c.adds_up) {
        expected[use / ExpertsCase::kUsed * kRows + r] += shares[use] * sum;
      } else {
        expected[use * kRows + r] = sum;
      }
    }
  }
  return run.Compare(expected, args.output, tolerance);
}

Result<std::string> CheckShortConvolution(Device& device, bool of_prompt, bool is_gated) {
  constexpr uint32_t kChannels = 70;
  constexpr uint32_t kTaps = 4;
  const StateSteps steps(of_prompt);
  SelfTestRun run(device);
  const uint32_t stride = (is_gated ? 3 : 1) * kChannels + 2;
  const std::vector<float> input = RandomFloats(size_t{steps.count()} * stride, 1);
  const std::vector<float> taps = RandomFloats(size_t{kChannels} * kTaps, 2);
  const Buffer* tap_buffer = run.Floats(taps);
  Buffer* state = run.Poisoned(size_t{kStateSequences} * (kTaps - 1) * kChannels);
  std::vector<float> found;
  const auto step = [&](uint32_t first, uint32_t n) {
    const auto rows = std::span(input).subspan(size_t{first} * stride, size_t{n} * stride);
    const ShortConvolutionArgs args{.input = run.Floats(rows),
                                    .input_stride = stride,
                                    .taps = tap_buffer,
                                    .state = state,
                                    .step = run.Step(TokensFrom(first, n)),
                                    .n_tokens = n,
                                    .n_channels = kChannels,
                                    .n_taps = kTaps,
                                    .of_prompt = of_prompt,
                                    .is_gated = is_gated,
                                    .has_silu = !is_gated,
                                    .output = run.Poisoned(size_t{n} * kChannels)};
    run.Run([&](CommandList& list) { return list.ShortConvolution(args); });
    return args.output;
  };
  const Buffer* first = step(0, steps.first);
  const Buffer* second = step(steps.first, steps.second);

  std::vector<double> expected;
  const auto convolved = [&](size_t t, size_t channel) {
    const float* row = &input[t * stride + channel];
    return is_gated ? double{row[0]} * row[2 * kChannels] : row[0];
  };
  for (size_t t = 0; t < steps.count(); ++t) {
    for (size_t channel = 0; channel < kChannels; ++channel) {
      double sum = 0.0;
      for (size_t i = 0; i < kTaps; ++i) {
        if (t + i + 1 >= kTaps) sum += taps[channel * kTaps + i] * convolved(t + i + 1 - kTaps, channel);
      }
      expected.push_back(is_gated ? sum * input[t * stride + kChannels + channel] : sum * SigmoidOf(sum));
    }
  }
  return CompareSteps(run, expected, size_t{steps.first} * kChannels, first, second);
}

namespace {

constexpr uint32_t kKeyHeads = 2;
constexpr uint32_t kValueHeads = 4;
constexpr float kDeltaEpsilon = 1e-4F;

struct DeltaInputs {
  uint32_t head_dim = 0;
  std::vector<float> qkv;
  std::vector<float> gates;  // alpha, something else, beta
  std::vector<float> constants;

  static constexpr uint32_t kGatesStride = 2 * kValueHeads + 3;
  static constexpr uint32_t kBetaOffset = kValueHeads + 3;
  size_t row() const { return size_t{2 * kKeyHeads + kValueHeads} * head_dim; }
};

std::vector<double> DividedByLength(std::span<const float> head) {
  double sum = kDeltaEpsilon;
  for (const float value : head) sum += double{value} * value;
  std::vector<double> out(head.begin(), head.end());
  for (double& value : out) value /= std::sqrt(sum);
  return out;
}

// A row's output of a value head, whose state [keys, values] changes.
void StepDelta(const DeltaInputs& in, size_t token, size_t head, std::span<double> state, double* output) {
  const size_t dims = in.head_dim;
  const auto row = std::span(in.qkv).subspan(token * in.row(), in.row());
  const float* gates = &in.gates[token * DeltaInputs::kGatesStride];
  const std::vector<double> query = DividedByLength(row.subspan(head % kKeyHeads * dims, dims));
  const std::vector<double> key = DividedByLength(row.subspan((kKeyHeads + head % kKeyHeads) * dims, dims));
  const double alpha = double{gates[head]} + in.constants[kValueHeads + head];
  const double decay = std::exp(in.constants[head] * std::log1p(std::exp(alpha)));
  const double beta = SigmoidOf(gates[DeltaInputs::kBetaOffset + head]);
  for (size_t j = 0; j < dims; ++j) {
    double found = 0.0;
    for (size_t i = 0; i < dims; ++i) found += (state[i * dims + j] *= decay) * key[i];
    const double change = beta * (row[(2 * kKeyHeads + head) * dims + j] - found);
    double sum = 0.0;
    for (size_t i = 0; i < dims; ++i) sum += (state[i * dims + j] += key[i] * change) * query[i];
    output[j] = sum / std::sqrt(static_cast<double>(dims));
  }
}

}  // namespace

Result<std::string> CheckDeltaRule(Device& device, uint32_t head_dim, bool of_prompt) {
  const StateSteps steps(of_prompt);
  SelfTestRun run(device);
  DeltaInputs in;
  in.head_dim = head_dim;
  in.qkv = RandomFloats(steps.count() * in.row(), 1);
  in.gates = RandomFloats(size_t{steps.count()} * DeltaInputs::kGatesStride, 2);
  in.constants = RandomFloats(size_t{2} * kValueHeads, 3);
  for (uint32_t head = 0; head < kValueHeads; ++head) in.constants[head] = -std::abs(in.constants[head]);
  const Buffer* constants = run.Floats(in.constants);
  Buffer* state = run.Poisoned(size_t{kStateSequences} * kValueHeads * head_dim * head_dim);
  const size_t row_out = size_t{kValueHeads} * head_dim;
  const auto step = [&](uint32_t first, uint32_t n) {
    const auto gates =
        std::span(in.gates).subspan(first * DeltaInputs::kGatesStride, size_t{n} * DeltaInputs::kGatesStride);
    const DeltaRuleArgs args{.qkv = run.Floats(std::span(in.qkv).subspan(first * in.row(), n * in.row())),
                             .gates = run.Floats(gates),
                             .gates_stride = DeltaInputs::kGatesStride,
                             .alpha_offset = 0,
                             .beta_offset = DeltaInputs::kBetaOffset,
                             .constants = constants,
                             .state = state,
                             .step = run.Step(TokensFrom(first, n)),
                             .n_tokens = n,
                             .n_key_heads = kKeyHeads,
                             .n_value_heads = kValueHeads,
                             .head_dim = head_dim,
                             .epsilon = kDeltaEpsilon,
                             .of_prompt = of_prompt,
                             .output = run.Poisoned(n * row_out)};
    run.Run([&](CommandList& list) { return list.DeltaRule(args); });
    return args.output;
  };
  const Buffer* first = step(0, steps.first);
  const Buffer* second = step(steps.first, steps.second);

  std::vector<double> expected(steps.count() * row_out);
  for (size_t head = 0; head < kValueHeads; ++head) {
    std::vector<double> of_head(size_t{head_dim} * head_dim);
    for (size_t t = 0; t < steps.count(); ++t)
      StepDelta(in, t, head, of_head, &expected[t * row_out + head * head_dim]);
  }
  return CompareSteps(run, expected, steps.first * row_out, first, second);
}

Result<std::string> CheckGatedNorm(Device& device, uint32_t head_dim) {
  constexpr uint32_t kTokens = 3;
  constexpr uint32_t kHeads = 4;
  constexpr uint32_t kOffset = 3;

  SelfTestRun run(device);
  const uint32_t stride = kHeads * head_dim + kOffset;
  const std::vector<float> values = RandomFloats(size_t{kTokens} * kHeads * head_dim, 1);
  const std::vector<float> weight = RandomFloats(head_dim, 2);
  const std::vector<float> gate = RandomFloats(size_t{kTokens} * stride, 3);
  const GatedNormArgs args{run.Floats(values),
                           run.Floats(weight),
                           run.Floats(gate),
                           stride,
                           kOffset,
                           kLayerEpsilon,
                           kTokens,
                           kHeads,
                           head_dim};
  run.Run([&](CommandList& list) { return list.GatedNorm(args); });
  std::vector<double> expected;
  for (size_t row = 0; row < size_t{kTokens} * kHeads; ++row) {
    const double factor = NormFactor(std::span(values).subspan(row * head_dim, head_dim), kLayerEpsilon);
    for (size_t i = 0; i < head_dim; ++i) {
      const double g = gate[row / kHeads * stride + kOffset + row % kHeads * head_dim + i];
      expected.push_back(values[row * head_dim + i] * weight[i] * factor * g * SigmoidOf(g));
    }
  }
  return run.Compare(expected, args.values, kSelfTestTolerance);
}

}  // namespace kvrun
