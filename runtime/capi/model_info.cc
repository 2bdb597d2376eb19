#include "runtime/capi/model_info.h"

#include <map>
#include <string>
#include <string_view>

#include "runtime/device/device.h"

namespace kvrun::capi {
namespace {

std::string_view ScalingName(RopeScaling scaling) {
  switch (scaling) {
    case RopeScaling::kNone: return "none";
    case RopeScaling::kLinear: return "linear";
    case RopeScaling::kLlama3: return "llama3";
    case RopeScaling::kYarn: return "yarn";
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
  if (rope.scaling == RopeScaling::kYarn) info["original_context"] = rope.original_context;
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

}  // namespace

Json ModelInfo(const Model& model, uint32_t context) {
  const ModelConfig& config = model.config;
  std::map<std::string_view, uint64_t> tensor_types;
  uint64_t parameters = 0;
  for (const GgufTensor& tensor : model.file->tensors()) {
    ++tensor_types[TensorTypeName(tensor.type)];
    parameters += tensor.elements();
  }
  Json types = Json::object();
  for (const auto& [name, count] : tensor_types) types[std::string(name)] = count;
  const uint32_t kv_context = context == 0 ? config.n_ctx_train : context;
  const uint64_t kv_bytes_per_token = config.KvBytesPerToken(KvElementBytes(KvType::kF16));
  Json chat_form = nullptr;
  if (model.chat_template.ok()) chat_form = model.chat_template->name();
  return {{"architecture", config.architecture},
          {"name", config.name},
          {"file_bytes", model.file->size_bytes()},
          {"files", model.file->paths()},
          {"gguf_version", model.file->version()},
          {"n_layers", config.n_layers},
          {"n_embd", config.n_embd},
          {"n_ff", config.n_ff},
          {"n_heads", config.n_heads},
          {"n_kv_heads", config.n_kv_heads},
          {"head_dim", config.head_dim},
          {"n_vocab", config.n_vocab},
          {"n_ctx_train", config.n_ctx_train},
          {"sliding_window", config.sliding_window == 0 ? Json() : Json(config.sliding_window)},
          {"rope", RopeInfo(config.rope)},
          {"tokenizer", TokenizerInfo(*model.file)},
          {"chat_form", chat_form},
          {"tensor_types", types},
          {"parameters", parameters},
          {"kv_bytes_per_token", kv_bytes_per_token},
          {"kv_bytes", kv_bytes_per_token * kv_context},
          {"context", kv_context}};
}

}  // namespace kvrun::capi
