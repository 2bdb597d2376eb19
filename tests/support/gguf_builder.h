// Writes GGUF files in memory, right or wrong on purpose, and a complete tiny model.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/model/tensor_type.h"

namespace kvrun::testing {

using Bytes = std::vector<std::byte>;

template <typename T>
concept GgufNumber = std::integral<T> || std::floating_point<T>;

// Little-endian bytes at the end of a buffer.
class ByteWriter {
 public:
  template <GgufNumber T>
  ByteWriter& Put(T value) {
    return PutBytes(std::as_bytes(std::span(&value, 1)));
  }
  ByteWriter& PutString(std::string_view text);  // 64-bit length, then the bytes
  ByteWriter& PutBytes(std::span<const std::byte> bytes);
  ByteWriter& PadTo(size_t multiple);

  const Bytes& bytes() const { return bytes_; }
  Bytes Take() { return std::move(bytes_); }

 private:
  Bytes bytes_;
};

// The GGUF value type that stores a T.
template <GgufNumber T>
constexpr uint32_t GgufTypeOf() {
  if constexpr (std::same_as<T, bool>) return 7;
  if constexpr (std::same_as<T, float>) return 6;
  if constexpr (std::same_as<T, double>) return 12;
  constexpr bool kSigned = std::signed_integral<T>;
  if constexpr (sizeof(T) == 8) return kSigned ? 11 : 10;
  constexpr uint32_t kLog2 = sizeof(T) == 1 ? 0 : sizeof(T) == 2 ? 1 : 2;
  return 2 * kLog2 + (kSigned ? 1 : 0);
}

// Keys and tensors are written in the order of the calls; setting a key again replaces it.
class GgufBuilder {
 public:
  template <GgufNumber T>
  GgufBuilder& Set(std::string_view key, T value) {
    return SetRaw(key, GgufTypeOf<T>(), ByteWriter().Put(value).Take());
  }
  GgufBuilder& Set(std::string_view key, std::string_view text);
  GgufBuilder& Set(std::string_view key, const char* text) { return Set(key, std::string_view(text)); }
  template <GgufNumber T>
  GgufBuilder& SetArray(std::string_view key, const std::vector<T>& values) {
    ByteWriter raw;
    raw.Put(GgufTypeOf<T>()).Put(uint64_t{values.size()});
    for (const T value : values) raw.Put(value);
    return SetRaw(key, kArrayType, raw.Take());
  }
  GgufBuilder& SetStrings(std::string_view key, const std::vector<std::string>& values);
  // Any value type with any bytes behind it, wrong ones too.
  GgufBuilder& SetRaw(std::string_view key, uint32_t type, Bytes value);
  GgufBuilder& Erase(std::string_view key);

  // The data begins at the next aligned offset. Types and sizes are not checked.
  GgufBuilder& AddTensor(std::string_view name, uint32_t type, const std::vector<uint64_t>& shape,
                         Bytes data);
  GgufBuilder& AddTensor(std::string_view name, TensorType type, const std::vector<uint64_t>& shape,
                         Bytes data) {
    return AddTensor(name, static_cast<uint32_t>(type), shape, std::move(data));
  }
  GgufBuilder& AddTensor(std::string_view name, const std::vector<uint64_t>& shape,
                         const std::vector<float>& values);
  GgufBuilder& EraseTensor(std::string_view name);

  // What the file claims instead of the truth.
  GgufBuilder& ClaimVersion(uint32_t version);
  GgufBuilder& ClaimTensorCount(uint64_t count);
  GgufBuilder& ClaimKeyCount(uint64_t count);
  GgufBuilder& ClaimOffset(std::string_view tensor, uint64_t offset);
  // Writes the same key or tensor again instead of replacing it.
  GgufBuilder& AllowDuplicates();
  // How tensors are laid out; does not set general.alignment.
  GgufBuilder& Align(uint64_t alignment);

  // As gguf-split does it: the tensors spread over `n_parts` files, of which the first holds `n_in_first` and
  // all keys.
  std::vector<GgufBuilder> Split(uint16_t n_parts, size_t n_in_first) const;

  Bytes Build() const;
  // Bytes before the tensors' data, padding included.
  size_t HeaderBytes() const;

 private:
  static constexpr uint32_t kArrayType = 9;
  struct KeyValue {
    std::string key;
    uint32_t type;
    Bytes value;
  };
  struct Tensor {
    std::string name;
    uint32_t type;
    std::vector<uint64_t> shape;
    Bytes data;
    std::optional<uint64_t> claimed_offset;
  };

  ByteWriter BuildHeader() const;

  std::vector<KeyValue> keys_;
  std::vector<Tensor> tensors_;
  std::optional<uint64_t> claimed_tensor_count_;
  std::optional<uint64_t> claimed_key_count_;
  uint32_t version_ = 3;
  uint64_t alignment_ = 32;
  bool allows_duplicates_ = false;
};

struct TinyModelOptions {
  std::string architecture = "llama";
  uint32_t n_layers = 2;
  uint32_t n_embd = 32;
  uint32_t n_ff = 64;
  uint32_t n_heads = 4;
  uint32_t n_kv_heads = 2;
  uint32_t head_dim = 8;
  // From 259 on the vocabulary holds <unk>, <s>, </s>, all 256 bytes and then made-up words; below, <unk>,
  // <s>, </s> and single characters.
  uint32_t n_vocab = 24;
  uint32_t n_ctx_train = 128;
  bool has_qkv_bias = false;
  bool has_qk_norm = false;
  bool has_tied_output = false;
  uint64_t seed = 1;
};

// A model of F32 weights that are random, well scaled, and the same for the same options, with a
// SentencePiece-style tokenizer.
GgufBuilder TinyModel(const TinyModelOptions& options = {});

// `n` numbers spread evenly over [-scale, scale), the same for the same seed on every machine.
std::vector<float> RandomFloats(size_t n, float scale, uint64_t seed);

}  // namespace kvrun::testing
