#include "tests/support/quantised_model.h"

#include <fmt/format.h>

#include <algorithm>

#include "platform/base/check.h"

namespace kvrun::testing {
namespace {

constexpr uint32_t kVocab = 260;
constexpr uint32_t kIds = 48;

// One of a block's halves: where it lies, and what a model's have at least, which makes weights well scaled.
// That of IQ4_XS is subnormal.
struct Half {
  size_t offset;
  uint16_t least;
};

std::vector<Half> HalvesOf(TensorType type) {
  switch (type) {
    case TensorType::kQ2_K: return {{80, 0x1C00}, {82, 0x1E00}};
    case TensorType::kQ3_K: return {{108, 0x1580}};
    case TensorType::kIQ4_NL: return {{0, 0x1280}};
    case TensorType::kIQ4_XS: return {{0, 0x0280}};
    default: KVRUN_CHECK(false);
  }
}

void PutHalf(std::byte* block, size_t offset, uint32_t bits) {
  block[offset] = static_cast<std::byte>(bits & 255U);
  block[offset + 1] = static_cast<std::byte>(bits >> 8);
}

Bytes RandomBytes(size_t count, uint64_t seed) {
  Bytes bytes(count);
  for (std::byte& byte : bytes) {
    seed = seed * 6364136223846793005U + 1442695040888963407U;
    byte = static_cast<std::byte>(seed >> 56);
  }
  return bytes;
}

// All halves of a block have the sign and the last bits of what was random in the first one's place.
Bytes RandomMatrix(TensorType type, uint64_t elements, uint64_t seed) {
  const TensorTypeInfo& info = GetTensorType(type);
  const std::vector<Half> halves = HalvesOf(type);
  Bytes bytes = RandomBytes(elements / info.block_elements * info.block_bytes, seed);
  for (size_t at = 0; at < bytes.size(); at += info.block_bytes) {
    const auto low = std::to_integer<uint32_t>(bytes[at + halves[0].offset]);
    const auto high = std::to_integer<uint32_t>(bytes[at + halves[0].offset + 1]);
    for (const Half& half : halves) {
      PutHalf(bytes.data() + at, half.offset, (high & 0x80U) << 8 | (half.least + low));
    }
  }
  return bytes;
}

}  // namespace

Bytes EdgeBlocks(TensorType type) {
  constexpr std::array<uint16_t, 11> kEdges = {0x3C00, 0xBC00, 0x7BFF, 0x0001, 0x83FF, 0x0000,
                                               0x8000, 0x2A66, 0xFBFF, 0x0400, 0x1234};
  constexpr size_t kBlocks = 16;
  const size_t block_bytes = GetTensorType(type).block_bytes;
  const std::vector<Half> halves = HalvesOf(type);
  Bytes blocks;
  for (size_t b = 0; b < kBlocks; ++b) {
    Bytes block = RandomBytes(block_bytes, b);
    if (b < 2) std::fill(block.begin(), block.end(), b == 0 ? std::byte{0} : std::byte{255});
    for (size_t h = 0; h < halves.size(); ++h) {
      PutHalf(block.data(), halves[h].offset, kEdges[(b + 3 * h) % kEdges.size()]);
    }
    blocks.insert(blocks.end(), block.begin(), block.end());
  }
  return blocks;
}

GgufBuilder QuantisedModel(TensorType type) {
  TinyModelOptions options;
  options.n_embd = 256;
  options.n_ff = 512;
  options.n_heads = 4;
  options.n_kv_heads = 2;
  options.head_dim = 64;
  options.n_vocab = kVocab;
  GgufBuilder model = TinyModel(options);
  uint64_t seed = 0;
  const auto add_matrix = [&](const std::string& name, uint64_t rows, uint64_t columns) {
    model.AddTensor(name, type, {columns, rows}, RandomMatrix(type, rows * columns, ++seed));
  };
  std::vector<float> norm(options.n_embd);
  for (size_t i = 0; i < norm.size(); ++i) norm[i] = 0.75F + static_cast<float>(i % 8) / 16.0F;
  const auto add_norm = [&](const std::string& name) { model.AddTensor(name, {norm.size()}, norm); };

  const uint64_t n_embd = options.n_embd;
  const uint64_t kv_dim = uint64_t{options.n_kv_heads} * options.head_dim;
  add_matrix("token_embd.weight", kVocab, n_embd);
  for (uint32_t layer = 0; layer < options.n_layers; ++layer) {
    const auto name = [&](const char* suffix) { return fmt::format("blk.{}.{}.weight", layer, suffix); };
    add_matrix(name("attn_q"), uint64_t{options.n_heads} * options.head_dim, n_embd);
    add_matrix(name("attn_k"), kv_dim, n_embd);
    add_matrix(name("attn_v"), kv_dim, n_embd);
    add_matrix(name("attn_output"), n_embd, uint64_t{options.n_heads} * options.head_dim);
    add_matrix(name("ffn_gate"), options.n_ff, n_embd);
    add_matrix(name("ffn_up"), options.n_ff, n_embd);
    add_matrix(name("ffn_down"), n_embd, options.n_ff);
    add_norm(name("attn_norm"));
    add_norm(name("ffn_norm"));
  }
  add_matrix("output.weight", kVocab, n_embd);
  add_norm("output_norm.weight");
  return model;
}

std::vector<int> QuantisedModelIds() {
  std::vector<int> ids;
  for (uint32_t i = 0; i < kIds; ++i)
    ids.push_back(static_cast<int>(3 + (i * i * 7 + 31 + i) % (kVocab - 3)));
  return ids;
}

std::string KeptPath(TensorType type, const std::string& what) {
  return fmt::format("{}/tests/data/quantised/{}.{}", KVRUN_SOURCE_DIR, TensorTypeName(type), what);
}

}  // namespace kvrun::testing
