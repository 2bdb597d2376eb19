#include "tests/support/gguf_builder.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "platform/base/check.h"
#include "platform/base/units.h"

namespace kvrun::testing {

ByteWriter& ByteWriter::PutString(std::string_view text) {
  Put(uint64_t{text.size()});
  return PutBytes(std::as_bytes(std::span(text.data(), text.size())));
}

ByteWriter& ByteWriter::PutBytes(std::span<const std::byte> bytes) {
  const size_t at = bytes_.size();
  bytes_.resize(at + bytes.size());
  std::copy(bytes.begin(), bytes.end(), bytes_.begin() + static_cast<std::ptrdiff_t>(at));
  return *this;
}

ByteWriter& ByteWriter::PadTo(size_t multiple) {
  bytes_.resize(RoundUp(bytes_.size(), multiple));
  return *this;
}

GgufBuilder& GgufBuilder::Set(std::string_view key, std::string_view text) {
  return SetRaw(key, 8, ByteWriter().PutString(text).Take());
}

GgufBuilder& GgufBuilder::SetStrings(std::string_view key, const std::vector<std::string>& values) {
  ByteWriter raw;
  raw.Put(uint32_t{8}).Put(uint64_t{values.size()});
  for (const std::string& value : values) raw.PutString(value);
  return SetRaw(key, kArrayType, raw.Take());
}

GgufBuilder& GgufBuilder::SetRaw(std::string_view key, uint32_t type, Bytes value) {
  if (!allows_duplicates_) {
    const auto found =
        std::find_if(keys_.begin(), keys_.end(), [&](const KeyValue& kv) { return kv.key == key; });
    if (found != keys_.end()) {
      found->type = type;
      found->value = std::move(value);
      return *this;
    }
  }
  keys_.push_back({std::string(key), type, std::move(value)});
  return *this;
}

GgufBuilder& GgufBuilder::Erase(std::string_view key) {
  const size_t erased = std::erase_if(keys_, [&](const KeyValue& kv) { return kv.key == key; });
  KVRUN_CHECK(erased > 0);
  return *this;
}

GgufBuilder& GgufBuilder::AddTensor(std::string_view name, uint32_t type, const std::vector<uint64_t>& shape,
                                    Bytes data) {
  if (!allows_duplicates_) std::erase_if(tensors_, [&](const Tensor& tensor) { return tensor.name == name; });
  tensors_.push_back({std::string(name), type, shape, std::move(data), std::nullopt});
  return *this;
}

GgufBuilder& GgufBuilder::AddTensor(std::string_view name, const std::vector<uint64_t>& shape,
                                    const std::vector<float>& values) {
  ByteWriter data;
  for (const float value : values) data.Put(value);
  return AddTensor(name, TensorType::kF32, shape, data.Take());
}

GgufBuilder& GgufBuilder::EraseTensor(std::string_view name) {
  const size_t erased = std::erase_if(tensors_, [&](const Tensor& tensor) { return tensor.name == name; });
  KVRUN_CHECK(erased > 0);
  return *this;
}

GgufBuilder& GgufBuilder::ClaimVersion(uint32_t version) {
  version_ = version;
  return *this;
}

GgufBuilder& GgufBuilder::ClaimTensorCount(uint64_t count) {
  claimed_tensor_count_ = count;
  return *this;
}

GgufBuilder& GgufBuilder::ClaimKeyCount(uint64_t count) {
  claimed_key_count_ = count;
  return *this;
}

GgufBuilder& GgufBuilder::ClaimOffset(std::string_view tensor, uint64_t offset) {
  for (Tensor& candidate : tensors_) {
    if (candidate.name == tensor) candidate.claimed_offset = offset;
  }
  return *this;
}

GgufBuilder& GgufBuilder::AllowDuplicates() {
  allows_duplicates_ = true;
  return *this;
}

GgufBuilder& GgufBuilder::Align(uint64_t alignment) {
  alignment_ = alignment;
  return *this;
}

ByteWriter GgufBuilder::BuildHeader() const {
  ByteWriter header;
  header.PutBytes(std::as_bytes(std::span("GGUF", 4))).Put(version_);
  header.Put(claimed_tensor_count_.value_or(tensors_.size())).Put(claimed_key_count_.value_or(keys_.size()));
  for (const KeyValue& kv : keys_) header.PutString(kv.key).Put(kv.type).PutBytes(kv.value);
  uint64_t offset = 0;
  for (const Tensor& tensor : tensors_) {
    header.PutString(tensor.name).Put(static_cast<uint32_t>(tensor.shape.size()));
    for (const uint64_t n : tensor.shape) header.Put(n);
    header.Put(tensor.type).Put(tensor.claimed_offset.value_or(offset));
    offset = RoundUp(offset + tensor.data.size(), alignment_);
  }
  header.PadTo(alignment_);
  return header;
}

std::vector<GgufBuilder> GgufBuilder::Split(uint16_t n_parts, size_t n_in_first) const {
  std::vector<GgufBuilder> parts(n_parts);
  parts[0].keys_ = keys_;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const size_t part = i < n_in_first ? 0 : 1 + (i - n_in_first) % (parts.size() - 1);
    parts[part].tensors_.push_back(tensors_[i]);
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    parts[i].Set("split.no", static_cast<uint16_t>(i)).Set("split.count", n_parts);
    parts[i].Set("split.tensors.count", static_cast<int32_t>(tensors_.size()));
  }
  return parts;
}

Bytes GgufBuilder::Build() const {
  ByteWriter file = BuildHeader();
  for (const Tensor& tensor : tensors_) file.PadTo(alignment_).PutBytes(tensor.data);
  return file.Take();
}

size_t GgufBuilder::HeaderBytes() const { return BuildHeader().bytes().size(); }

std::vector<float> RandomFloats(size_t n, float scale, uint64_t seed) {
  std::vector<float> values(n);
  uint64_t state = seed;
  for (float& value : values) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    const auto unit = static_cast<float>(state >> 40) * 0x1p-23F - 1.0F;
    value = unit * scale;
  }
  return values;
}

namespace {

void AddTokenizer(GgufBuilder& builder, uint32_t n_vocab) {
  constexpr int32_t kNormal = 1;
  constexpr int32_t kUnknown = 2;
  constexpr int32_t kControl = 3;
  constexpr int32_t kByte = 6;
  std::vector<std::string> tokens = {"<unk>", "<s>", "</s>"};
  std::vector<int32_t> types = {kUnknown, kControl, kControl};
  if (n_vocab >= 259) {
    for (uint32_t byte = 0; byte < 256; ++byte) tokens.push_back(fmt::format("<0x{:02X}>", byte));
    types.resize(tokens.size(), kByte);
  } else {
    for (char c = 'a'; c <= 'z'; ++c) tokens.emplace_back(1, c);
  }
  while (tokens.size() < n_vocab) tokens.push_back(fmt::format("word{}", tokens.size()));
  tokens.resize(n_vocab);
  types.resize(n_vocab, kNormal);
  std::vector<float> scores(n_vocab);
  for (uint32_t i = 0; i < n_vocab; ++i) scores[i] = -static_cast<float>(i);
  builder.Set("tokenizer.ggml.model", "llama").SetStrings("tokenizer.ggml.tokens", tokens);
  builder.SetArray("tokenizer.ggml.scores", scores).SetArray("tokenizer.ggml.token_type", types);
  builder.Set("tokenizer.ggml.unknown_token_id", uint32_t{0});
  builder.Set("tokenizer.ggml.bos_token_id", uint32_t{1}).Set("tokenizer.ggml.eos_token_id", uint32_t{2});
}

void AddHyperParameters(GgufBuilder& builder, const TinyModelOptions& o) {
  const auto key = [&](std::string_view suffix) { return fmt::format("{}.{}", o.architecture, suffix); };
  builder.Set("general.architecture", o.architecture).Set("general.name", "tiny");
  builder.Set(key("block_count"), o.n_layers).Set(key("context_length"), o.n_ctx_train);
  builder.Set(key("embedding_length"), o.n_embd).Set(key("feed_forward_length"), o.n_ff);
  builder.Set(key("attention.head_count"), o.n_heads).Set(key("attention.head_count_kv"), o.n_kv_heads);
  builder.Set(key("attention.key_length"), o.head_dim).Set(key("attention.value_length"), o.head_dim);
  builder.Set(key("rope.dimension_count"), o.head_dim).Set(key("rope.freq_base"), 10000.0F);
  builder.Set(key("attention.layer_norm_rms_epsilon"), 1e-5F).Set(key("vocab_size"), o.n_vocab);
}

class TensorAdder {
 public:
  TensorAdder(GgufBuilder& builder, uint64_t seed) : builder_(builder), seed_(seed) {}

  void Matrix(const std::string& name, uint64_t in, uint64_t out) {
    const float scale = std::sqrt(3.0F / static_cast<float>(in));
    builder_.AddTensor(name, {in, out}, RandomFloats(in * out, scale, ++seed_));
  }
  void Norm(const std::string& name, uint64_t n) {
    std::vector<float> values = RandomFloats(n, 0.25F, ++seed_);
    for (float& value : values) value += 1.0F;
    builder_.AddTensor(name, {n}, values);
  }
  void Bias(const std::string& name, uint64_t n) {
    builder_.AddTensor(name, {n}, RandomFloats(n, 0.5F, ++seed_));
  }

 private:
  GgufBuilder& builder_;
  uint64_t seed_;
};

void AddLayer(TensorAdder& add, const TinyModelOptions& o, uint32_t layer) {
  const auto name = [&](std::string_view suffix) { return fmt::format("blk.{}.{}", layer, suffix); };
  const uint64_t q_dim = uint64_t{o.n_heads} * o.head_dim;
  const uint64_t kv_dim = uint64_t{o.n_kv_heads} * o.head_dim;
  add.Norm(name("attn_norm.weight"), o.n_embd);
  add.Matrix(name("attn_q.weight"), o.n_embd, q_dim);
  add.Matrix(name("attn_k.weight"), o.n_embd, kv_dim);
  add.Matrix(name("attn_v.weight"), o.n_embd, kv_dim);
  add.Matrix(name("attn_output.weight"), q_dim, o.n_embd);
  if (o.has_qkv_bias) {
    add.Bias(name("attn_q.bias"), q_dim);
    add.Bias(name("attn_k.bias"), kv_dim);
    add.Bias(name("attn_v.bias"), kv_dim);
  }
  if (o.has_qk_norm) {
    add.Norm(name("attn_q_norm.weight"), o.head_dim);
    add.Norm(name("attn_k_norm.weight"), o.head_dim);
  }
  add.Norm(name("ffn_norm.weight"), o.n_embd);
  add.Matrix(name("ffn_gate.weight"), o.n_embd, o.n_ff);
  add.Matrix(name("ffn_up.weight"), o.n_embd, o.n_ff);
  add.Matrix(name("ffn_down.weight"), o.n_ff, o.n_embd);
}

}  // namespace

GgufBuilder TinyModel(const TinyModelOptions& options) {
  GgufBuilder builder;
  AddHyperParameters(builder, options);
  AddTokenizer(builder, options.n_vocab);
  TensorAdder add(builder, options.seed * 1000);
  add.Matrix("token_embd.weight", options.n_embd, options.n_vocab);
  for (uint32_t layer = 0; layer < options.n_layers; ++layer) AddLayer(add, options, layer);
  add.Norm("output_norm.weight", options.n_embd);
  if (!options.has_tied_output) add.Matrix("output.weight", options.n_embd, options.n_vocab);
  return builder;
}

}  // namespace kvrun::testing
