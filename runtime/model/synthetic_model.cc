#include "runtime/model/synthetic_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "platform/base/check.h"
#include "platform/base/random.h"
#include "runtime/model/architectures.h"
#include "runtime/model/gguf_writer.h"

namespace kvrun {
namespace {

constexpr uint64_t kSeed = 0x6b7672756e;

// Declares a shape's keys and tensors.
class FilePlan {
 public:
  FilePlan(const SyntheticShape& shape, uint32_t n_layers)
      : shape_(shape), n_layers_(n_layers), architecture_(*FindArchitecture(shape.architecture)) {}

  GgufWriter Make() {
    SetSizes();
    SetKinds();
    Matrix("token_embd.weight", shape_.embedding_type, shape_.n_embd, shape_.n_vocab);
    Floats(std::string(architecture_.names.output_norm), {shape_.n_embd});
    if (!shape_.has_tied_output) Matrix("output.weight", shape_.matrix_type, shape_.n_embd, shape_.n_vocab);
    for (layer_ = 0; layer_ < n_layers_; ++layer_) DeclareLayer();
    return std::move(writer_);
  }

 private:
  std::string Key(std::string_view suffix) const { return fmt::format("{}.{}", shape_.architecture, suffix); }
  std::string Name(std::string_view suffix) const { return fmt::format("blk.{}.{}", layer_, suffix); }
  void Matrix(const std::string& name, TensorType type, uint64_t n_in, uint64_t n_out) {
    KVRUN_CHECK(n_in % GetTensorType(type).block_elements == 0);
    writer_.Declare(name, type, {n_in, n_out});
  }
  void Matrix(std::string_view name, uint64_t n_in, uint64_t n_out) {
    Matrix(Name(name), shape_.matrix_type, n_in, n_out);
  }
  void Floats(const std::string& name, std::vector<uint64_t> sizes) {
    writer_.Declare(name, TensorType::kF32, std::move(sizes));
  }
  bool Has(LayerKind kind) const;
  void SetSizes();
  void SetKinds();
  void DeclareLayer();
  void DeclareAttention();
  void DeclareDeltaNet();
  void DeclareConvolution();

  const SyntheticShape& shape_;
  uint32_t n_layers_;
  const Architecture& architecture_;
  GgufWriter writer_;
  uint32_t layer_ = 0;
};

bool FilePlan::Has(LayerKind kind) const {
  for (uint32_t i = 0; i < n_layers_; ++i) {
    if (shape_.KindOf(i) == kind) return true;
  }
  return false;
}

void FilePlan::SetSizes() {
  writer_.Set("general.architecture", shape_.architecture);
  writer_.Set("general.name", fmt::format("{} with random weights", shape_.name));
  writer_.Set(Key("block_count"), n_layers_);
  writer_.Set(Key("embedding_length"), shape_.n_embd);
  writer_.Set(Key("feed_forward_length"), shape_.n_ff);
  writer_.Set(Key("attention.head_count"), shape_.n_heads);
  writer_.Set(Key("attention.key_length"), shape_.head_dim);
  writer_.Set(Key("attention.value_length"), shape_.head_dim);
  writer_.Set(Key("attention.layer_norm_rms_epsilon"), architecture_.has_qk_norm ? 1e-6F : 1e-5F);
  writer_.Set(Key("context_length"), shape_.n_ctx_train);
  writer_.Set(Key("rope.dimension_count"), shape_.rotary_dim == 0 ? shape_.head_dim : shape_.rotary_dim);
  writer_.Set(Key("rope.freq_base"), shape_.rope_base);
}

// A number or a flag for each layer, whatever the architecture's own pattern is.
void FilePlan::SetKinds() {
  std::vector<uint32_t> n_kv_heads(n_layers_, shape_.n_kv_heads);
  std::vector<uint32_t> is_other(n_layers_, 0);
  for (uint32_t i = 0; i < n_layers_; ++i) {
    if (shape_.KindOf(i) == LayerKind::kShortConvolution) n_kv_heads[i] = 0;
    if (shape_.KindOf(i) != LayerKind::kAttention) is_other[i] = 1;
  }
  if (Has(LayerKind::kShortConvolution)) {
    writer_.Set(Key("attention.head_count_kv"), n_kv_heads);
    writer_.Set(Key("shortconv.l_cache"), shape_.n_convolution_taps);
  } else {
    writer_.Set(Key("attention.head_count_kv"), shape_.n_kv_heads);
  }
  if (Has(LayerKind::kWindowedAttention)) {
    writer_.Set(Key("attention.sliding_window"), shape_.sliding_window);
    writer_.Set(Key("attention.sliding_window_pattern"), is_other);
  }
  if (Has(LayerKind::kDeltaNet)) {
    const DeltaNetConfig& net = shape_.delta_net;
    writer_.Set(Key("attention.recurrent_layers"), is_other);
    writer_.Set(Key("ssm.group_count"), net.n_key_heads);
    writer_.Set(Key("ssm.time_step_rank"), net.n_value_heads);
    writer_.Set(Key("ssm.state_size"), net.head_dim);
    writer_.Set(Key("ssm.inner_size"), net.value_dim());
    writer_.Set(Key("ssm.conv_kernel"), net.n_taps);
  }
}

void FilePlan::DeclareLayer() {
  const uint64_t n_embd = shape_.n_embd;
  Floats(Name("attn_norm.weight"), {n_embd});
  switch (shape_.KindOf(layer_)) {
    case LayerKind::kAttention:
    case LayerKind::kWindowedAttention: DeclareAttention(); break;
    case LayerKind::kDeltaNet: DeclareDeltaNet(); break;
    case LayerKind::kShortConvolution: DeclareConvolution(); break;
  }
  if (architecture_.has_post_norms) {
    Floats(Name("post_attention_norm.weight"), {n_embd});
    Floats(Name("post_ffw_norm.weight"), {n_embd});
  }
  Floats(Name(architecture_.names.ffn_norm), {n_embd});
  Matrix("ffn_gate.weight", n_embd, shape_.n_ff);
  Matrix("ffn_up.weight", n_embd, shape_.n_ff);
  Matrix("ffn_down.weight", shape_.n_ff, n_embd);
}

void FilePlan::DeclareAttention() {
  const uint64_t q_dim = uint64_t{shape_.n_heads} * shape_.head_dim;
  const uint64_t kv_dim = uint64_t{shape_.n_kv_heads} * shape_.head_dim;
  Matrix("attn_q.weight", shape_.n_embd, architecture_.has_query_gate ? 2 * q_dim : q_dim);
  Matrix("attn_k.weight", shape_.n_embd, kv_dim);
  Matrix("attn_v.weight", shape_.n_embd, kv_dim);
  Matrix("attn_output.weight", q_dim, shape_.n_embd);
  if (!architecture_.has_qk_norm) return;
  Floats(Name("attn_q_norm.weight"), {shape_.head_dim});
  Floats(Name("attn_k_norm.weight"), {shape_.head_dim});
}

void FilePlan::DeclareDeltaNet() {
  const DeltaNetConfig& net = shape_.delta_net;
  Matrix("attn_qkv.weight", shape_.n_embd, net.n_channels());
  Matrix("attn_gate.weight", shape_.n_embd, net.value_dim());
  Matrix("ssm_alpha.weight", shape_.n_embd, net.n_value_heads);
  Matrix("ssm_beta.weight", shape_.n_embd, net.n_value_heads);
  Floats(Name("ssm_conv1d.weight"), {net.n_taps, net.n_channels()});
  Floats(Name("ssm_a"), {net.n_value_heads});
  Floats(Name("ssm_dt.bias"), {net.n_value_heads});
  Floats(Name("ssm_norm.weight"), {net.head_dim});
  Matrix("ssm_out.weight", net.value_dim(), shape_.n_embd);
}

void FilePlan::DeclareConvolution() {
  const uint64_t n_embd = shape_.n_embd;
  Matrix("shortconv.in_proj.weight", n_embd, 3 * n_embd);
  Floats(Name("shortconv.conv.weight"), {shape_.n_convolution_taps, n_embd});
  Matrix("shortconv.out_proj.weight", n_embd, n_embd);
}

// Of the integers that random bits of a block stand for: value = scale * integer + minimum.
struct Levels {
  double deviation = 1.0;
  double mean = 0.0;  // taken off by the minimum, where a block has one
  bool has_minimum = false;
};

Levels LevelsOf(TensorType type) {
  switch (type) {
    case TensorType::kQ4_0: return {4.61, -0.5, false};
    case TensorType::kQ4_1: return {4.61, 7.5, true};
    case TensorType::kQ8_0: return {73.9, -0.5, false};
    default: break;
  }
  KVRUN_CHECK(false);
  return {};
}

// Random words from the `offset_bytes`th byte on of what `seed` stands for.
void FillWords(uint64_t seed, uint64_t offset_bytes, std::span<std::byte> to) {
  constexpr uint64_t kWordBytes = sizeof(uint64_t);
  Random random(seed + offset_bytes / kWordBytes * Random::kStep);
  uint64_t skipped = offset_bytes % kWordBytes;
  while (!to.empty()) {
    const uint64_t word = random.Next();
    const uint64_t n = std::min<uint64_t>(kWordBytes - skipped, to.size());
    std::memcpy(to.data(), reinterpret_cast<const std::byte*>(&word) + skipped, n);
    to = to.subspan(n);
    skipped = 0;
    for (; to.size() >= kWordBytes; to = to.subspan(kWordBytes)) {
      const uint64_t next = random.Next();
      std::memcpy(to.data(), &next, kWordBytes);
    }
  }
}

// `bytes` again and again, at the beginning of each `period_bytes`: what of it lies in `to`, which begins at
// offset_bytes.
void PutEach(uint64_t period_bytes, std::span<const std::byte> bytes, uint64_t offset_bytes,
             std::span<std::byte> to) {
  const uint64_t end = offset_bytes + to.size();
  for (uint64_t at = offset_bytes / period_bytes * period_bytes; at < end; at += period_bytes) {
    const uint64_t from = std::max(at, offset_bytes);
    const uint64_t until = std::min(at + bytes.size(), end);
    if (from < until)
      std::memcpy(to.data() + (from - offset_bytes), bytes.data() + (from - at), until - from);
  }
}

// Norms are ones, a convolution keeps the size of what goes in, and a delta net's state is what some tens of
// tokens have left.
float FloatOf(const GgufTensor& tensor) {
  if (tensor.name.ends_with(".ssm_a")) return -1.0F;
  if (tensor.name.ends_with(".ssm_dt.bias")) return -3.0F;
  return tensor.n_dims == 1 ? 1.0F : 1.0F / std::sqrt(static_cast<float>(tensor.shape[0]));
}

// Weights' deviation is 1 / sqrt(n_in): a product keeps the size of what goes in.
void MakeTensor(const GgufTensor& tensor, uint64_t offset_bytes, std::span<std::byte> to) {
  if (tensor.type == TensorType::kF32) {
    const float value = FloatOf(tensor);
    PutEach(sizeof(value), std::as_bytes(std::span(&value, 1)), offset_bytes, to);
    return;
  }
  const Levels levels = LevelsOf(tensor.type);
  const double scale = 1.0 / (levels.deviation * std::sqrt(static_cast<double>(tensor.shape[0])));
  const std::array<uint16_t, 2> halves = {FloatToHalf(static_cast<float>(scale)),
                                          FloatToHalf(static_cast<float>(-scale * levels.mean))};
  FillWords(Random(kSeed + tensor.offset_bytes).Next(), offset_bytes, to);
  PutEach(GetTensorType(tensor.type).block_bytes,
          std::as_bytes(std::span(halves).first(levels.has_minimum ? 2 : 1)), offset_bytes, to);
}

}  // namespace

LayerKind SyntheticShape::KindOf(uint32_t layer) const {
  switch (kinds.empty() ? 'a' : kinds[layer % kinds.size()]) {
    case 'w': return LayerKind::kWindowedAttention;
    case 'd': return LayerKind::kDeltaNet;
    case 'c': return LayerKind::kShortConvolution;
    default: return LayerKind::kAttention;
  }
}

uint64_t SyntheticModelBytes(const SyntheticShape& shape, uint32_t n_layers) {
  return FilePlan(shape, n_layers).Make().data_bytes();
}

uint32_t LayersThatFit(const SyntheticShape& shape, uint64_t memory_bytes) {
  const uint64_t limit = memory_bytes / 4 * 3;
  const auto fits = [&](uint32_t n_layers) { return SyntheticModelBytes(shape, n_layers) <= limit; };
  if (fits(shape.n_layers)) return shape.n_layers;
  uint32_t n_periods = (shape.n_layers - 1) / shape.period();
  while (n_periods > 2 && !fits(n_periods * shape.period())) --n_periods;
  return std::min(std::max(n_periods, 2U) * shape.period(), shape.n_layers);
}

Result<std::unique_ptr<Model>> MakeSyntheticModel(const SyntheticShape& shape, uint32_t n_layers) {
  if (n_layers == 0) n_layers = shape.n_layers;
  const GgufWriter writer = FilePlan(shape, n_layers).Make();
  KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<GgufFile> file,
                         GgufFile::Make(writer.Header(), writer.data_bytes(), MakeTensor,
                                        fmt::format("{} with random weights", shape.name)));
  KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<Model> model, ReadModel(std::move(file)));
  if (n_layers < shape.n_layers) model->n_layers_whole = shape.n_layers;
  return model;
}

}  // namespace kvrun
