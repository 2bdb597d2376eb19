// A model's weights on a device: what lies side by side in a layer is stacked into one matrix where types
// allow.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "platform/base/status.h"
#include "runtime/device/device.h"
#include "runtime/model/model.h"

namespace kvrun {

// Matrices with one input whose results lie side by side: each is a run of stacked tensors of one type.
struct StackedMatrix {
  std::unique_ptr<Matrix> matrix;
  uint32_t row_begin = 0;  // in the stack
};
using MatrixStack = std::vector<StackedMatrix>;

struct DeviceLayer {
  // [n_embd]; where Q, K and V have biases, these after it: [n_embd + q_dim + 2 * kv_dim].
  std::unique_ptr<Buffer> attention_norm;
  bool has_qkv_bias = false;
  // What looks back, as the layer's kind is.
  MatrixStack qkv;                   // attention: [q_dim + 2 * kv_dim, n_embd]
  std::unique_ptr<Buffer> qk_norms;  // q_norm, k_norm: [2, head_dim]; null: none
  MatrixStack query_gate;            // [q_dim, n_embd]; empty: none
  // Delta net: queries, keys and values of the convolution, gate, alpha, beta: [n_channels + value_dim + 2 *
  // n_value_heads, n_embd]. Short convolution: [3 * n_embd, n_embd].
  MatrixStack state_input;
  std::unique_ptr<Buffer> taps;             // [channels, n_taps]
  std::unique_ptr<Buffer> delta_constants;  // a, dt_bias: [2, n_value_heads]
  std::unique_ptr<Buffer> delta_norm;       // [head_dim]
  MatrixStack block_output;                 // [n_embd, q_dim or value_dim or n_embd]
  std::unique_ptr<Buffer> post_attention_norm;

  std::unique_ptr<Buffer> ffn_norm;
  MatrixStack gate_up;   // [2 * n_ff, n_embd]
  MatrixStack ffn_down;  // [n_embd, n_ff]
  // Of a mixture, in place of the two.
  MatrixStack router;                       // [n_experts, n_embd]
  std::unique_ptr<Matrix> experts_gate_up;  // [n_experts * 2 * n_ff, n_embd]: of each its gate, then its up
  std::unique_ptr<Matrix> experts_down;     // [n_experts * n_embd, n_ff]
  std::unique_ptr<Buffer> post_ffn_norm;
};

class DeviceWeights {
 public:
  std::unique_ptr<Matrix> token_embedding;
  std::unique_ptr<Buffer> output_norm;
  std::unique_ptr<Matrix> untied_output;  // null: the token embedding is the output matrix
  std::vector<DeviceLayer> layers;

  const Matrix& output() const { return untied_output ? *untied_output : *token_embedding; }
  // Of the matrices that each step of one row multiplies with.
  uint64_t StepBytes(const ExpertConfig& experts) const;
};

// As LoadDeviceWeights of a model, of a part of it: `config` and `weights` describe the same layers and
// columns, the tensors' data lie in `file`.
Result<std::shared_ptr<const DeviceWeights>> LoadDeviceWeights(
    const GgufFile& file, const ModelConfig& config, const ModelWeights& weights, Device& device,
    const std::function<bool(uint64_t, uint64_t)>& progress);

}  // namespace kvrun
