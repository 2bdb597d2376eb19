#include "runtime/model/model_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "runtime/model/gguf_parser.h"
#include "runtime/model/rope_config.h"

namespace kvrun {
namespace {

enum class Presence : uint8_t { kNo, kYes, kIfInFile };

struct Architecture {
  std::string_view name;
  RopePairing pairing;
  Presence qkv_bias;
  bool has_qk_norm;
};

// To add an architecture that is a llama with other norms, biases or rotation: a row here, a test model.
constexpr std::array kArchitectures = {
    Architecture{"llama", RopePairing::kAdjacent, Presence::kIfInFile, false},
    Architecture{"qwen2", RopePairing::kHalves, Presence::kYes, false},
    Architecture{"qwen3", RopePairing::kHalves, Presence::kIfInFile, true},
};

// Upper bounds far above existing models: what depends on them stays small and cannot overflow.
constexpr uint32_t kMostLayers = 1024;
constexpr uint32_t kMaxEmbedding = 1U << 17;
constexpr uint32_t kMaxFeedForward = 1U << 20;
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
    NeutralKey{"expert_count", 0.0F, "a mixture of experts"},
    NeutralKey{"attention.clamp_kqv", 0.0F, "clamped queries and keys"},
    NeutralKey{"attention.max_alibi_bias", 0.0F, "ALiBi position biases"},
    NeutralKey{"attention.scale", 0.0F, "its own attention scale"},
    NeutralKey{"attn_logit_softcapping", 0.0F, "soft-capped attention"},
    NeutralKey{"final_logit_softcapping", 0.0F, "soft-capped logits"},
    NeutralKey{"logit_scale", 1.0F, "scaled logits"},
    NeutralKey{"residual_scale", 1.0F, "scaled residuals"},
    NeutralKey{"embedding_scale", 1.0F, "scaled embeddings"},
};

std::string KnownArchitectures() {
  std::string names;
  for (const Architecture& architecture : kArchitectures) {
    if (!names.empty()) names += ", ";
    names += architecture.name;
  }
  return names;
}

Result<const Architecture*> FindArchitecture(const GgufFile& file) {
  const Result<std::string_view> name = file.String("general.architecture");
  if (!name.ok()) return name.status();
  for (const Architecture& architecture : kArchitectures) {
    if (architecture.name == *name) return &architecture;
  }
  return Status(StatusCode::kUnsupported,
                fmt::format("{}: the architecture {} is not supported; kvrun runs {}", file.name(),
                            QuoteForMessage(*name), KnownArchitectures()));
}

// Reads the keys of one model; every message names the file and the key.
class ConfigReader {
 public:
  ConfigReader(const GgufFile& file, const Architecture& architecture)
      : file_(file), architecture_(architecture) {}

  Result<ModelConfig> Read();

 private:
  std::string Key(std::string_view suffix) const { return fmt::format("{}.{}", architecture_.name, suffix); }
  Status CheckSupported() const;
  Status ReadSizes();
  Status ReadHeads();
  Status ReadHeadDim();
  Status ReadVocabulary();
  Status ReadContext();
  Status ReadEpsilon();
  void FindOptionalTensors();
  Result<uint32_t> Bounded(std::string_view suffix, uint32_t value, uint32_t min, uint32_t max) const;
  Result<uint32_t> Size(std::string_view suffix, uint32_t max) const;
  Result<uint32_t> SameInEveryLayer(std::string_view suffix, uint32_t max) const;

  const GgufFile& file_;
  const Architecture& architecture_;
  ModelConfig config_;
};

Result<ModelConfig> ConfigReader::Read() {
  config_.architecture = architecture_.name;
  KVRUN_ASSIGN_OR_RETURN(config_.name, file_.StringOr("general.name", ""));
  KVRUN_RETURN_IF_ERROR(CheckSupported());
  KVRUN_RETURN_IF_ERROR(ReadSizes());
  KVRUN_RETURN_IF_ERROR(ReadHeads());
  KVRUN_RETURN_IF_ERROR(ReadHeadDim());
  KVRUN_RETURN_IF_ERROR(ReadVocabulary());
  KVRUN_RETURN_IF_ERROR(ReadContext());
  KVRUN_RETURN_IF_ERROR(ReadEpsilon());
  FindOptionalTensors();
  KVRUN_ASSIGN_OR_RETURN(config_.rope, ReadRopeConfig(file_, architecture_.name, architecture_.pairing,
                                                      config_.head_dim, config_.n_ctx_train));
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

Result<uint32_t> ConfigReader::Bounded(std::string_view suffix, uint32_t value, uint32_t min,
                                       uint32_t max) const {
  if (value >= min && value <= max) return value;
  return Status(StatusCode::kUnsupported, fmt::format("{}: key \"{}\" is {}; kvrun runs models with {} to {}",
                                                      file_.name(), Key(suffix), value, min, max));
}

Result<uint32_t> ConfigReader::Size(std::string_view suffix, uint32_t max) const {
  KVRUN_ASSIGN_OR_RETURN(const uint32_t value, file_.U32(Key(suffix)));
  return Bounded(suffix, value, 1, max);
}

// Some files write one number per layer.
Result<uint32_t> ConfigReader::SameInEveryLayer(std::string_view suffix, uint32_t max) const {
  const GgufValue* value = file_.Find(Key(suffix));
  if (value == nullptr || !std::holds_alternative<GgufNumberArray>(*value)) return Size(suffix, max);
  KVRUN_ASSIGN_OR_RETURN(const std::vector<int32_t> per_layer, file_.Ints(Key(suffix)));
  if (per_layer.size() != config_.n_layers) {
    return Status(StatusCode::kCorrupt,
                  fmt::format("{}: key \"{}\" has {} numbers for {} layers", file_.name(), Key(suffix),
                              per_layer.size(), config_.n_layers));
  }
  const int32_t first = per_layer.front();
  if (std::any_of(per_layer.begin(), per_layer.end(), [&](int32_t n) { return n != first; })) {
    return Status(
        StatusCode::kUnsupported,
        fmt::format("{}: key \"{}\" differs from layer to layer; kvrun runs models with equal layers",
                    file_.name(), Key(suffix)));
  }
  return Bounded(suffix, static_cast<uint32_t>(std::max(first, 0)), 1, max);
}

Status ConfigReader::ReadSizes() {
  KVRUN_ASSIGN_OR_RETURN(config_.n_layers, Size("block_count", kMostLayers));
  KVRUN_ASSIGN_OR_RETURN(config_.n_embd, Size("embedding_length", kMaxEmbedding));
  KVRUN_ASSIGN_OR_RETURN(config_.n_ff, SameInEveryLayer("feed_forward_length", kMaxFeedForward));
  return Status::Ok();
}

Status ConfigReader::ReadHeads() {
  KVRUN_ASSIGN_OR_RETURN(config_.n_heads, SameInEveryLayer("attention.head_count", kMostHeads));
  config_.n_kv_heads = config_.n_heads;
  if (file_.Has(Key("attention.head_count_kv"))) {
    KVRUN_ASSIGN_OR_RETURN(config_.n_kv_heads, SameInEveryLayer("attention.head_count_kv", kMostHeads));
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

// Attention within a sliding window equals full attention while the context is no longer than the window:
// kvrun computes full attention and so offers no more context than that by itself.
Status ConfigReader::ReadContext() {
  KVRUN_ASSIGN_OR_RETURN(config_.n_ctx_train, Size("context_length", kMostContext));
  KVRUN_ASSIGN_OR_RETURN(config_.sliding_window, file_.U32Or(Key("attention.sliding_window"), 0));
  config_.n_ctx_stated = config_.n_ctx_train;
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

void ConfigReader::FindOptionalTensors() {
  config_.has_tied_output = file_.FindTensor("output.weight") == nullptr;
  config_.has_qk_norm = architecture_.has_qk_norm;
  config_.has_qkv_bias =
      architecture_.qkv_bias == Presence::kYes ||
      (architecture_.qkv_bias == Presence::kIfInFile && file_.FindTensor("blk.0.attn_q.bias") != nullptr);
}

}  // namespace

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
