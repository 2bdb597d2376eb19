#include "runtime/model/architectures.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/model/gguf_parser.h"

namespace kvrun {
namespace {

constexpr std::array kArchitectures = {
    Architecture{.name = "llama", .pairing = RopePairing::kAdjacent, .qkv_bias = Presence::kIfInFile},
    Architecture{.name = "qwen2", .qkv_bias = Presence::kYes},
    Architecture{.name = "qwen3", .qkv_bias = Presence::kIfInFile, .has_qk_norm = true},
    Architecture{.name = "qwen3moe", .has_qk_norm = true, .has_experts = true},
    Architecture{
        .name = "smollm3", .pairing = RopePairing::kAdjacent, .pattern = LayerPattern::kFourthUnrotated},
    Architecture{.name = "phi3", .names = {.has_fused_qkv = true, .has_fused_gate_up = true}},
    Architecture{.name = "gemma2",
                 .pattern = LayerPattern::kWindowsAlternate,
                 .has_post_norms = true,
                 .scales_embedding = true,
                 .gate = FeedForwardGate::kGeluTanh,
                 .embedding_scored_layers = 46,  // Gemma 2 27B
                 .default_window = 4096,
                 .default_score_cap = 50.0F,
                 .default_logit_cap = 30.0F},
    Architecture{.name = "gemma3",
                 .pattern = LayerPattern::kWindowsByKey,
                 .has_qk_norm = true,
                 .has_post_norms = true,
                 .scales_embedding = true,
                 .gate = FeedForwardGate::kGeluTanh,
                 .embedding_scored_layers = 62},  // Gemma 3 27B
    Architecture{.name = "qwen35",
                 .pattern = LayerPattern::kDeltaNetsByKey,
                 .has_qk_norm = true,
                 .has_query_gate = true,
                 .names = {.ffn_norm = "post_attention_norm.weight"}},
    Architecture{.name = "lfm2",
                 .pattern = LayerPattern::kConvolutionsByKey,
                 .has_qk_norm = true,
                 .names = {.output_norm = "token_embd_norm.weight"}},
};

std::string KnownArchitectures() {
  std::string names;
  for (const Architecture& architecture : kArchitectures) {
    if (!names.empty()) names += ", ";
    names += architecture.name;
  }
  return names;
}

}  // namespace

const Architecture* FindArchitecture(std::string_view name) {
  const auto found =
      std::find_if(kArchitectures.begin(), kArchitectures.end(),
                   [name](const Architecture& architecture) { return architecture.name == name; });
  return found == kArchitectures.end() ? nullptr : &*found;
}

Result<const Architecture*> FindArchitecture(const GgufFile& file) {
  const Result<std::string_view> name = file.String("general.architecture");
  if (!name.ok()) return name.status();
  if (const Architecture* found = FindArchitecture(*name); found != nullptr) return found;
  return Status(StatusCode::kUnsupported,
                fmt::format("{}: the architecture {} is not supported; kvrun runs {}", file.name(),
                            QuoteForMessage(*name), KnownArchitectures()));
}

}  // namespace kvrun
