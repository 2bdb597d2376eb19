#include "runtime/model/model_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include "runtime/model/architectures.h"
#include "runtime/model/layer_kinds.h"
#include "runtime/model/layer_pattern.h"
#include "runtime/model/model_keys.h"
#include "runtime/model/rope_config.h"

namespace kvrun {
namespace {

// Upper bounds far above existing models: what depends on them stays small and cannot overflow.
constexpr uint32_t kMostLayers = 1024;
constexpr uint32_t kMostEmbedding = 1U << 17;
constexpr uint32_t kMostFeedForward = 1U << 20;
constexpr uint32_t kMostHeads = 1024;
constexpr uint32_t kMinHeadDim = 8;
constexpr uint32_t kMaxHeadDim = 256;
constexpr uint32_t kMaxVocabulary = 1U << 22;
constexpr uint32_t kMostContext = 1U << 27;

// Keys that change what a layer computes in a way that kvrun does not do. A value of 0 always means "off".
struct NeutralKey {
  std::string_view suffix;
  float neutral;
  std::string_view feature;
};
constexpr std::array kNeutralKeys = {
    NeutralKey{"attention.clamp_kqv", 0.0F, "clamped queries and keys"},
    NeutralKey{"attention.max_alibi_bias", 0.0F, "ALiBi position biases"},
    NeutralKey{"attention.scale", 0.0F, "its own attention scale"},
    NeutralKey{"logit_scale", 1.0F, "scaled logits"},
    NeutralKey{"residual_scale", 1.0F, "scaled residuals"},
    NeutralKey{"embedding_scale", 1.0F, "scaled embeddings"},
};

// Reads the keys of one model; every message names the file and the key.
class ConfigReader {
 public:
  ConfigReader(const GgufFile& file, const Architecture& architecture)
      : file_(file), architecture_(architecture), keys_(file, architecture.name) {}

  Result<ModelConfig> Read();

 private:
  std::string Key(std::string_view suffix) const { return keys_.Key(suffix); }
  Status CheckSupported() const;
  Status ReadSizes();
  Status ReadHeads();
  Status ReadHeadDim();
  Status ReadVocabulary();
  Status ReadContext();
  Status ReadEpsilon();
  Status ReadRotations();
  void FindOptionalTensors();

  const GgufFile& file_;
  const Architecture& architecture_;
  ModelKeys keys_;
  uint32_t n_blocks_ = 0;  // of the file: layers, and after them draft heads
  ModelConfig config_;
};

Result<ModelConfig> ConfigReader::Read() {
  config_.architecture = architecture_.name;
  KVRUN_ASSIGN_OR_RETURN(config_.name, file_.StringOr("general.name", ""));
  KVRUN_RETURN_IF_ERROR(CheckSupported());
  KVRUN_RETURN_IF_ERROR(ReadSizes());
  KVRUN_ASSIGN_OR_RETURN(config_.layers, ReadLayerPattern(file_, architecture_, n_blocks_, config_.n_layers));
  for (uint32_t i = 0; i < config_.n_layers; ++i) {
    if (config_.layers[i].keeps_growing_kv()) config_.kv_layers.push_back(i);
  }
  KVRUN_RETURN_IF_ERROR(ReadHeads());
  KVRUN_RETURN_IF_ERROR(ReadHeadDim());
  KVRUN_RETURN_IF_ERROR(ReadLayerKinds(keys_, architecture_, config_));
  KVRUN_RETURN_IF_ERROR(ReadVocabulary());
  KVRUN_RETURN_IF_ERROR(ReadContext());
  KVRUN_RETURN_IF_ERROR(ReadEpsilon());
  FindOptionalTensors();
  KVRUN_RETURN_IF_ERROR(ReadRotations());
  return std::move(config_);
}

Status ConfigReader::CheckSupported() const {
  for (const NeutralKey& key : kNeutralKeys) {
    KVRUN_ASSIGN_OR_RETURN(const float value, file_.F32Or(Key(key.suffix), key.neutral));
    if (value != key.neutral && value != 0.0F) {
      return {StatusCode::kUnsupported,
              fmt::format("{}: the model uses {} (key \"{}\" is {}), which kvrun does not support",
                          file_.name(), key.feature, Key(key.suffix), value)};
    }
  }
  KVRUN_ASSIGN_OR_RETURN(const bool is_causal, file_.BoolOr(Key("attention.causal"), true));
  if (!is_causal) {
    return {StatusCode::kUnsupported,
            fmt::format("{}: key \"{}\" is false; kvrun runs causal language models only", file_.name(),
                        Key("attention.causal"))};
  }
  return Status::Ok();
}

Status ConfigReader::ReadSizes() {
  KVRUN_ASSIGN_OR_RETURN(n_blocks_, keys_.Size("block_count", kMostLayers));
  KVRUN_ASSIGN_OR_RETURN(const uint32_t n_drafts, file_.U32Or(Key("nextn_predict_layers"), 0));
  if (n_drafts >= n_blocks_) {
    return {StatusCode::kCorrupt, fmt::format("{}: key \"{}\" is {}, of {} layers in all", file_.name(),
                                              Key("nextn_predict_layers"), n_drafts, n_blocks_)};
  }
  config_.n_layers = n_blocks_ - n_drafts;
  config_.n_draft_heads = n_drafts;
  KVRUN_ASSIGN_OR_RETURN(config_.n_embd, keys_.Size("embedding_length", kMostEmbedding));
  // Experts have a length of their own.
  if (!architecture_.has_experts || file_.Has(Key("feed_forward_length"))) {
    KVRUN_ASSIGN_OR_RETURN(config_.n_ff,
                           keys_.SameInEveryLayer("feed_forward_length", kMostFeedForward, n_blocks_,
                                                  config_.n_layers, /*zero_is_other=*/false));
  }
  config_.embedding_scale =
      architecture_.scales_embedding ? std::sqrt(static_cast<float>(config_.n_embd)) : 1.0F;
  return Status::Ok();
}

Status ConfigReader::ReadHeads() {
  const auto heads = [&](std::string_view suffix) {
    return keys_.SameInEveryLayer(suffix, kMostHeads, n_blocks_, config_.n_layers, !config_.is_uniform());
  };
  KVRUN_ASSIGN_OR_RETURN(config_.n_heads, heads("attention.head_count"));
  config_.n_kv_heads = config_.n_heads;
  if (file_.Has(Key("attention.head_count_kv"))) {
    KVRUN_ASSIGN_OR_RETURN(config_.n_kv_heads, heads("attention.head_count_kv"));
  }
  if (config_.n_heads % config_.n_kv_heads != 0) {
    return {StatusCode::kCorrupt, fmt::format("{}: {} attention heads are not a multiple of {} KV heads",
                                              file_.name(), config_.n_heads, config_.n_kv_heads)};
  }
  return Status::Ok();
}

Status ConfigReader::ReadHeadDim() {
  const std::string key_length = Key("attention.key_length");
  const std::string value_length = Key("attention.value_length");
  const uint32_t even_share = config_.n_embd / config_.n_heads;
  if ((!file_.Has(key_length) || !file_.Has(value_length)) && config_.n_embd % config_.n_heads != 0) {
    return {StatusCode::kCorrupt,
            fmt::format(
                "{}: an embedding of {} does not divide into {} heads, and \"{}\" and \"{}\" do not say more",
                file_.name(), config_.n_embd, config_.n_heads, key_length, value_length)};
  }
  KVRUN_ASSIGN_OR_RETURN(config_.head_dim, file_.U32Or(key_length, even_share));
  KVRUN_ASSIGN_OR_RETURN(const uint32_t value_dim, file_.U32Or(value_length, even_share));
  if (config_.head_dim != value_dim) {
    return {StatusCode::kUnsupported,
            fmt::format("{}: heads of K have {} elements, those of V {}; kvrun runs models "
                        "where both are equal",
                        file_.name(), config_.head_dim, value_dim)};
  }
  if (config_.head_dim % 2 != 0 || config_.head_dim < kMinHeadDim || config_.head_dim > kMaxHeadDim) {
    return {StatusCode::kUnsupported,
            fmt::format("{}: the head size is {}; kvrun runs models with even head sizes from {} to {}",
                        file_.name(), config_.head_dim, kMinHeadDim, kMaxHeadDim)};
  }
  return Status::Ok();
}

// The embedding has a row per token, whether the tokenizer's list is that long or not.
Status ConfigReader::ReadVocabulary() {
  uint64_t n_vocab = 0;
  if (file_.Has(Key("vocab_size"))) {
    KVRUN_ASSIGN_OR_RETURN(n_vocab, file_.U32(Key("vocab_size")));
  } else if (const GgufTensor* embedding = file_.FindTensor("token_embd.weight"); embedding != nullptr) {
    n_vocab = embedding->shape[1];
  } else {
    const Result<std::vector<std::string_view>> tokens = file_.Strings("tokenizer.ggml.tokens");
    if (!tokens.ok()) return tokens.status();
    n_vocab = tokens->size();
  }
  if (n_vocab < 1 || n_vocab > kMaxVocabulary) {
    return {StatusCode::kUnsupported,
            fmt::format("{}: the vocabulary has {} tokens; kvrun runs models with 1 to {}", file_.name(),
                        n_vocab, kMaxVocabulary)};
  }
  config_.n_vocab = static_cast<uint32_t>(n_vocab);
  return Status::Ok();
}

// Where no layer is computed with a window, but the model was trained with one, attention within it equals
// full attention while the context is no longer: kvrun offers no more context than that by itself.
Status ConfigReader::ReadContext() {
  KVRUN_ASSIGN_OR_RETURN(config_.n_ctx_train, keys_.Size("context_length", kMostContext));
  config_.n_ctx_stated = config_.n_ctx_train;
  if (config_.sliding_window > 0) return Status::Ok();
  KVRUN_ASSIGN_OR_RETURN(config_.sliding_window, file_.U32Or(Key("attention.sliding_window"), 0));
  if (config_.sliding_window > 0) config_.n_ctx_train = std::min(config_.n_ctx_train, config_.sliding_window);
  return Status::Ok();
}

Status ConfigReader::ReadEpsilon() {
  const std::string key = Key("attention.layer_norm_rms_epsilon");
  KVRUN_ASSIGN_OR_RETURN(config_.rms_epsilon, file_.F32(key));
  if (!(config_.rms_epsilon >= 0.0F && config_.rms_epsilon < 1.0F)) {
    return {StatusCode::kCorrupt, fmt::format("{}: key \"{}\" is {}; it must be from 0 to below 1",
                                              file_.name(), key, config_.rms_epsilon)};
  }
  return Status::Ok();
}

// Windowed layers may have a base of their own, and no scaling.
Status ConfigReader::ReadRotations() {
  KVRUN_ASSIGN_OR_RETURN(config_.rope, ReadRopeConfig(file_, architecture_.name, architecture_.pairing,
                                                      config_.head_dim, config_.n_ctx_train));
  const bool has_windowed =
      std::any_of(config_.layers.begin(), config_.layers.end(),
                  [](const LayerConfig& layer) { return layer.rope == LayerRope::kWindowed; });
  if (!has_windowed) return Status::Ok();
  config_.windowed_rope.pairing = config_.rope.pairing;
  config_.windowed_rope.rotary_dim = config_.rope.rotary_dim;
  KVRUN_ASSIGN_OR_RETURN(config_.windowed_rope.frequency_base,
                         ReadWindowedRopeBase(file_, architecture_.name));
  return Status::Ok();
}

void ConfigReader::FindOptionalTensors() {
  config_.has_query_gate = architecture_.has_query_gate;
  config_.has_post_norms = architecture_.has_post_norms;
  config_.gate = architecture_.gate;
  config_.has_tied_output = file_.FindTensor("output.weight") == nullptr;
  config_.has_qk_norm = architecture_.has_qk_norm;
  config_.has_qkv_bias =
      architecture_.qkv_bias == Presence::kYes ||
      (architecture_.qkv_bias == Presence::kIfInFile && file_.FindTensor("blk.0.attn_q.bias") != nullptr);
}

}  // namespace

void ModelConfig::KeepFirstLayers(uint32_t n) {
  n_layers = n;
  layers.resize(n);
  while (!kv_layers.empty() && kv_layers.back() >= n) kv_layers.pop_back();
}

uint64_t ModelConfig::StateBytes(const LayerConfig& layer, uint32_t element_bytes) const {
  switch (layer.kind) {
    case LayerKind::kAttention: break;
    case LayerKind::kWindowedAttention: return uint64_t{2} * sliding_window * kv_dim() * element_bytes;
    case LayerKind::kDeltaNet:
      return (uint64_t{delta_net.value_dim()} * delta_net.head_dim +
              uint64_t{delta_net.n_taps - 1} * delta_net.n_channels()) *
             sizeof(float);
    case LayerKind::kShortConvolution: return uint64_t{n_convolution_taps - 1} * n_embd * sizeof(float);
  }
  return 0;
}

uint64_t ModelConfig::StateBytes(uint32_t element_bytes) const {
  uint64_t bytes = 0;
  for (const LayerConfig& layer : layers) bytes += StateBytes(layer, element_bytes);
  return bytes;
}

Result<ModelConfig> ReadModelConfig(const GgufFile& file) {
  KVRUN_ASSIGN_OR_RETURN(const Architecture* architecture, FindArchitecture(file));
  return ConfigReader(file, *architecture).Read();
}

ModelConfig ReadStatedConfig(const GgufFile& file) {
  ModelConfig config;
  const auto text = [&](std::string_view key) {
    const Result<std::string_view> value = file.String(key);
    return value.ok() ? std::string(*value) : std::string();
  };
  config.architecture = text("general.architecture");
  config.name = text("general.name");
  const auto number = [&](std::string_view suffix) {
    const Result<uint32_t> value = file.U32(fmt::format("{}.{}", config.architecture, suffix));
    return value.ok() ? *value : 0U;
  };
  config.n_layers = number("block_count");
  config.layers.resize(std::min(config.n_layers, kMostLayers));
  config.n_embd = number("embedding_length");
  config.n_ff = number("feed_forward_length");
  config.n_heads = number("attention.head_count");
  config.n_kv_heads = number("attention.head_count_kv");
  config.head_dim = number("attention.key_length");
  config.n_ctx_stated = number("context_length");
  config.n_ctx_train = config.n_ctx_stated;
  config.sliding_window = number("attention.sliding_window");
  config.n_vocab = number("vocab_size");
  return config;
}

}  // namespace kvrun
