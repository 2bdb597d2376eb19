#include "runtime/model/weights.h"

#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_set>

#include "runtime/model/gguf_parser.h"

namespace kvrun {
namespace {

enum class Size : uint8_t { kOne, kEmbedding, kQ, kKv, kHead, kFeedForward };
enum class Needed : uint8_t { kAlways, kWithQkvBias, kWithQkNorm };

struct LayerRow {
  std::string_view suffix;
  const GgufTensor* LayerWeights::*slot;
  Size in;
  Size out;  // kOne: a vector, which must be F32
  Needed needed;
};

constexpr std::array kLayerRows = {
    LayerRow{"attn_norm.weight", &LayerWeights::attention_norm, Size::kEmbedding, Size::kOne,
             Needed::kAlways},
    LayerRow{"attn_q.weight", &LayerWeights::q, Size::kEmbedding, Size::kQ, Needed::kAlways},
    LayerRow{"attn_k.weight", &LayerWeights::k, Size::kEmbedding, Size::kKv, Needed::kAlways},
    LayerRow{"attn_v.weight", &LayerWeights::v, Size::kEmbedding, Size::kKv, Needed::kAlways},
    LayerRow{"attn_q.bias", &LayerWeights::q_bias, Size::kQ, Size::kOne, Needed::kWithQkvBias},
    LayerRow{"attn_k.bias", &LayerWeights::k_bias, Size::kKv, Size::kOne, Needed::kWithQkvBias},
    LayerRow{"attn_v.bias", &LayerWeights::v_bias, Size::kKv, Size::kOne, Needed::kWithQkvBias},
    LayerRow{"attn_q_norm.weight", &LayerWeights::q_norm, Size::kHead, Size::kOne, Needed::kWithQkNorm},
    LayerRow{"attn_k_norm.weight", &LayerWeights::k_norm, Size::kHead, Size::kOne, Needed::kWithQkNorm},
    LayerRow{"attn_output.weight", &LayerWeights::attention_output, Size::kQ, Size::kEmbedding,
             Needed::kAlways},
    LayerRow{"ffn_norm.weight", &LayerWeights::ffn_norm, Size::kEmbedding, Size::kOne, Needed::kAlways},
    LayerRow{"ffn_gate.weight", &LayerWeights::ffn_gate, Size::kEmbedding, Size::kFeedForward,
             Needed::kAlways},
    LayerRow{"ffn_up.weight", &LayerWeights::ffn_up, Size::kEmbedding, Size::kFeedForward, Needed::kAlways},
    LayerRow{"ffn_down.weight", &LayerWeights::ffn_down, Size::kFeedForward, Size::kEmbedding,
             Needed::kAlways},
};

// Tensors that repeat what the configuration says (rope_freqs.weight is read with it).
bool IsIgnorable(std::string_view name) {
  return name == "rope_freqs.weight" || name.ends_with(".rope_freqs.weight") ||
         name.ends_with(".attn_rot_embd.weight") || name.ends_with(".rotary_emb.inv_freq");
}

class WeightFinder {
 public:
  WeightFinder(const GgufFile& file, const ModelConfig& config) : file_(file), config_(config) {}

  Result<ModelWeights> Find();

 private:
  uint64_t Elements(Size size) const;
  bool IsNeeded(Needed needed) const;
  Result<const GgufTensor*> Tensor(std::string_view name, uint64_t in, uint64_t out);
  Status FindLayer(uint32_t layer, LayerWeights& weights);
  Status CheckNothingIsLeft() const;

  const GgufFile& file_;
  const ModelConfig& config_;
  std::unordered_set<const GgufTensor*> used_;
};

uint64_t WeightFinder::Elements(Size size) const {
  switch (size) {
    case Size::kOne: return 1;
    case Size::kEmbedding: return config_.n_embd;
    case Size::kQ: return config_.q_dim();
    case Size::kKv: return config_.kv_dim();
    case Size::kHead: return config_.head_dim;
    case Size::kFeedForward: return config_.n_ff;
  }
  return 0;
}

bool WeightFinder::IsNeeded(Needed needed) const {
  switch (needed) {
    case Needed::kAlways: return true;
    case Needed::kWithQkvBias: return config_.has_qkv_bias;
    case Needed::kWithQkNorm: return config_.has_qk_norm;
  }
  return false;
}

std::string ShapeText(const GgufTensor& tensor) {
  return fmt::format("[{}]", fmt::join(tensor.shape.begin(), tensor.shape.begin() + tensor.n_dims, ", "));
}

Result<const GgufTensor*> WeightFinder::Tensor(std::string_view name, uint64_t in, uint64_t out) {
  const bool is_vector = out == 1;
  const std::string expected = is_vector ? fmt::format("[{}]", in) : fmt::format("[{}, {}]", in, out);
  const GgufTensor* tensor = file_.FindTensor(name);
  if (tensor == nullptr) {
    return Status(StatusCode::kCorrupt,
                  fmt::format("{}: tensor \"{}\" of shape {} is missing; the file holds {} tensors",
                              file_.name(), name, expected, file_.tensors().size()));
  }
  const std::array<uint64_t, 4> shape = {in, out, 1, 1};
  if (tensor->shape != shape) {
    return Status(StatusCode::kCorrupt, fmt::format("{}: tensor \"{}\" has shape {}, expected {}",
                                                    file_.name(), name, ShapeText(*tensor), expected));
  }
  if (is_vector && tensor->type != TensorType::kF32) {
    return Status(StatusCode::kUnsupported,
                  fmt::format("{}: tensor \"{}\" is {}; kvrun reads norms and biases in F32", file_.name(),
                              name, TensorTypeName(tensor->type)));
  }
  used_.insert(tensor);
  return tensor;
}

Status WeightFinder::FindLayer(uint32_t layer, LayerWeights& weights) {
  for (const LayerRow& row : kLayerRows) {
    if (!IsNeeded(row.needed)) continue;
    const std::string name = fmt::format("blk.{}.{}", layer, row.suffix);
    KVRUN_ASSIGN_OR_RETURN(weights.*row.slot, Tensor(name, Elements(row.in), Elements(row.out)));
  }
  return Status::Ok();
}

// A tensor that is left over would mean a computation that kvrun does not do: the answer would be wrong.
Status WeightFinder::CheckNothingIsLeft() const {
  for (const GgufTensor& tensor : file_.tensors()) {
    if (used_.contains(&tensor) || IsIgnorable(tensor.name)) continue;
    return {
        StatusCode::kUnsupported,
        fmt::format("{}: tensor {} has no place in a model of {} layers of the architecture {}; kvrun would "
                    "compute something else than this model",
                    file_.name(), QuoteForMessage(tensor.name), config_.n_layers, config_.architecture)};
  }
  return Status::Ok();
}

Result<ModelWeights> WeightFinder::Find() {
  ModelWeights weights;
  KVRUN_ASSIGN_OR_RETURN(weights.token_embedding,
                         Tensor("token_embd.weight", config_.n_embd, config_.n_vocab));
  KVRUN_ASSIGN_OR_RETURN(weights.output_norm, Tensor("output_norm.weight", config_.n_embd, 1));
  weights.output = weights.token_embedding;
  if (!config_.has_tied_output) {
    KVRUN_ASSIGN_OR_RETURN(weights.output, Tensor("output.weight", config_.n_embd, config_.n_vocab));
  }
  weights.layers.resize(config_.n_layers);
  for (uint32_t layer = 0; layer < config_.n_layers; ++layer) {
    KVRUN_RETURN_IF_ERROR(FindLayer(layer, weights.layers[layer]));
  }
  KVRUN_RETURN_IF_ERROR(CheckNothingIsLeft());
  return weights;
}

}  // namespace

Result<ModelWeights> FindModelWeights(const GgufFile& file, const ModelConfig& config) {
  return WeightFinder(file, config).Find();
}

}  // namespace kvrun
