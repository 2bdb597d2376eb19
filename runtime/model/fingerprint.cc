#include "runtime/model/fingerprint.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace kvrun {
namespace {

constexpr size_t kSampleBytes = 64;

// What is hashed, each part with its length or of a fixed one, so that no two inputs read the same.
class Message {
 public:
  void Add(uint64_t value) {
    for (int shift = 0; shift < 64; shift += 8) text_.push_back(static_cast<char>(value >> shift));
  }
  void Add(float value) { Add(uint64_t{std::bit_cast<uint32_t>(value)}); }
  void Add(bool value) { Add(uint64_t{value}); }
  void Add(std::string_view value) {
    Add(uint64_t{value.size()});
    text_ += value;
  }
  void Add(std::span<const std::byte> bytes) {
    Add(std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

void AddConfig(const ModelConfig& config, Message& message) {
  message.Add(config.architecture);
  for (const uint32_t value : {config.n_layers, config.n_embd, config.n_ff, config.n_heads, config.n_kv_heads,
                               config.head_dim, config.n_vocab}) {
    message.Add(uint64_t{value});
  }
  message.Add(config.rms_epsilon);
  for (const bool value : {config.has_qkv_bias, config.has_qk_norm, config.has_tied_output}) {
    message.Add(value);
  }
  const RopeConfig& rope = config.rope;
  for (const uint64_t value : {static_cast<uint64_t>(rope.pairing), static_cast<uint64_t>(rope.scaling),
                               uint64_t{rope.rotary_dim}, uint64_t{rope.original_context}}) {
    message.Add(value);
  }
  for (const float value : {rope.frequency_base, rope.factor, rope.yarn_attention_factor, rope.yarn_beta_fast,
                            rope.yarn_beta_slow}) {
    message.Add(value);
  }
}

Status AddTensor(const GgufFile& file, const GgufTensor& tensor, Message& message) {
  message.Add(tensor.name);
  message.Add(static_cast<uint64_t>(tensor.type));
  for (const uint64_t n : tensor.shape) message.Add(n);
  const uint64_t size = tensor.size_bytes;
  std::array<std::byte, kSampleBytes> bytes;
  const std::span<std::byte> sample = std::span(bytes).first(std::min<uint64_t>(size, kSampleBytes));
  for (const uint64_t begin : {uint64_t{0}, (size - sample.size()) / 2, size - sample.size()}) {
    KVRUN_RETURN_IF_ERROR(file.Read(tensor, begin, sample));
    message.Add(std::span<const std::byte>(sample));
  }
  return Status::Ok();
}

}  // namespace

Result<std::string> ModelFingerprint(const GgufFile& file, const ModelConfig& config) {
  Message message;
  AddConfig(config, message);
  std::vector<const GgufTensor*> by_name;
  for (const GgufTensor& tensor : file.tensors()) by_name.push_back(&tensor);
  std::sort(by_name.begin(), by_name.end(),
            [](const GgufTensor* a, const GgufTensor* b) { return a->name < b->name; });
  for (const GgufTensor* tensor : by_name) KVRUN_RETURN_IF_ERROR(AddTensor(file, *tensor, message));
  const XXH128_hash_t hash = XXH3_128bits(message.text().data(), message.text().size());
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

}  // namespace kvrun
