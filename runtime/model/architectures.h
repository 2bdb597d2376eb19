// The architectures that kvrun computes: a row each. A row says what differs from a llama; to add one is to
// add a row, and, where it has a kind of layer or a pattern of kinds that no other has, that.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "platform/base/status.h"
#include "runtime/model/gguf.h"
#include "runtime/model/layer_config.h"
#include "runtime/model/model_config.h"

namespace kvrun {

enum class Presence : uint8_t { kNo, kYes, kIfInFile };

// Which layers are of which kind.
enum class LayerPattern : uint8_t {
  kAttention,         // all
  kFourthUnrotated,   // all, but layers 3, 7, .. do not rotate
  kWindowsAlternate,  // windows in layers 0, 2, ..
  kWindowsByKey,    // "attention.sliding_window_pattern": flags, or a number n: all but layers n - 1, 2n - 1,
                    // ..; or 6
  kDeltaNetsByKey,  // "attention.recurrent_layers": flags; or "full_attention_interval", or 4, likewise
  kConvolutionsByKey,  // where "attention.head_count_kv" is 0
};

// How the tensors of some parts are laid out in the file.
struct TensorNames {
  std::string_view output_norm = "output_norm.weight";
  std::string_view ffn_norm = "ffn_norm.weight";  // of a layer
  bool has_fused_qkv = false;                     // attn_qkv: rows of Q, K, V
  bool has_fused_gate_up = false;                 // ffn_up: rows of the gate, then of up
};

struct Architecture {
  std::string_view name;
  RopePairing pairing = RopePairing::kHalves;
  LayerPattern pattern = LayerPattern::kAttention;
  Presence qkv_bias = Presence::kNo;
  bool has_qk_norm = false;
  bool has_query_gate = false;  // attn_q has a gate after each head's query
  bool has_post_norms = false;  // on both sides of a block
  bool has_experts = false;
  bool scales_embedding = false;  // by the root of its size
  FeedForwardGate gate = FeedForwardGate::kSilu;
  // Models so deep have scores divided by the root of n_embd / n_heads in place of the head size; 0: none.
  uint32_t embedding_scored_layers = 0;
  uint32_t default_window = 0;     // where the file does not say; 0: it has to
  float default_score_cap = 0.0F;  // likewise; 0: no caps
  float default_logit_cap = 0.0F;
  TensorNames names = {};
};

// kUnsupported names those that are known.
Result<const Architecture*> FindArchitecture(const GgufFile& file);
const Architecture* FindArchitecture(std::string_view name);

}  // namespace kvrun
