// What one layer of a model is: how it looks back, and how it thinks about what it saw.
//
// Layers of one model may be of several kinds. Full attention keeps K and V of every token: its KV grows, and
// it alone is what methods of runtime/kv keep and select from. The others keep a *state* of constant size: a
// windowed layer the K and V of its window, a delta net a matrix per head, a short convolution its last few
// inputs.
#pragma once

#include <cstdint>
#include <string_view>

namespace kvrun {

enum class LayerKind : uint8_t { kAttention, kWindowedAttention, kDeltaNet, kShortConvolution };
constexpr std::string_view LayerKindName(LayerKind kind) {
  switch (kind) {
    case LayerKind::kAttention: return "attention";
    case LayerKind::kWindowedAttention: return "windowed attention";
    case LayerKind::kDeltaNet: return "delta net";
    case LayerKind::kShortConvolution: return "short convolution";
  }
  return "";
}

// Which of a model's two rotations a layer's queries and keys have.
enum class LayerRope : uint8_t { kNone, kMain, kWindowed };

struct LayerConfig {
  LayerKind kind = LayerKind::kAttention;
  LayerRope rope = LayerRope::kMain;  // attention of both kinds

  bool is_attention() const { return kind == LayerKind::kAttention || kind == LayerKind::kWindowedAttention; }
  bool keeps_growing_kv() const { return kind == LayerKind::kAttention; }
};

// Of a model's delta nets. Source: Yang, Kautz and Hatamizadeh 2024 (arXiv 2412.06464); as Qwen3.5 has them.
struct DeltaNetConfig {
  uint32_t n_key_heads = 0;    // of queries and of keys
  uint32_t n_value_heads = 0;  // a multiple of n_key_heads; value head i uses key head i modulo n_key_heads
  uint32_t head_dim = 0;       // of all three
  uint32_t n_taps = 0;         // of the convolution before

  uint32_t key_dim() const { return n_key_heads * head_dim; }
  uint32_t value_dim() const { return n_value_heads * head_dim; }
  uint32_t n_channels() const { return 2 * key_dim() + value_dim(); }  // of the convolution
};

// A mixture of experts in place of a model's feed-forward networks.
struct ExpertConfig {
  uint32_t n_experts = 0;  // 0: there is none
  uint32_t n_used = 0;     // by a token
  uint32_t n_ff = 0;       // of an expert
};

enum class FeedForwardGate : uint8_t { kSilu, kGeluTanh };

}  // namespace kvrun
