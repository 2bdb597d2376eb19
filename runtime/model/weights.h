// The tensors of a model, found in its GGUF file and checked against its configuration.
#pragma once

#include <vector>

#include "platform/base/status.h"
#include "runtime/model/gguf.h"
#include "runtime/model/model_config.h"

namespace kvrun {

// Pointers into the GgufFile's tensors; null where the architecture has none. Matrices: shape[0] is the
// input dimension, shape[1] the output dimension. Vectors (norms, biases) are F32, [n].
struct LayerWeights {
  const GgufTensor* attention_norm = nullptr;    // [n_embd]
  const GgufTensor* q = nullptr;                 // [n_embd, q_dim]
  const GgufTensor* k = nullptr;                 // [n_embd, kv_dim]
  const GgufTensor* v = nullptr;                 // [n_embd, kv_dim]
  const GgufTensor* q_bias = nullptr;            // [q_dim]
  const GgufTensor* k_bias = nullptr;            // [kv_dim]
  const GgufTensor* v_bias = nullptr;            // [kv_dim]
  const GgufTensor* q_norm = nullptr;            // [head_dim]
  const GgufTensor* k_norm = nullptr;            // [head_dim]
  const GgufTensor* attention_output = nullptr;  // [q_dim, n_embd]
  const GgufTensor* ffn_norm = nullptr;          // [n_embd]
  const GgufTensor* ffn_gate = nullptr;          // [n_embd, n_ff]
  const GgufTensor* ffn_up = nullptr;            // [n_embd, n_ff]
  const GgufTensor* ffn_down = nullptr;          // [n_ff, n_embd]
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
