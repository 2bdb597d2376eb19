#include "runtime/model/synthetic_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "platform/base/check.h"
#include "platform/base/random.h"
#include "runtime/model/gguf_writer.h"

namespace kvrun {
namespace {

// Types as usual files have them.
constexpr std::array kShapes = {
    SyntheticShape{.name = "SmolLM2-135M",
                   .n_layers = 30,
                   .n_embd = 576,
                   .n_ff = 1536,
                   .n_heads = 9,
                   .n_kv_heads = 3,
                   .head_dim = 64,
                   .n_vocab = 49152,
                   .n_ctx_train = 8192,
                   .rope_base = 100000.0F,
                   .embedding_type = TensorType::kQ8_0,
                   .matrix_type = TensorType::kQ4_1,
                   .has_tied_output = true},
    SyntheticShape{.name = "Llama-3.2-1B",
                   .n_layers = 16,
                   .n_embd = 2048,
                   .n_ff = 8192,
                   .n_heads = 32,
                   .n_kv_heads = 8,
                   .head_dim = 64,
                   .n_vocab = 128256,
                   .n_ctx_train = 131072,
                   .rope_base = 500000.0F,
                   .embedding_type = TensorType::kQ4_0,
                   .matrix_type = TensorType::kQ4_0,
                   .has_tied_output = true},
    SyntheticShape{.name = "Llama-3.2-3B",
                   .n_layers = 28,
                   .n_embd = 3072,
                   .n_ff = 8192,
                   .n_heads = 24,
                   .n_kv_heads = 8,
                   .head_dim = 128,
                   .n_vocab = 128256,
                   .n_ctx_train = 131072,
                   .rope_base = 500000.0F,
                   .embedding_type = TensorType::kQ4_0,
                   .matrix_type = TensorType::kQ4_0,
                   .has_tied_output = true},
    SyntheticShape{.name = "Llama-3.1-8B",
                   .n_layers = 32,
                   .n_embd = 4096,
                   .n_ff = 14336,
                   .n_heads = 32,
                   .n_kv_heads = 8,
                   .head_dim = 128,
                   .n_vocab = 128256,
                   .n_ctx_train = 131072,
                   .rope_base = 500000.0F,
                   .embedding_type = TensorType::kQ4_0,
                   .matrix_type = TensorType::kQ4_0,
                   .has_tied_output = false},
    SyntheticShape{.name = "Qwen3-0.6B",
                   .architecture = "qwen3",
                   .n_layers = 28,
                   .n_embd = 1024,
                   .n_ff = 3072,
                   .n_heads = 16,
                   .n_kv_heads = 8,
                   .head_dim = 128,
                   .n_vocab = 151936,
                   .n_ctx_train = 40960,
                   .rope_base = 1000000.0F,
                   .embedding_type = TensorType::kQ4_0,
                   .matrix_type = TensorType::kQ4_0,
                   .has_tied_output = true},
    SyntheticShape{.name = "Qwen3-4B",
                   .architecture = "qwen3",
                   .n_layers = 36,
                   .n_embd = 2560,
                   .n_ff = 9728,
                   .n_heads = 32,
                   .n_kv_heads = 8,
                   .head_dim = 128,
                   .n_vocab = 151936,
                   .n_ctx_train = 40960,
                   .rope_base = 1000000.0F,
                   .embedding_type = TensorType::kQ4_0,
                   .matrix_type = TensorType::kQ4_0,
                   .has_tied_output = true},
    SyntheticShape{.name = "Qwen3-8B",
                   .architecture = "qwen3",
                   .n_layers = 36,
                   .n_embd = 4096,
                   .n_ff = 12288,
                   .n_heads = 32,
                   .n_kv_heads = 8,
                   .head_dim = 128,
                   .n_vocab = 151936,
                   .n_ctx_train = 40960,
                   .rope_base = 1000000.0F,
                   .embedding_type = TensorType::kQ4_0,
                   .matrix_type = TensorType::kQ4_0,
                   .has_tied_output = false},
};

constexpr uint64_t kSeed = 0x6b7672756e;

void Declare(GgufWriter* writer, const std::string& name, TensorType type, uint64_t n_in, uint64_t n_out) {
  KVRUN_CHECK(n_in % GetTensorType(type).block_elements == 0);
  writer->Declare(name, type, {n_in, n_out});
}

void DeclareNorm(GgufWriter* writer, const std::string& name, uint64_t n) {
  writer->Declare(name, TensorType::kF32, {n});
}

GgufWriter PlanFile(const SyntheticShape& shape, uint32_t n_layers) {
  GgufWriter writer;
  const auto key = [&shape](std::string_view suffix) {
    return fmt::format("{}.{}", shape.architecture, suffix);
  };
  const bool has_qk_norm = shape.architecture == "qwen3";
  writer.Set("general.architecture", shape.architecture);
  writer.Set("general.name", fmt::format("{} with random weights", shape.name));
  writer.Set(key("block_count"), n_layers);
  writer.Set(key("embedding_length"), shape.n_embd);
  writer.Set(key("feed_forward_length"), shape.n_ff);
  writer.Set(key("attention.head_count"), shape.n_heads);
  writer.Set(key("attention.head_count_kv"), shape.n_kv_heads);
  writer.Set(key("attention.key_length"), shape.head_dim);
  writer.Set(key("attention.value_length"), shape.head_dim);
  writer.Set(key("attention.layer_norm_rms_epsilon"), has_qk_norm ? 1e-6F : 1e-5F);
  writer.Set(key("context_length"), shape.n_ctx_train);
  writer.Set(key("rope.dimension_count"), shape.head_dim);
  writer.Set(key("rope.freq_base"), shape.rope_base);
  const uint64_t q_dim = uint64_t{shape.n_heads} * shape.head_dim;
  const uint64_t kv_dim = uint64_t{shape.n_kv_heads} * shape.head_dim;
  Declare(&writer, "token_embd.weight", shape.embedding_type, shape.n_embd, shape.n_vocab);
  DeclareNorm(&writer, "output_norm.weight", shape.n_embd);
  if (!shape.has_tied_output)
    Declare(&writer, "output.weight", shape.matrix_type, shape.n_embd, shape.n_vocab);
  for (uint32_t i = 0; i < n_layers; ++i) {
    const auto name = [i](std::string_view suffix) { return fmt::format("blk.{}.{}.weight", i, suffix); };
    DeclareNorm(&writer, name("attn_norm"), shape.n_embd);
    Declare(&writer, name("attn_q"), shape.matrix_type, shape.n_embd, q_dim);
    Declare(&writer, name("attn_k"), shape.matrix_type, shape.n_embd, kv_dim);
    Declare(&writer, name("attn_v"), shape.matrix_type, shape.n_embd, kv_dim);
    Declare(&writer, name("attn_output"), shape.matrix_type, q_dim, shape.n_embd);
    if (has_qk_norm) {
      DeclareNorm(&writer, name("attn_q_norm"), shape.head_dim);
      DeclareNorm(&writer, name("attn_k_norm"), shape.head_dim);
    }
    DeclareNorm(&writer, name("ffn_norm"), shape.n_embd);
    Declare(&writer, name("ffn_gate"), shape.matrix_type, shape.n_embd, shape.n_ff);
    Declare(&writer, name("ffn_up"), shape.matrix_type, shape.n_embd, shape.n_ff);
    Declare(&writer, name("ffn_down"), shape.matrix_type, shape.n_ff, shape.n_embd);
  }
  return writer;
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

// Weights' deviation is 1 / sqrt(n_in): a product keeps the size of what goes in. Norms are ones.
void MakeTensor(const GgufTensor& tensor, uint64_t offset_bytes, std::span<std::byte> to) {
  if (tensor.type == TensorType::kF32) {
    const float one = 1.0F;
    PutEach(sizeof(one), std::as_bytes(std::span(&one, 1)), offset_bytes, to);
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

std::span<const SyntheticShape> SyntheticShapes() { return kShapes; }

Result<SyntheticShape> FindSyntheticShape(std::string_view name) {
  std::string known;
  for (const SyntheticShape& shape : kShapes) {
    if (shape.name == name) return shape;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", shape.name);
  }
  return Status(StatusCode::kInvalidArgument,
                fmt::format("there is no shape \"{}\"; known: {}", name, known));
}

uint64_t SyntheticModelBytes(const SyntheticShape& shape, uint32_t n_layers) {
  return PlanFile(shape, n_layers).data_bytes();
}

uint32_t LayersThatFit(const SyntheticShape& shape, uint64_t memory_bytes) {
  const uint64_t limit = memory_bytes / 4 * 3;
  uint32_t n_layers = shape.n_layers;
  while (n_layers > 2 && SyntheticModelBytes(shape, n_layers) > limit) --n_layers;
  return n_layers;
}

Result<std::unique_ptr<Model>> MakeSyntheticModel(const SyntheticShape& shape, uint32_t n_layers) {
  if (n_layers == 0) n_layers = shape.n_layers;
  const GgufWriter writer = PlanFile(shape, n_layers);
  KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<GgufFile> file,
                         GgufFile::Make(writer.Header(), writer.data_bytes(), MakeTensor,
                                        fmt::format("{} with random weights", shape.name)));
  KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<Model> model, ReadModel(std::move(file)));
  if (n_layers < shape.n_layers) model->n_layers_whole = shape.n_layers;
  return model;
}

}  // namespace kvrun
