#include "runtime/model/weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
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
  Result<const GgufTensor*> Matrix(std::string_view name, uint64_t in, uint64_t out);
  Result<const GgufTensor*> Vector(std::string_view name, uint64_t elements);
  Result<const GgufTensor*> Tensor(std::string_view name, std::span<const uint64_t> expected);
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

std::string ShapeText(std::span<const uint64_t> shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

Result<const GgufTensor*> WeightFinder::Tensor(std::string_view name, std::span<const uint64_t> expected) {
  const GgufTensor* tensor = file_.FindTensor(name);
  if (tensor == nullptr) {
    return Status(StatusCode::kCorrupt,
                  fmt::format("{}: tensor \"{}\" of shape {} is missing; the file holds {} tensors",
                              file_.name(), name, ShapeText(expected), file_.tensors().size()));
  }
  std::array<uint64_t, 4> shape = {1, 1, 1, 1};
  std::copy(expected.begin(), expected.end(), shape.begin());
  if (tensor->shape != shape) {
    return Status(
        StatusCode::kCorrupt,
        fmt::format("{}: tensor \"{}\" has shape {}, expected {}", file_.name(), name,
                    ShapeText(std::span(tensor->shape).first(tensor->n_dims)), ShapeText(expected)));
  }
  used_.insert(tensor);
  return tensor;
}

Result<const GgufTensor*> WeightFinder::Matrix(std::string_view name, uint64_t in, uint64_t out) {
  KVRUN_ASSIGN_OR_RETURN(const GgufTensor* tensor, Tensor(name, std::array{in, out}));
  if (tensor->type != TensorType::kF64) return tensor;
  return Status(StatusCode::kUnsupported, fmt::format("{}: tensor \"{}\" is F64, a type that kvrun does not "
                                                      "compute with: convert the model to another type",
                                                      file_.name(), name));
}

Result<const GgufTensor*> WeightFinder::Vector(std::string_view name, uint64_t elements) {
  KVRUN_ASSIGN_OR_RETURN(const GgufTensor* tensor, Tensor(name, std::array{elements}));
  if (tensor->type == TensorType::kF32) return tensor;
  return Status(StatusCode::kUnsupported,
                fmt::format("{}: tensor \"{}\" is {}; kvrun reads norms and biases in F32", file_.name(),
                            name, TensorTypeName(tensor->type)));
}

Status WeightFinder::FindLayer(uint32_t layer, LayerWeights& weights) {
  for (const LayerRow& row : kLayerRows) {
    if (!IsNeeded(row.needed)) continue;
    const std::string name = fmt::format("blk.{}.{}", layer, row.suffix);
    Result<const GgufTensor*> tensor = row.out == Size::kOne
                                           ? Vector(name, Elements(row.in))
                                           : Matrix(name, Elements(row.in), Elements(row.out));
    if (!tensor.ok()) return tensor.status();
    weights.*row.slot = *tensor;
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
                         Matrix("token_embd.weight", config_.n_embd, config_.n_vocab));
  KVRUN_ASSIGN_OR_RETURN(weights.output_norm, Vector("output_norm.weight", config_.n_embd));
  weights.output = weights.token_embedding;
  if (!config_.has_tied_output) {
    KVRUN_ASSIGN_OR_RETURN(weights.output, Matrix("output.weight", config_.n_embd, config_.n_vocab));
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
