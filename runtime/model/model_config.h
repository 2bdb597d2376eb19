// What a model is: its hyper-parameters and the description of its architecture, read from GGUF keys.
//
// A model architecture is a description (which kinds of layers, norms, biases, RoPE, where), not code in the
// engine: to add one is to add a row to the table in architectures.cc, and a test model.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "platform/base/status.h"
#include "runtime/model/gguf.h"
#include "runtime/model/layer_config.h"

namespace kvrun {

enum class RopePairing : uint8_t {
  kAdjacent,  // dimensions (2i, 2i+1) rotate together ("norm"; llama)
  kHalves,    // dimensions (i, i + rotary_dim/2) rotate together ("neox"; qwen2, qwen3)
};

enum class RopeScaling : uint8_t { kNone, kLinear, kLlama3, kYarn, kLongRope };

struct RopeConfig {
  RopePairing pairing = RopePairing::kAdjacent;
  RopeScaling scaling = RopeScaling::kNone;
  uint32_t rotary_dim = 0;  // first dimensions of a head that rotate; even
  float frequency_base = 10000.0F;
  float factor = 1.0F;            // linear, yarn
  uint32_t original_context = 0;  // yarn, long rope
  float yarn_attention_factor = 1.0F;
  float yarn_beta_fast = 32.0F;
  float yarn_beta_slow = 1.0F;
  // llama3: the per-pair divisors of the file's tensor rope_freqs.weight, [rotary_dim / 2]; else empty.
  std::vector<float> frequency_divisors;
  // Long rope: in contexts longer than original_context these take the place of frequency_divisors. Which
  // ones is decided when a session begins: entries that are rotated already cannot change.
  std::vector<float> long_frequency_divisors;
};

struct ModelConfig {
  std::string architecture;  // "llama", "qwen3"
  std::string name;
  uint32_t n_layers = 0;
  uint32_t n_draft_heads = 0;  // blocks of the file behind the layers, which are left alone
  uint32_t n_embd = 0;
  uint32_t n_ff = 0;
  uint32_t n_heads = 0;
  uint32_t n_kv_heads = 0;
  uint32_t head_dim = 0;  // even, 8..256
  uint32_t n_vocab = 0;
  uint32_t n_ctx_train = 0;   // what text is good for: at most the sliding window
  uint32_t n_ctx_stated = 0;  // the file's context_length
  // Tokens that windowed layers attend to; without such layers, those that the model attended to when it was
  // trained. 0: all.
  uint32_t sliding_window = 0;
  float rms_epsilon = 1e-5F;
  bool has_qkv_bias = false;
  bool has_qk_norm = false;
  bool has_tied_output = false;  // the output matrix is the token embedding
  RopeConfig rope;               // LayerRope::kMain
  RopeConfig windowed_rope;      // LayerRope::kWindowed

  std::vector<LayerConfig> layers;  // [n_layers]
  std::vector<uint32_t> kv_layers;  // those that keep growing KV, ascending
  bool has_query_gate = false;      // what attention brings is multiplied by sigmoid(W x)
  bool has_post_norms = false;      // norms between a block's result and the residual stream
  FeedForwardGate gate = FeedForwardGate::kSilu;
  ExpertConfig experts;
  DeltaNetConfig delta_net;
  uint32_t n_convolution_taps = 0;  // of short convolutions
  float embedding_scale = 1.0F;
  float score_scale = 0.0F;  // what q . k is multiplied by; 0: 1 / sqrt(head_dim)
  float score_cap = 0.0F;    // cap * tanh(score / cap); 0: none
  float logit_cap = 0.0F;

  // From now on the model is its first n layers.
  void KeepFirstLayers(uint32_t n);

  uint32_t n_kv_layers() const { return static_cast<uint32_t>(kv_layers.size()); }
  bool is_uniform() const { return kv_layers.size() == layers.size(); }  // all layers keep growing KV
  uint32_t q_dim() const { return n_heads * head_dim; }
  uint32_t kv_dim() const { return n_kv_heads * head_dim; }
  // K and V of one token over all layers that keep them, at `element_bytes` each.
  uint64_t KvBytesPerToken(uint32_t element_bytes) const {
    return uint64_t{2} * n_kv_layers() * kv_dim() * element_bytes;
  }
  // What all other layers keep of a sequence, whatever its length: of windows K and V of `element_bytes`.
  uint64_t StateBytes(uint32_t element_bytes) const;
  uint64_t StateBytes(const LayerConfig& layer, uint32_t element_bytes) const;  // one layer
};

// Reads and checks everything, including that an unknown architecture is named together with the known.
Result<ModelConfig> ReadModelConfig(const GgufFile& file);

// What a file says of a model that ReadModelConfig refuses, to be shown: 0 and "" where it does not say, and
// nothing is checked.
ModelConfig ReadStatedConfig(const GgufFile& file);

// What to rotate by: angle(position, pair) = position * frequencies[pair]; cos and sin are multiplied by
// `magnitude`. frequencies: [rotary_dim / 2]. Yarn: Peng et al. 2023, section 3; llama3 and long rope: the
// file's divisors. `n_ctx`: of the session.
struct RopeTable {
  std::vector<float> frequencies;
  float magnitude = 1.0F;
};
RopeTable MakeRopeTable(const RopeConfig& rope, uint32_t n_ctx);

}  // namespace kvrun
