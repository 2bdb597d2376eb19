#include "runtime/model/synthetic_model.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "platform/base/check.h"
#include "platform/base/random.h"
#include "platform/base/units.h"
#include "platform/io/nameless_file.h"
#include "runtime/model/gguf_writer.h"

namespace kvrun {
namespace {

// Types as usual files have them. Of Llama-3.1-8B, a few of its 32 layers: all would not fit where kvrun is
// to be measured, and each takes the same time.
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
                   .has_tied_output = false,
                   .n_layers_made = 4},
};

constexpr uint64_t kSeed = 0x6b7672756e;
constexpr uint64_t kBytesAtOnce = uint64_t{1} << 20;

struct TensorPlace {
  TensorType type = TensorType::kF32;
  uint64_t n_in = 0;
  uint64_t n_bytes = 0;
  uint64_t offset = 0;  // after the header
};

struct FilePlan {
  GgufWriter writer;
  std::vector<TensorPlace> tensors;

  void Add(const std::string& name, TensorType type, uint64_t n_in, uint64_t n_out) {
    const TensorTypeInfo& info = GetTensorType(type);
    KVRUN_CHECK(n_in % info.block_elements == 0);
    tensors.push_back({type, n_in, n_in / info.block_elements * info.block_bytes * n_out,
                       writer.Declare(name, type, {n_in, n_out})});
  }
  void AddNorm(const std::string& name, uint64_t n) {
    tensors.push_back({TensorType::kF32, n, n * sizeof(float), writer.Declare(name, TensorType::kF32, {n})});
  }
};

FilePlan PlanFile(const SyntheticShape& shape, uint32_t n_layers) {
  FilePlan plan;
  GgufWriter& writer = plan.writer;
  writer.Set("general.architecture", "llama");
  writer.Set("general.name", fmt::format("{} with random weights", shape.name));
  writer.Set("llama.block_count", n_layers);
  writer.Set("llama.embedding_length", shape.n_embd);
  writer.Set("llama.feed_forward_length", shape.n_ff);
  writer.Set("llama.attention.head_count", shape.n_heads);
  writer.Set("llama.attention.head_count_kv", shape.n_kv_heads);
  writer.Set("llama.attention.key_length", shape.head_dim);
  writer.Set("llama.attention.value_length", shape.head_dim);
  writer.Set("llama.attention.layer_norm_rms_epsilon", 1e-5F);
  writer.Set("llama.context_length", shape.n_ctx_train);
  writer.Set("llama.rope.dimension_count", shape.head_dim);
  writer.Set("llama.rope.freq_base", shape.rope_base);
  const uint64_t q_dim = uint64_t{shape.n_heads} * shape.head_dim;
  const uint64_t kv_dim = uint64_t{shape.n_kv_heads} * shape.head_dim;
  plan.Add("token_embd.weight", shape.embedding_type, shape.n_embd, shape.n_vocab);
  plan.AddNorm("output_norm.weight", shape.n_embd);
  if (!shape.has_tied_output) plan.Add("output.weight", shape.matrix_type, shape.n_embd, shape.n_vocab);
  for (uint32_t i = 0; i < n_layers; ++i) {
    const auto name = [i](std::string_view suffix) { return fmt::format("blk.{}.{}.weight", i, suffix); };
    plan.AddNorm(name("attn_norm"), shape.n_embd);
    plan.Add(name("attn_q"), shape.matrix_type, shape.n_embd, q_dim);
    plan.Add(name("attn_k"), shape.matrix_type, shape.n_embd, kv_dim);
    plan.Add(name("attn_v"), shape.matrix_type, shape.n_embd, kv_dim);
    plan.Add(name("attn_output"), shape.matrix_type, q_dim, shape.n_embd);
    plan.AddNorm(name("ffn_norm"), shape.n_embd);
    plan.Add(name("ffn_gate"), shape.matrix_type, shape.n_embd, shape.n_ff);
    plan.Add(name("ffn_up"), shape.matrix_type, shape.n_embd, shape.n_ff);
    plan.Add(name("ffn_down"), shape.matrix_type, shape.n_ff, shape.n_embd);
  }
  return plan;
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

// Whole blocks. Weights' deviation is 1 / sqrt(n_in): a product keeps the size of what goes in.
void FillMatrix(const TensorPlace& tensor, Random& random, std::span<std::byte> blocks) {
  const Levels levels = LevelsOf(tensor.type);
  const double scale = 1.0 / (levels.deviation * std::sqrt(static_cast<double>(tensor.n_in)));
  const std::array<uint16_t, 2> halves = {FloatToHalf(static_cast<float>(scale)),
                                          FloatToHalf(static_cast<float>(-scale * levels.mean))};
  for (size_t at = 0; at < blocks.size(); at += sizeof(uint64_t)) {
    const uint64_t bits = random.Next();
    std::memcpy(blocks.data() + at, &bits, std::min(sizeof(bits), blocks.size() - at));
  }
  const size_t block_bytes = GetTensorType(tensor.type).block_bytes;
  for (size_t at = 0; at < blocks.size(); at += block_bytes) {
    std::memcpy(blocks.data() + at, halves.data(), (levels.has_minimum ? 2 : 1) * sizeof(uint16_t));
  }
}

void FillOnes(std::span<std::byte> bytes) {
  const float one = 1.0F;
  for (size_t at = 0; at < bytes.size(); at += sizeof(one)) {
    std::memcpy(bytes.data() + at, &one, sizeof(one));
  }
}

Status WriteAt(int fd, uint64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return StatusFromErrno(written < 0 ? errno : EIO, "cannot write random weights");
    bytes = bytes.subspan(static_cast<size_t>(written));
    offset += static_cast<uint64_t>(written);
  }
  return Status::Ok();
}

Status WriteTensors(int fd, uint64_t header_bytes, const std::vector<TensorPlace>& tensors) {
  std::vector<std::byte> buffer;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const TensorPlace& tensor = tensors[i];
    Random random(kSeed + i);
    const uint64_t block_bytes = GetTensorType(tensor.type).block_bytes;
    const uint64_t most_bytes = kBytesAtOnce / block_bytes * block_bytes;
    for (uint64_t done = 0; done < tensor.n_bytes; done += buffer.size()) {
      buffer.resize(std::min(most_bytes, tensor.n_bytes - done));
      if (tensor.type == TensorType::kF32) {
        FillOnes(buffer);
      } else {
        FillMatrix(tensor, random, buffer);
      }
      KVRUN_RETURN_IF_ERROR(WriteAt(fd, header_bytes + tensor.offset + done, buffer));
    }
  }
  return Status::Ok();
}

Result<NamelessFile> WriteModelFile(const FilePlan& plan, const std::string& folder) {
  KVRUN_ASSIGN_OR_RETURN(
      NamelessFile file,
      OpenNamelessFile(
          {.folder = folder, .makes_parents = true, .direct = DirectIo::kOff, .allow_tmpfs = true}));
  const std::vector<std::byte> header = plan.writer.Header();
  KVRUN_RETURN_IF_ERROR(ReserveFile(file, header.size() + plan.writer.data_bytes()).status());
  KVRUN_RETURN_IF_ERROR(WriteAt(file.fd.get(), 0, header));
  KVRUN_RETURN_IF_ERROR(WriteTensors(file.fd.get(), header.size(), plan.tensors));
  return file;
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

Result<std::unique_ptr<Model>> MakeSyntheticModel(const SyntheticShape& shape, uint32_t n_layers,
                                                  const std::string& folder) {
  if (n_layers == 0) n_layers = shape.n_layers_made == 0 ? shape.n_layers : shape.n_layers_made;
  const FilePlan plan = PlanFile(shape, n_layers);
  const Result<NamelessFile> file = WriteModelFile(plan, folder);
  if (!file.ok()) {
    return file.status().WithContext(fmt::format("making {} of random weights of {} in {}",
                                                 FormatBytes(plan.writer.data_bytes()), shape.name, folder));
  }
  // What is open keeps the file.
  KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<Model> model,
                         OpenModel(fmt::format("/proc/self/fd/{}", file->fd.get())));
  if (n_layers < shape.n_layers) model->n_layers_whole = shape.n_layers;
  return model;
}

}  // namespace kvrun
