// What a layer consists of beside attention: products, norms, activations, experts, and states that a
// sequence carries from token to token.
//
// Rows are tokens. "The rows of a step" are told apart by its StepParams (shaders/shared/step_params.h): of a
// prompt they are one sequence's at consecutive positions, else each is of another sequence.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/device/buffer.h"

namespace kvrun {

// out[t] = scale * row step.tokens[t].id of the table, as float [n_tokens, n_cols].
struct EmbedArgs {
  const Matrix* table = nullptr;
  const Buffer* step = nullptr;  // kUpload, a StepParams
  uint32_t n_tokens = 0;
  Buffer* out = nullptr;
  float scale = 1.0F;
};

// out[r] = x[r] * weight / sqrt(mean(x[r]^2) + epsilon), or that added to out; float [n_rows, n_cols]. out
// may be x.
struct RmsNormArgs {
  const Buffer* x = nullptr;
  const Buffer* weight = nullptr;  // float [n_cols]
  float epsilon = 0.0F;
  uint32_t n_rows = 0;
  uint32_t n_cols = 0;
  Buffer* out = nullptr;
  bool accumulate = false;
};

// The norm that a product's input goes through first, as RmsNormArgs has it. A device may compute both as
// one.
struct InputNorm {
  const Buffer* weight = nullptr;  // float [n_cols]; null: none
  float epsilon = 0.0F;
  Buffer* rows = nullptr;  // float [n_tokens, n_cols]: room for the rows after it, which may be left there
  // A product before had the same input, tokens and norm: what it left in `rows` is there still.
  bool was_before = false;
};

// kGeluTanh: x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))).
enum class Activation : uint8_t { kSilu, kGeluTanh };

// What a product ends with: of rows [gate; up], as many of each, activation(gate) * up.
struct OutputGate {
  Buffer* gate_up = nullptr;  // float [n_tokens, n_rows]: room for the product before; null: no gate
  Activation activation = Activation::kSilu;
};

struct MatMulArgs {
  const Matrix* weight = nullptr;  // [n_rows, n_cols]
  const Buffer* input = nullptr;   // float [n_tokens, n_cols]
  Buffer* output = nullptr;        // float [n_tokens, output_stride]; with a gate [n_tokens, n_rows / 2]
  const Buffer* bias = nullptr;    // float [n_rows] from bias_offset on; null: none
  uint32_t n_tokens = 0;
  uint32_t n_rows = 0;         // of the weight, from the first on; 0: all
  uint32_t output_stride = 0;  // elements; 0: n_rows
  uint32_t output_offset = 0;  // elements, of the first row's result
  uint32_t bias_offset = 0;    // elements
  bool accumulate = false;     // add to what is in output
  InputNorm norm = {};
  // Of a product of all rows that has no bias, is not added, and whose output has no stride or offset.
  OutputGate gate = {};
};

// out = activation(gate) * up. gate_up: float [n_tokens, 2 * n_ff]; out: float [n_tokens, n_ff].
struct GatedUnitArgs {
  const Buffer* gate_up = nullptr;
  uint32_t n_tokens = 0;
  uint32_t n_ff = 0;
  Buffer* out = nullptr;
  Activation activation = Activation::kSilu;
};

// values *= sigmoid(gate): float [n_rows, n_cols] each.
struct SigmoidGateArgs {
  const Buffer* gate = nullptr;
  uint32_t n_rows = 0;
  uint32_t n_cols = 0;
  Buffer* values = nullptr;
};

// out[i] = x[step.tokens[i].output_row], float [n_rows, n_cols].
struct GatherRowsArgs {
  const Buffer* x = nullptr;
  const Buffer* step = nullptr;
  uint32_t n_rows = 0;
  uint32_t n_cols = 0;
  Buffer* out = nullptr;
};

// Pieces of one buffer, to another: pieces do not overlap in either. All in bytes, multiples of 4.
struct CopyArgs {
  struct Piece {
    uint64_t from_bytes = 0;
    uint64_t to_bytes = 0;
    uint64_t size_bytes = 0;
  };
  const Buffer* from = nullptr;  // kDevice or kKv, as `to`, which is another
  Buffer* to = nullptr;
  std::vector<Piece> pieces;
};

// --- Mixtures of experts (docs/ARCHITECTURE.md): of n_experts feed-forward networks a token uses n_used.

// For each row of `logits`, float [n_tokens, n_experts]: a softmax over all, the n_used largest (the lower
// expert of equals), and their probabilities divided by their sum. ids: uint32 [n_tokens, n_used], the
// largest first, experts whatever the logits are; weights: float, likewise; of logits that are no numbers,
// none.
struct ChooseExpertsArgs {
  const Buffer* logits = nullptr;
  uint32_t n_tokens = 0;
  uint32_t n_experts = 0;  // at most 1024
  uint32_t n_used = 0;     // at most n_experts, and 32
  Buffer* ids = nullptr;
  Buffer* weights = nullptr;
};

// Products with the experts that tokens use, each token's once: only those experts' weights are read. For
// token t and its j-th expert e, with W the rows [e * n_rows, (e + 1) * n_rows) of `weight`:
//   output[t, j] = W input[t]                                  float [n_tokens, n_used, n_rows], or
//   output[t] += sum over j of weights[t, j] * W input[t, j]   float [n_tokens, n_rows], where `weights` is
//   given.
struct ExpertMatMulArgs {
  const Matrix* weight = nullptr;  // [n_experts * n_rows, n_cols]
  const Buffer* input = nullptr;   // float [n_tokens, n_cols]; with `weights` [n_tokens, n_used, n_cols]
  const Buffer* ids = nullptr;     // as ChooseExpertsArgs has them
  const Buffer* weights = nullptr;
  uint32_t n_tokens = 0;
  uint32_t n_used = 0;
  uint32_t n_rows = 0;
  Buffer* output = nullptr;
};

// --- States: what a layer keeps of a sequence in place of KV. Each sequence has its place in the state's
// buffer; a row at position 0 begins with zeros there, whatever it holds.

// A causal convolution of each channel by itself: y[t] = sum over i of taps[c, i] * u[t - (n_taps - 1) + i],
// the last tap for the row itself. u are the input's columns, or, is_gated, products of two of three parts
// [b, c, x] of a row, and what comes out is multiplied by the third: out = c * conv(b * x), after the
// activation. The state holds the last n_taps - 1 rows of u, oldest first. What comes out does not depend on
// how rows are cut into steps. Sources: Qwen3-Next's delta net layers (not gated, silu), LFM2 (gated, no
// activation).
struct ShortConvolutionArgs {
  const Buffer* input =
      nullptr;  // float [n_tokens, input_stride]: channels, or 3 * channels, from the first column on
  uint32_t input_stride = 0;     // elements
  const Buffer* taps = nullptr;  // float [n_channels, n_taps]
  Buffer* state = nullptr;       // float [n_sequences, n_taps - 1, n_channels]
  const Buffer* step = nullptr;
  uint32_t n_tokens = 0;
  uint32_t n_channels = 0;
  uint32_t n_taps = 0;  // 2 to 8
  bool of_prompt = false;
  bool is_gated = false;
  bool has_silu = false;
  Buffer* output = nullptr;  // float [n_tokens, n_channels]

  uint64_t state_bytes(uint32_t n_sequences) const {
    return uint64_t{n_sequences} * (n_taps - 1) * n_channels * sizeof(float);
  }
};

// The gated delta rule (Yang, Kautz and Hatamizadeh 2024, arXiv 2412.06464). There are n_key_heads heads of
// queries and keys, n_value_heads of values; value head h uses key head h modulo n_key_heads; all have
// head_dim elements. For each row, with q and k divided by their lengths sqrt(sum of squares + epsilon), and
// per value head
//   decay = exp(a[h] * softplus(alpha[h] + dt_bias[h])), b = sigmoid(beta[h]),
//   S *= decay; S += k (b (v - S^T k))^T; out = S^T q / sqrt(head_dim).
// of_prompt: a device may take rows in chunks (section 3.3 there): sums are in another order then, and do not
// depend on how the prompt is cut into steps of whole 64 rows, from position 0 on or from any other. Else a
// row's are the same whatever other rows the step has.
struct DeltaRuleArgs {
  // float [n_tokens, (2 * n_key_heads + n_value_heads) * head_dim]: queries, keys, values, after the
  // convolution.
  const Buffer* qkv = nullptr;
  // float [n_tokens, gates_stride]: alpha[n_value_heads] from alpha_offset on, beta[n_value_heads] from
  // beta_offset on.
  const Buffer* gates = nullptr;
  uint32_t gates_stride = 0;
  uint32_t alpha_offset = 0;
  uint32_t beta_offset = 0;
  const Buffer* constants = nullptr;  // float [2, n_value_heads]: a (negative), dt_bias
  Buffer* state = nullptr;  // float [n_sequences, n_value_heads, head_dim (keys), head_dim (values)]
  const Buffer* step = nullptr;
  uint32_t n_tokens = 0;
  uint32_t n_key_heads = 0;
  uint32_t n_value_heads = 0;
  uint32_t head_dim = 0;  // a multiple of 4, at most 256
  float epsilon = 0.0F;
  bool of_prompt = false;
  Buffer* output = nullptr;  // float [n_tokens, n_value_heads * head_dim]

  uint64_t state_bytes(uint32_t n_sequences) const {
    return uint64_t{n_sequences} * n_value_heads * head_dim * head_dim * sizeof(float);
  }
};

// values[r] = values[r] * weight / sqrt(mean(values[r]^2) + epsilon) * silu(gate[r]), for rows of head_dim
// elements: those of a token, n_heads of them, lie side by side in both.
struct GatedNormArgs {
  Buffer* values = nullptr;        // float [n_tokens, n_heads * head_dim]
  const Buffer* weight = nullptr;  // float [head_dim]
  const Buffer* gate = nullptr;    // float [n_tokens, gate_stride], from gate_offset on
  uint32_t gate_stride = 0;
  uint32_t gate_offset = 0;
  float epsilon = 0.0F;
  uint32_t n_tokens = 0;
  uint32_t n_heads = 0;
  uint32_t head_dim = 0;
};

// For benchmarks, not for models. kArithmetic: multiply-adds without memory (256 per invocation and step, 64
// invocations per group); kReading: reads of neighbouring vectors of 16 bytes (one per invocation and step).
struct RateArgs {
  enum class Kind : uint8_t { kArithmetic, kReading };
  Kind kind = Kind::kArithmetic;
  uint32_t n_groups = 0;
  uint32_t n_steps = 0;
  Buffer* values = nullptr;
};

}  // namespace kvrun
