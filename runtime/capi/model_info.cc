#include "runtime/capi/model_info.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <string_view>

#include "runtime/capi/handles.h"
#include "runtime/device/device.h"

namespace kvrun::capi {
namespace {

std::string_view ScalingName(RopeScaling scaling) {
  switch (scaling) {
    case RopeScaling::kNone: return "none";
    case RopeScaling::kLinear: return "linear";
    case RopeScaling::kLlama3: return "llama3";
    case RopeScaling::kYarn: return "yarn";
    case RopeScaling::kLongRope: return "longrope";
  }
  return "unknown";
}

Json RopeInfo(const RopeConfig& rope) {
  Json info = {{"pairing", rope.pairing == RopePairing::kAdjacent ? "adjacent" : "halves"},
               {"rotary_dim", rope.rotary_dim},
               {"frequency_base", rope.frequency_base},
               {"scaling", ScalingName(rope.scaling)}};
  if (rope.scaling == RopeScaling::kLinear || rope.scaling == RopeScaling::kYarn)
    info["factor"] = rope.factor;
  if (rope.original_context > 0) info["original_context"] = rope.original_context;
  return info;
}

// "gpt2 (smollm)": the family and its pre-tokenizer, as the file names them. Null where the file has none.
Json TokenizerInfo(const GgufFile& file) {
  const auto family = file.String("tokenizer.ggml.model");
  if (!family.ok()) return nullptr;
  std::string info(*family);
  if (const auto pre = file.String("tokenizer.ggml.pre"); pre.ok()) info += " (" + std::string(*pre) + ")";
  return info;
}

// What the file's vocabulary holds, and how it is used where kvrun can. Null where the file has none.
Json VocabularyInfo(const Model& model) {
  const GgufFile& file = *model.file;
  const auto texts = file.Strings("tokenizer.ggml.tokens");
  if (!texts.ok()) return nullptr;
  const auto merges = file.Strings("tokenizer.ggml.merges");
  std::map<int32_t, uint64_t> counts;
  if (const auto types = file.Ints("tokenizer.ggml.token_type"); types.ok()) {
    for (const int32_t type : *types) ++counts[type];
  }
  Json info = {{"tokens", texts->size()}, {"merges", merges.ok() ? Json(merges->size()) : Json()},
               {"control", counts[3]},    {"user_defined", counts[4]},
               {"byte", counts[6]},       {"bos", nullptr},
               {"eos", nullptr},          {"adds_bos", nullptr},
               {"ends", nullptr},         {"unusable", nullptr}};
  const Tokenizer* tokenizer = model.tokenizer.get();
  if (tokenizer == nullptr) {
    info["unusable"] = model.tokenizer_status.message();
    return info;
  }
  if (tokenizer->bos() >= 0) info["bos"] = tokenizer->bos();
  if (tokenizer->eos() >= 0) info["eos"] = tokenizer->eos();
  info["adds_bos"] = tokenizer->adds_bos();
  info["ends"] = Json::array();
  for (uint32_t id = 0; id < tokenizer->n_vocab(); ++id) {
    if (tokenizer->IsEndOfGeneration(static_cast<TokenId>(id))) info["ends"].push_back(id);
  }
  return info;
}

// What the makers of a file advise to sample with, by the keys that llama.cpp writes.
struct SamplingKey {
  const char* name;
  const char* key;
  float least;
  float most;
};
constexpr SamplingKey kSamplingKeys[] = {{"temperature", "general.sampling.temp", 0, 100},
                                         {"top_k", "general.sampling.top_k", -1, 1 << 24},
                                         {"top_p", "general.sampling.top_p", 0, 1},
                                         {"min_p", "general.sampling.min_p", 0, 1}};

// What cannot be used is left out and named: bad advice is no reason to refuse a model.
Json SamplingInfo(const GgufFile& file) {
  Json info = Json::object();
  Json ignored = Json::array();
  for (const SamplingKey& setting : kSamplingKeys) {
    info[setting.name] = nullptr;
    if (!file.Has(setting.key)) continue;
    const Result<float> value = file.F32(setting.key);
    const bool is_whole = std::string_view(setting.name) == "top_k";
    if (!value.ok()) {
      ignored.push_back(value.status().message());
    } else if (*value < setting.least || *value > setting.most ||
               (is_whole && *value != std::floor(*value))) {
      ignored.push_back(fmt::format("{} is {}; it must be a {} from {} to {}", setting.key, *value,
                                    is_whole ? "whole number" : "number", setting.least, setting.most));
    } else if (is_whole) {
      info[setting.name] = static_cast<uint32_t>(std::max(*value, 0.0F));  // -1 is off too
    } else {
      info[setting.name] = std::stod(fmt::format("{}", *value));  // 0.7, and not the double next to its float
    }
  }
  if (!ignored.empty()) info["ignored"] = ignored;
  return info;
}

// How many layers there are of each kind, and what one of them takes.
Json LayersInfo(const ModelConfig& config) {
  Json info = Json::object();
  for (const LayerKind kind : {LayerKind::kAttention, LayerKind::kWindowedAttention, LayerKind::kDeltaNet,
                               LayerKind::kShortConvolution}) {
    const auto count = std::count_if(config.layers.begin(), config.layers.end(),
                                     [kind](const LayerConfig& layer) { return layer.kind == kind; });
    if (count == 0) continue;
    Json of_kind = {{"count", count}};
    if (kind == LayerKind::kAttention) {
      of_kind["kv_bytes_per_token"] =
          config.KvBytesPerToken(KvElementBytes(KvType::kF16)) / config.n_kv_layers();
    } else {
      of_kind["state_bytes"] = config.StateBytes({kind}, KvElementBytes(KvType::kF16));
    }
    info[std::string(LayerKindName(kind))] = of_kind;
  }
  return info;
}

// Why a chat is not what the file's template makes it.
Json ChatNote(const Result<ChatTemplate>& chat) {
  if (!chat.ok()) return chat.status().message();
  return chat->note().empty() ? Json() : Json(chat->note());
}

}  // namespace

Json ModelInfo(const kvrun_model& handle, uint32_t context) {
  const Model& model = *handle.model;
  const ModelConfig& config = model.config;
  std::map<std::string_view, uint64_t> tensor_types;
  uint64_t parameters = 0;
  for (const GgufTensor& tensor : model.file->tensors()) {
    ++tensor_types[TensorTypeName(tensor.type)];
    parameters += tensor.elements();
  }
  Json types = Json::object();
  for (const auto& [name, count] : tensor_types) types[std::string(name)] = count;
  for (const auto& [type, unknown] : model.file->unknown_tensors()) {
    types[fmt::format("type {}", type)] = unknown.n_tensors;
    parameters += unknown.n_elements;
  }
  const bool is_computable = model.computable.ok();
  const auto number = [is_computable](uint32_t value) {
    return is_computable || value != 0 ? Json(value) : Json();
  };
  const auto if_computable = [is_computable](Json value) { return is_computable ? value : Json(); };
  const uint32_t kv_context = context == 0 ? config.n_ctx_train : context;
  const uint64_t kv_bytes_per_token = config.KvBytesPerToken(KvElementBytes(KvType::kF16));
  const Result<ChatTemplate>& chat = handle.chat_template();
  return {{"architecture", config.architecture.empty() ? Json() : Json(config.architecture)},
          {"name", config.name},
          {"file_bytes", model.file->size_bytes()},
          {"files", model.file->paths()},
          {"gguf_version", model.file->version()},
          {"n_layers", number(config.n_layers)},
          {"layers", is_computable ? LayersInfo(config) : Json()},
          {"n_embd", number(config.n_embd)},
          {"n_ff", number(config.n_ff)},
          {"n_heads", number(config.n_heads)},
          {"n_kv_heads", number(config.n_kv_heads)},
          {"head_dim", number(config.head_dim)},
          {"n_vocab", number(config.n_vocab)},
          {"n_ctx_train", number(config.n_ctx_train)},
          {"sliding_window", config.sliding_window == 0 ? Json() : Json(config.sliding_window)},
          {"rope", if_computable(RopeInfo(config.rope))},
          {"tokenizer", TokenizerInfo(*model.file)},
          {"vocabulary", VocabularyInfo(model)},
          {"chat_form", chat.ok() ? Json(chat->name()) : Json()},
          {"chat_note", ChatNote(chat)},
          {"sampling", SamplingInfo(*model.file)},
          {"tensor_types", types},
          {"parameters", parameters},
          {"kv_bytes_per_token", if_computable(kv_bytes_per_token)},
          {"kv_bytes", if_computable(kv_bytes_per_token * kv_context)},
          {"state_bytes", if_computable(config.StateBytes(KvElementBytes(KvType::kF16)))},
          {"context", number(kv_context)},
          {"unsupported", is_computable ? Json() : Json(model.computable.message())}};
}

}  // namespace kvrun::capi
