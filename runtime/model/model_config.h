// What a model is: its hyper-parameters and the description of its architecture, read from GGUF keys.
//
// A model architecture is a description (which norms, biases, RoPE, where), not code in the engine: to add
// one is to add a row to the table in model_config.cc, and a test model.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "platform/base/status.h"
#include "runtime/model/gguf.h"

namespace kvrun {

enum class RopePairing : uint8_t {
  kAdjacent,  // dimensions (2i, 2i+1) rotate together ("norm"; llama)
  kHalves,    // dimensions (i, i + rotary_dim/2) rotate together ("neox"; qwen2, qwen3)
};

enum class RopeScaling : uint8_t { kNone, kLinear, kLlama3, kYarn };

struct RopeConfig {
  RopePairing pairing = RopePairing::kAdjacent;
  RopeScaling scaling = RopeScaling::kNone;
  uint32_t rotary_dim = 0;  // first dimensions of a head that rotate; even
  float frequency_base = 10000.0F;
  float factor = 1.0F;            // linear, yarn
  uint32_t original_context = 0;  // yarn
  float yarn_attention_factor = 1.0F;
  float yarn_beta_fast = 32.0F;
  float yarn_beta_slow = 1.0F;
  // llama3: the per-pair divisors of the file's tensor rope_freqs.weight, [rotary_dim / 2]; else empty.
  std::vector<float> frequency_divisors;
};

struct ModelConfig {
  std::string architecture;  // "llama", "qwen2", "qwen3"
  std::string name;
  uint32_t n_layers = 0;
  uint32_t n_embd = 0;
  uint32_t n_ff = 0;
  uint32_t n_heads = 0;
  uint32_t n_kv_heads = 0;
  uint32_t head_dim = 0;  // even, 8..256
  uint32_t n_vocab = 0;
  uint32_t n_ctx_train = 0;     // what text is good for: at most the sliding window
  uint32_t n_ctx_stated = 0;    // the file's context_length
  uint32_t sliding_window = 0;  // tokens that the model attended to when it was trained; 0: all
  float rms_epsilon = 1e-5F;
  bool has_qkv_bias = false;
  bool has_qk_norm = false;
  bool has_tied_output = false;  // the output matrix is the token embedding
  RopeConfig rope;

  uint32_t q_dim() const { return n_heads * head_dim; }
  uint32_t kv_dim() const { return n_kv_heads * head_dim; }
  // K and V of one token over all layers, at `element_bytes` each.
  uint64_t KvBytesPerToken(uint32_t element_bytes) const {
    return uint64_t{2} * n_layers * kv_dim() * element_bytes;
  }
};

// Reads and checks everything, including that an unknown architecture is named together with the known.
Result<ModelConfig> ReadModelConfig(const GgufFile& file);

// What a file says of a model that ReadModelConfig refuses, to be shown: 0 and "" where it does not say, and
// nothing is checked.
ModelConfig ReadStatedConfig(const GgufFile& file);

// What to rotate by: angle(position, pair) = position * frequencies[pair]; cos and sin are multiplied by
// `magnitude`. frequencies: [rotary_dim / 2]. Yarn: Peng et al. 2023, section 3; llama3: the file's divisors.
struct RopeTable {
  std::vector<float> frequencies;
  float magnitude = 1.0F;
};
RopeTable MakeRopeTable(const RopeConfig& rope);

}  // namespace kvrun
