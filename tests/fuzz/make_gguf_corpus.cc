// Writes the seed corpus of gguf_fuzzer: make_gguf_corpus FOLDER. Every file is below 4 KiB.
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/support/gguf_builder.h"

namespace {

using kvrun::TensorType;
using kvrun::testing::Bytes;
using kvrun::testing::GgufBuilder;
using kvrun::testing::TinyModelOptions;

GgufBuilder Model(const std::string& architecture) {
  TinyModelOptions options;
  options.architecture = architecture;
  options.n_layers = 1;
  options.n_embd = 8;
  options.n_heads = 1;
  options.n_kv_heads = 1;
  options.n_ff = 8;
  options.n_vocab = 5;
  options.has_tied_output = true;
  options.has_qkv_bias = architecture == "qwen2";
  options.has_qk_norm = architecture == "qwen3";
  return kvrun::testing::TinyModel(options);
}

GgufBuilder EveryValueType() {
  GgufBuilder builder;
  builder.Set("u8", uint8_t{1}).Set("i8", int8_t{-1}).Set("u16", uint16_t{1}).Set("i16", int16_t{-1});
  builder.Set("u32", uint32_t{1}).Set("i32", int32_t{-1}).Set("u64", uint64_t{1}).Set("i64", int64_t{-1});
  builder.Set("f32", 1.0F).Set("f64", 1.0).Set("bool", true).Set("string", "s");
  builder.SetStrings("strings", {"a", ""})
      .SetArray<int32_t>("ints", {1, 2})
      .SetArray<float>("floats", {0.5F});
  builder.SetArray<bool>("bools", {true, false}).SetArray<double>("doubles", {0.5});
  return builder;
}

GgufBuilder EveryTensorType() {
  constexpr uint32_t kTypeCount = 31;
  GgufBuilder builder;
  for (uint32_t type = 0; type < kTypeCount; ++type) {
    const kvrun::TensorTypeInfo* info = kvrun::FindTensorType(type);
    if (info == nullptr) continue;
    builder.AddTensor(std::string(info->name), type, {info->block_elements}, Bytes(info->block_bytes));
  }
  return builder;
}

bool Write(const std::filesystem::path& path, const GgufBuilder& builder) {
  const Bytes bytes = builder.Build();
  std::ofstream out(path, std::ios::binary);
  out.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  return out.good();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: make_gguf_corpus FOLDER\n");
    return 2;
  }
  const std::filesystem::path folder = argv[1];
  std::filesystem::create_directories(folder);
  bool ok = Write(folder / "llama.gguf", Model("llama")) && Write(folder / "qwen2.gguf", Model("qwen2")) &&
            Write(folder / "qwen3.gguf", Model("qwen3"));
  ok = ok && Write(folder / "yarn.gguf", Model("llama")
                                             .Set("llama.rope.scaling.type", "yarn")
                                             .Set("llama.rope.scaling.factor", 4.0F)
                                             .Set("llama.rope.scaling.original_context_length", 64U));
  ok = ok && Write(folder / "linear.gguf", Model("llama").Set("llama.rope.scaling.factor", 2.0F));
  ok = ok && Write(folder / "llama3.gguf", Model("llama").AddTensor("rope_freqs.weight", {4}, {1, 2, 4, 8}));
  ok = ok && Write(folder / "version2.gguf", Model("llama").ClaimVersion(2));
  ok = ok && Write(folder / "alignment.gguf",
                   Model("llama").Set("general.alignment", 64U).Align(64).Set("llama.expert_count", 0U));
  ok = ok && Write(folder / "per_layer.gguf",
                   Model("llama").SetArray<int32_t>("llama.attention.head_count_kv", {1}));
  ok = ok && Write(folder / "value_types.gguf", EveryValueType());
  ok = ok && Write(folder / "tensor_types.gguf", EveryTensorType());
  if (!ok) std::fprintf(stderr, "make_gguf_corpus: cannot write to %s\n", folder.c_str());
  return ok ? 0 : 1;
}
