// The tensors of a model, found in its GGUF file and checked against its configuration.
#pragma once

#include <vector>

#include "platform/base/status.h"
#include "runtime/model/gguf.h"
#include "runtime/model/model_config.h"

namespace kvrun {

// Rows of a tensor that holds several matrices one above the other; all of one that holds one.
struct WeightMatrix {
  const GgufTensor* tensor = nullptr;  // null: the layer has none
  uint32_t first_row = 0;
  uint32_t n_rows = 0;

  bool is_there() const { return tensor != nullptr; }
};

// Pointers into the GgufFile's tensors; null where the layer has none. Matrices: shape[0] is the input
// dimension, shape[1] the output dimension. Vectors (norms, biases) are F32, [n].
struct LayerWeights {
  const GgufTensor* attention_norm =
      nullptr;  // [n_embd]; of a layer without attention, of what it has in its place

  // Attention of both kinds.
  WeightMatrix q;                      // [n_embd, q_dim]; with a gate [n_embd, n_heads, 2, head_dim]
  WeightMatrix k;                      // [n_embd, kv_dim]
  WeightMatrix v;                      // [n_embd, kv_dim]
  const GgufTensor* q_bias = nullptr;  // [q_dim]
  const GgufTensor* k_bias = nullptr;  // [kv_dim]
  const GgufTensor* v_bias = nullptr;  // [kv_dim]
  const GgufTensor* q_norm = nullptr;  // [head_dim]
  const GgufTensor* k_norm = nullptr;  // [head_dim]
  const GgufTensor* attention_output = nullptr;  // [q_dim, n_embd]

  // Delta net (DeltaNetConfig).
  const GgufTensor* delta_qkv = nullptr;    // [n_embd, n_channels]
  const GgufTensor* delta_gate = nullptr;   // [n_embd, value_dim]
  const GgufTensor* delta_alpha = nullptr;  // [n_embd, n_value_heads]
  const GgufTensor* delta_beta = nullptr;   // [n_embd, n_value_heads]
  const GgufTensor* delta_taps = nullptr;   // F32 [n_taps, n_channels]
  const GgufTensor* delta_a = nullptr;      // [n_value_heads]
  const GgufTensor* delta_dt_bias = nullptr;
  const GgufTensor* delta_norm = nullptr;    // [head_dim]
  const GgufTensor* delta_output = nullptr;  // [value_dim, n_embd]

  // Short convolution.
  const GgufTensor* convolution_input = nullptr;   // [n_embd, 3 * n_embd]
  const GgufTensor* convolution_taps = nullptr;    // F32 [n_taps, n_embd]
  const GgufTensor* convolution_output = nullptr;  // [n_embd, n_embd]

  const GgufTensor* post_attention_norm = nullptr;  // [n_embd]
  const GgufTensor* ffn_norm = nullptr;             // [n_embd]
  WeightMatrix ffn_gate;                            // [n_embd, n_ff]
  WeightMatrix ffn_up;                              // [n_embd, n_ff]
  const GgufTensor* ffn_down = nullptr;             // [n_ff, n_embd]
  // Mixture of experts, in place of the three.
  const GgufTensor* router = nullptr;         // [n_embd, n_experts]
  const GgufTensor* experts_gate = nullptr;   // [n_embd, n_ff, n_experts]
  const GgufTensor* experts_up = nullptr;     // [n_embd, n_ff, n_experts]
  const GgufTensor* experts_down = nullptr;   // [n_ff, n_embd, n_experts]
  const GgufTensor* post_ffn_norm = nullptr;  // [n_embd]
};

struct ModelWeights {
  const GgufTensor* token_embedding = nullptr;  // [n_embd, n_vocab]
  const GgufTensor* output_norm = nullptr;      // [n_embd]
  const GgufTensor* output = nullptr;           // [n_embd, n_vocab]; == token_embedding where tied
  std::vector<LayerWeights> layers;
};

// A missing tensor or a wrong shape or type names the tensor, what was expected and what is there.
Result<ModelWeights> FindModelWeights(const GgufFile& file, const ModelConfig& config);

}  // namespace kvrun
