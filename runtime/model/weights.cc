#include "runtime/model/weights.h"

#include <fmt/format.h>
#include <system_error>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>

#include "runtime/model/architectures.h"
#include "runtime/model/gguf_parser.h"

namespace kvrun {
namespace {

// The sizes of tensors, by what they are made of.
struct Sizes {
  explicit Sizes(const ModelConfig& config)
      : embd(config.n_embd),
        q(config.q_dim()),
        kv(config.kv_dim()),
        head(config.head_dim),
        ff(config.n_ff),
        n_experts(config.experts.n_experts),
        expert_ff(config.experts.n_ff),
        channels(config.delta_net.n_channels()),
        values(config.delta_net.value_dim()),
        value_heads(config.delta_net.n_value_heads),
        state_head(config.delta_net.head_dim),
        delta_taps(config.delta_net.n_taps),
        convolution_taps(config.n_convolution_taps) {}

  uint64_t embd, q, kv, head, ff, n_experts, expert_ff, channels, values, value_heads, state_head, delta_taps,
      convolution_taps;
};

// Tensors that repeat what the configuration says (rope_freqs.weight is read with it).
bool IsIgnorable(std::string_view name) {
  return name == "rope_freqs.weight" || name == "rope_factors_long.weight" ||
         name == "rope_factors_short.weight" || name.ends_with(".rope_freqs.weight") ||
         name.ends_with(".attn_rot_embd.weight") || name.ends_with(".rotary_emb.inv_freq");
}

class WeightFinder {
 public:
  WeightFinder(const GgufFile& file, const ModelConfig& config, const TensorNames& names)
      : file_(file), config_(config), names_(names), sizes_(config) {}

  Result<ModelWeights> Find();

 private:
  // `name`, or, where it begins with a dot, that of the layer which is being found.
  std::string NameOf(std::string_view name) const {
    return name.starts_with('.') ? fmt::format("blk.{}{}", layer_, name) : std::string(name);
  }
  Status Matrix(std::string_view name, uint64_t in, uint64_t out, const GgufTensor** tensor);
  Status Matrix(std::string_view name, uint64_t in, uint64_t out, WeightMatrix* matrix);
  Status Experts(std::string_view name, uint64_t in, uint64_t out, const GgufTensor** tensor);
  Status Vector(std::string_view name, uint64_t elements, const GgufTensor** tensor);
  Status Taps(std::string_view name, uint64_t n_taps, uint64_t channels, const GgufTensor** tensor);
  Result<const GgufTensor*> Tensor(std::string_view name, std::span<const uint64_t> expected);
  Status CheckComputable(const GgufTensor& tensor) const;
  Status CheckF32(const GgufTensor& tensor) const;
  Status FindLayer(LayerWeights& weights);
  Status FindAttention(LayerWeights& weights);
  Status FindQkv(LayerWeights& weights);
  Status FindDeltaNet(LayerWeights& weights);
  Status FindConvolution(LayerWeights& weights);
  Status FindFeedForward(LayerWeights& weights);
  bool IsOfDraftHead(std::string_view name) const;
  Status CheckNothingIsLeft() const;

  const GgufFile& file_;
  const ModelConfig& config_;
  const TensorNames& names_;
  Sizes sizes_;
  uint32_t layer_ = 0;
  std::unordered_set<const GgufTensor*> used_;
};

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

Status WeightFinder::CheckComputable(const GgufTensor& tensor) const {
  if (tensor.type != TensorType::kF64) return Status::Ok();
  return {StatusCode::kUnsupported, fmt::format("{}: tensor \"{}\" is F64, a type that kvrun does not "
                                                "compute with: convert the model to another type",
                                                file_.name(), tensor.name)};
}

Status WeightFinder::CheckF32(const GgufTensor& tensor) const {
  if (tensor.type == TensorType::kF32) return Status::Ok();
  return {StatusCode::kUnsupported,
          fmt::format("{}: tensor \"{}\" is {}; kvrun reads norms and biases in F32", file_.name(),
                      tensor.name, TensorTypeName(tensor.type))};
}

Status WeightFinder::Matrix(std::string_view name, uint64_t in, uint64_t out, const GgufTensor** tensor) {
  KVRUN_ASSIGN_OR_RETURN(*tensor, Tensor(NameOf(name), std::array{in, out}));
  return CheckComputable(**tensor);
}

Status WeightFinder::Matrix(std::string_view name, uint64_t in, uint64_t out, WeightMatrix* matrix) {
  matrix->n_rows = static_cast<uint32_t>(out);
  return Matrix(name, in, out, &matrix->tensor);
}

Status WeightFinder::Experts(std::string_view name, uint64_t in, uint64_t out, const GgufTensor** tensor) {
  KVRUN_ASSIGN_OR_RETURN(*tensor, Tensor(NameOf(name), std::array{in, out, sizes_.n_experts}));
  return CheckComputable(**tensor);
}

Status WeightFinder::Vector(std::string_view name, uint64_t elements, const GgufTensor** tensor) {
  KVRUN_ASSIGN_OR_RETURN(*tensor, Tensor(NameOf(name), std::array{elements}));
  return CheckF32(**tensor);
}

Status WeightFinder::Taps(std::string_view name, uint64_t n_taps, uint64_t channels,
                          const GgufTensor** tensor) {
  KVRUN_ASSIGN_OR_RETURN(*tensor, Tensor(NameOf(name), std::array{n_taps, channels}));
  return CheckF32(**tensor);
}

Status WeightFinder::FindQkv(LayerWeights& weights) {
  if (names_.has_fused_qkv) {
    const auto q = static_cast<uint32_t>(sizes_.q);
    const auto kv = static_cast<uint32_t>(sizes_.kv);
    KVRUN_RETURN_IF_ERROR(Matrix(".attn_qkv.weight", sizes_.embd, sizes_.q + 2 * sizes_.kv, &weights.q));
    weights.q.n_rows = q;
    weights.k = {weights.q.tensor, q, kv};
    weights.v = {weights.q.tensor, q + kv, kv};
    return Status::Ok();
  }
  const uint64_t q_rows = config_.has_query_gate ? 2 * sizes_.q : sizes_.q;
  KVRUN_RETURN_IF_ERROR(Matrix(".attn_q.weight", sizes_.embd, q_rows, &weights.q));
  KVRUN_RETURN_IF_ERROR(Matrix(".attn_k.weight", sizes_.embd, sizes_.kv, &weights.k));
  return Matrix(".attn_v.weight", sizes_.embd, sizes_.kv, &weights.v);
}

Status WeightFinder::FindAttention(LayerWeights& weights) {
  KVRUN_RETURN_IF_ERROR(FindQkv(weights));
  if (config_.has_qkv_bias) {
    KVRUN_RETURN_IF_ERROR(Vector(".attn_q.bias", sizes_.q, &weights.q_bias));
    KVRUN_RETURN_IF_ERROR(Vector(".attn_k.bias", sizes_.kv, &weights.k_bias));
    KVRUN_RETURN_IF_ERROR(Vector(".attn_v.bias", sizes_.kv, &weights.v_bias));
  }
  if (config_.has_qk_norm) {
    KVRUN_RETURN_IF_ERROR(Vector(".attn_q_norm.weight", sizes_.head, &weights.q_norm));
    KVRUN_RETURN_IF_ERROR(Vector(".attn_k_norm.weight", sizes_.head, &weights.k_norm));
  }
  return Matrix(".attn_output.weight", sizes_.q, sizes_.embd, &weights.attention_output);
}

Status WeightFinder::FindDeltaNet(LayerWeights& weights) {
  KVRUN_RETURN_IF_ERROR(Matrix(".attn_qkv.weight", sizes_.embd, sizes_.channels, &weights.delta_qkv));
  KVRUN_RETURN_IF_ERROR(Matrix(".attn_gate.weight", sizes_.embd, sizes_.values, &weights.delta_gate));
  KVRUN_RETURN_IF_ERROR(Matrix(".ssm_alpha.weight", sizes_.embd, sizes_.value_heads, &weights.delta_alpha));
  KVRUN_RETURN_IF_ERROR(Matrix(".ssm_beta.weight", sizes_.embd, sizes_.value_heads, &weights.delta_beta));
  KVRUN_RETURN_IF_ERROR(Taps(".ssm_conv1d.weight", sizes_.delta_taps, sizes_.channels, &weights.delta_taps));
  KVRUN_RETURN_IF_ERROR(Vector(".ssm_a", sizes_.value_heads, &weights.delta_a));
  KVRUN_RETURN_IF_ERROR(Vector(".ssm_dt.bias", sizes_.value_heads, &weights.delta_dt_bias));
  KVRUN_RETURN_IF_ERROR(Vector(".ssm_norm.weight", sizes_.state_head, &weights.delta_norm));
  return Matrix(".ssm_out.weight", sizes_.values, sizes_.embd, &weights.delta_output);
}

Status WeightFinder::FindConvolution(LayerWeights& weights) {
  KVRUN_RETURN_IF_ERROR(
      Matrix(".shortconv.in_proj.weight", sizes_.embd, 3 * sizes_.embd, &weights.convolution_input));
  KVRUN_RETURN_IF_ERROR(
      Taps(".shortconv.conv.weight", sizes_.convolution_taps, sizes_.embd, &weights.convolution_taps));
  return Matrix(".shortconv.out_proj.weight", sizes_.embd, sizes_.embd, &weights.convolution_output);
}

Status WeightFinder::FindFeedForward(LayerWeights& weights) {
  if (config_.experts.n_experts > 0) {
    KVRUN_RETURN_IF_ERROR(Matrix(".ffn_gate_inp.weight", sizes_.embd, sizes_.n_experts, &weights.router));
    KVRUN_RETURN_IF_ERROR(
        Experts(".ffn_gate_exps.weight", sizes_.embd, sizes_.expert_ff, &weights.experts_gate));
    KVRUN_RETURN_IF_ERROR(Experts(".ffn_up_exps.weight", sizes_.embd, sizes_.expert_ff, &weights.experts_up));
    return Experts(".ffn_down_exps.weight", sizes_.expert_ff, sizes_.embd, &weights.experts_down);
  }
  if (names_.has_fused_gate_up) {
    const auto ff = static_cast<uint32_t>(sizes_.ff);
    KVRUN_RETURN_IF_ERROR(Matrix(".ffn_up.weight", sizes_.embd, 2 * sizes_.ff, &weights.ffn_gate));
    weights.ffn_gate.n_rows = ff;
    weights.ffn_up = {weights.ffn_gate.tensor, ff, ff};
  } else {
    KVRUN_RETURN_IF_ERROR(Matrix(".ffn_gate.weight", sizes_.embd, sizes_.ff, &weights.ffn_gate));
    KVRUN_RETURN_IF_ERROR(Matrix(".ffn_up.weight", sizes_.embd, sizes_.ff, &weights.ffn_up));
  }
  return Matrix(".ffn_down.weight", sizes_.ff, sizes_.embd, &weights.ffn_down);
}

Status WeightFinder::FindLayer(LayerWeights& weights) {
  KVRUN_RETURN_IF_ERROR(Vector(".attn_norm.weight", sizes_.embd, &weights.attention_norm));
  switch (config_.layers[layer_].kind) {
    case LayerKind::kAttention:
    case LayerKind::kWindowedAttention: KVRUN_RETURN_IF_ERROR(FindAttention(weights)); break;
    case LayerKind::kDeltaNet: KVRUN_RETURN_IF_ERROR(FindDeltaNet(weights)); break;
    case LayerKind::kShortConvolution: KVRUN_RETURN_IF_ERROR(FindConvolution(weights)); break;
  }
  if (config_.has_post_norms) {
    KVRUN_RETURN_IF_ERROR(Vector(".post_attention_norm.weight", sizes_.embd, &weights.post_attention_norm));
    KVRUN_RETURN_IF_ERROR(Vector(".post_ffw_norm.weight", sizes_.embd, &weights.post_ffn_norm));
  }
  KVRUN_RETURN_IF_ERROR(Vector(fmt::format(".{}", names_.ffn_norm), sizes_.embd, &weights.ffn_norm));
  return FindFeedForward(weights);
}

// Draft heads guess further tokens: they are no part of the model's own computation.
bool WeightFinder::IsOfDraftHead(std::string_view name) const {
  constexpr std::string_view kPrefix = "blk.";
  if (!name.starts_with(kPrefix) || config_.n_draft_heads == 0) return false;
  uint32_t block = 0;
  const char* const begin = name.data() + kPrefix.size();
  const auto [end, error] = std::from_chars(begin, name.data() + name.size(), block);
  return error == std::errc() && end != begin && block >= config_.n_layers &&
         block < config_.n_layers + config_.n_draft_heads;
}

// A tensor that is left over would mean a computation that kvrun does not do: the answer would be wrong.
Status WeightFinder::CheckNothingIsLeft() const {
  for (const GgufTensor& tensor : file_.tensors()) {
    if (used_.contains(&tensor) || IsIgnorable(tensor.name) || IsOfDraftHead(tensor.name)) continue;
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
  KVRUN_RETURN_IF_ERROR(Matrix("token_embd.weight", sizes_.embd, config_.n_vocab, &weights.token_embedding));
  KVRUN_RETURN_IF_ERROR(Vector(names_.output_norm, sizes_.embd, &weights.output_norm));
  weights.output = weights.token_embedding;
  if (!config_.has_tied_output) {
    KVRUN_RETURN_IF_ERROR(Matrix("output.weight", sizes_.embd, config_.n_vocab, &weights.output));
  }
  weights.layers.resize(config_.n_layers);
  for (layer_ = 0; layer_ < config_.n_layers; ++layer_)
    KVRUN_RETURN_IF_ERROR(FindLayer(weights.layers[layer_]));
  KVRUN_RETURN_IF_ERROR(CheckNothingIsLeft());
  return weights;
}

}  // namespace

Result<ModelWeights> FindModelWeights(const GgufFile& file, const ModelConfig& config) {
  const Architecture* architecture = FindArchitecture(config.architecture);
  return WeightFinder(file, config, architecture != nullptr ? architecture->names : TensorNames()).Find();
}

}  // namespace kvrun
