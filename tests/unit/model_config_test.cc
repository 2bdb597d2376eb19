#include "runtime/model/model_config.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "runtime/engine/session/context_length.h"
#include "runtime/model/weights.h"
#include "tests/support/gguf_builder.h"
#include "tests/support/reference_files.h"

namespace kvrun {
namespace {

using testing::GgufBuilder;
using testing::TinyModel;
using testing::TinyModelOptions;

Result<ModelConfig> Read(const GgufBuilder& builder) {
  const auto bytes = builder.Build();
  const auto file = GgufFile::Parse(bytes, "model.gguf");
  if (!file.ok()) return file.status();
  return ReadModelConfig(**file);
}

ModelConfig ReadOrDie(const GgufBuilder& builder) {
  auto config = Read(builder);
  EXPECT_TRUE(config.ok()) << config.status().message();
  return config.ok() ? *config : ModelConfig();
}

void ExpectRefused(const GgufBuilder& builder, StatusCode code, std::string_view part) {
  const Status status = Read(builder).status();
  EXPECT_EQ(status.code(), code) << status.message();
  EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
  EXPECT_EQ(status.message().find("model.gguf: "), 0U) << status.message();
}

TEST(ModelConfig, ReadsEverything) {
  TinyModelOptions options;
  options.n_layers = 3;
  options.n_embd = 48;
  options.n_ff = 80;
  options.n_heads = 6;
  options.n_kv_heads = 3;
  options.head_dim = 12;
  const ModelConfig config = ReadOrDie(TinyModel(options).Set("llama.rope.freq_base", 5e5F));
  EXPECT_EQ(config.architecture, "llama");
  EXPECT_EQ(config.name, "tiny");
  EXPECT_EQ(config.n_layers, 3U);
  EXPECT_EQ(config.n_embd, 48U);
  EXPECT_EQ(config.n_ff, 80U);
  EXPECT_EQ(config.n_heads, 6U);
  EXPECT_EQ(config.n_kv_heads, 3U);
  EXPECT_EQ(config.head_dim, 12U);
  EXPECT_EQ(config.q_dim(), 72U);
  EXPECT_EQ(config.kv_dim(), 36U);
  EXPECT_EQ(config.KvBytesPerToken(2), 2U * 3U * 36U * 2U);
  EXPECT_EQ(config.n_vocab, 24U);
  EXPECT_EQ(config.n_ctx_train, 128U);
  EXPECT_EQ(config.rms_epsilon, 1e-5F);
  EXPECT_FALSE(config.has_qkv_bias);
  EXPECT_FALSE(config.has_qk_norm);
  EXPECT_FALSE(config.has_tied_output);
  EXPECT_EQ(config.rope.pairing, RopePairing::kAdjacent);
  EXPECT_EQ(config.rope.scaling, RopeScaling::kNone);
  EXPECT_EQ(config.rope.rotary_dim, 12U);
  EXPECT_EQ(config.rope.frequency_base, 5e5F);
}

TEST(ModelConfig, ArchitecturesDiffer) {
  TinyModelOptions options;
  options.architecture = "qwen2";
  options.has_tied_output = true;
  const ModelConfig qwen2 = ReadOrDie(TinyModel(options));
  EXPECT_TRUE(qwen2.has_qkv_bias);  // whether the tensors are there or not
  EXPECT_FALSE(qwen2.has_qk_norm);
  EXPECT_TRUE(qwen2.has_tied_output);
  EXPECT_EQ(qwen2.rope.pairing, RopePairing::kHalves);
  options.architecture = "qwen3";
  const ModelConfig qwen3 = ReadOrDie(TinyModel(options));
  EXPECT_FALSE(qwen3.has_qkv_bias);
  EXPECT_TRUE(qwen3.has_qk_norm);
  EXPECT_EQ(qwen3.rope.pairing, RopePairing::kHalves);
  options.architecture = "llama";
  options.has_qkv_bias = true;
  EXPECT_TRUE(ReadOrDie(TinyModel(options)).has_qkv_bias);
}

TEST(ModelConfig, OptionalKeysHaveDefaults) {
  GgufBuilder builder = TinyModel();
  for (const char* key :
       {"llama.attention.head_count_kv", "llama.attention.key_length", "llama.attention.value_length",
        "llama.rope.dimension_count", "llama.rope.freq_base", "llama.vocab_size", "general.name"}) {
    builder.Erase(key);
  }
  const ModelConfig config = ReadOrDie(builder);
  EXPECT_EQ(config.n_kv_heads, 4U);
  EXPECT_EQ(config.head_dim, 8U);
  EXPECT_EQ(config.rope.rotary_dim, 8U);
  EXPECT_EQ(config.rope.frequency_base, 10000.0F);
  EXPECT_EQ(config.n_vocab, 24U);
  EXPECT_EQ(config.name, "");
  builder.EraseTensor("token_embd.weight").SetStrings("tokenizer.ggml.tokens", {"a", "b", "c"});
  EXPECT_EQ(ReadOrDie(builder).n_vocab, 3U);
}

TEST(ModelConfig, MissingKeysAreNamed) {
  for (const char* key :
       {"general.architecture", "llama.block_count", "llama.embedding_length", "llama.feed_forward_length",
        "llama.attention.head_count", "llama.context_length", "llama.attention.layer_norm_rms_epsilon"}) {
    ExpectRefused(TinyModel().Erase(key), StatusCode::kNotFound,
                  std::string("key \"") + key + "\" is missing");
  }
}

TEST(ModelConfig, UnknownArchitectureIsNamedWithTheKnown) {
  ExpectRefused(TinyModel().Set("general.architecture", "mamba"), StatusCode::kUnsupported,
                "architecture \"mamba\" is not supported; kvrun runs llama, qwen2, qwen3");
}

TEST(ModelConfig, PerLayerArraysMustBeEqual) {
  const std::string key = "llama.attention.head_count_kv";
  EXPECT_EQ(ReadOrDie(TinyModel().SetArray<int32_t>(key, {1, 1})).n_kv_heads, 1U);
  ExpectRefused(TinyModel().SetArray<int32_t>(key, {1, 2}), StatusCode::kUnsupported,
                "differs from layer to layer");
  ExpectRefused(TinyModel().SetArray<int32_t>(key, {1, 1, 1}), StatusCode::kCorrupt,
                "3 numbers for 2 layers");
  ExpectRefused(TinyModel().SetArray<int32_t>(key, {}), StatusCode::kCorrupt, "0 numbers for 2 layers");
  ExpectRefused(TinyModel().SetArray<int32_t>(key, {-1, -1}), StatusCode::kUnsupported, "is 0");
  ExpectRefused(TinyModel().SetArray<float>(key, {1.0F, 1.0F}), StatusCode::kCorrupt, "integers");
}

TEST(ModelConfig, SizesBeyondTheLimitsAreRefused) {
  for (const char* key : {"llama.block_count", "llama.embedding_length", "llama.feed_forward_length",
                          "llama.attention.head_count", "llama.attention.head_count_kv", "llama.vocab_size",
                          "llama.context_length"}) {
    const std::string name = std::string("\"") + key + "\" is ";
    ExpectRefused(TinyModel().Set(key, uint64_t{1} << 63), StatusCode::kCorrupt, name);
    const bool is_vocabulary = std::string_view(key) == "llama.vocab_size";
    for (const uint32_t value : {0U, ~0U}) {
      ExpectRefused(TinyModel().Set(key, value), StatusCode::kUnsupported,
                    is_vocabulary ? "the vocabulary has" : name + std::to_string(value));
    }
  }
}

TEST(ModelConfig, HeadsMustFit) {
  ExpectRefused(TinyModel().Set("llama.attention.head_count_kv", 3), StatusCode::kCorrupt,
                "4 attention heads are not a multiple of 3 KV heads");
  ExpectRefused(TinyModel().Set("llama.attention.value_length", 16), StatusCode::kUnsupported,
                "heads of K have 8 elements, those of V 16");
  for (const uint32_t head_dim : {0U, 4U, 9U, 258U, 0x80000000U}) {
    ExpectRefused(
        TinyModel().Set("llama.attention.key_length", head_dim).Set("llama.attention.value_length", head_dim),
        StatusCode::kUnsupported, "the head size is " + std::to_string(head_dim));
  }
  ExpectRefused(TinyModel().Set("llama.embedding_length", 33).Erase("llama.attention.key_length"),
                StatusCode::kCorrupt, "33 does not divide into 4 heads");
}

TEST(ModelConfig, SlidingWindowLimitsTheContext) {
  const std::string key = "llama.attention.sliding_window";
  EXPECT_EQ(ReadOrDie(TinyModel().Set(key, 50)).n_ctx_train, 50U);
  EXPECT_EQ(ReadOrDie(TinyModel().Set(key, 500)).n_ctx_train, 128U);
  EXPECT_EQ(ReadOrDie(TinyModel().Set(key, 0)).n_ctx_train, 128U);
  EXPECT_EQ(ReadOrDie(TinyModel().Set(key, 50)).sliding_window, 50U);
  EXPECT_EQ(ReadOrDie(TinyModel().Set(key, 50)).n_ctx_stated, 128U);
}

TEST(ContextNotes, NameBothNumbersAndWhatToExpect) {
  ModelConfig config;
  config.n_ctx_stated = 8192;
  EXPECT_TRUE(ContextNotes(8192, config).empty());
  EXPECT_EQ(ContextNotes(16384, config),
            std::vector<std::string>{"the context of 16384 tokens is longer than the 8192 that the model was "
                                     "trained with: expect worse text, and in the end none that makes sense, "
                                     "beyond 8192 tokens"});
  config.sliding_window = 4096;
  EXPECT_TRUE(ContextNotes(4096, config).empty());
  EXPECT_EQ(
      ContextNotes(5000, config),
      std::vector<std::string>{"the model was trained to attend to the last 4096 tokens only (its sliding "
                               "window), and kvrun attends to all of the 5000 tokens of context: expect "
                               "other, and mostly worse, text beyond 4096 tokens"});
  EXPECT_EQ(ContextNotes(9000, config).size(), 2U);
}

TEST(ModelConfig, UnsupportedFeaturesAreNamed) {
  ExpectRefused(TinyModel().Set("llama.expert_count", 8), StatusCode::kUnsupported, "a mixture of experts");
  ExpectRefused(TinyModel().Set("llama.logit_scale", 0.5F), StatusCode::kUnsupported, "scaled logits");
  ExpectRefused(TinyModel().Set("llama.attention.causal", false), StatusCode::kUnsupported, "causal");
  ReadOrDie(TinyModel().Set("llama.expert_count", 0).Set("llama.logit_scale", 1.0F));
}

TEST(ModelConfig, WrongNumbersAreRefused) {
  ExpectRefused(TinyModel().Set("llama.attention.layer_norm_rms_epsilon", -1.0F), StatusCode::kCorrupt, "-1");
  ExpectRefused(TinyModel().Set("llama.attention.layer_norm_rms_epsilon", 1e-5F / 0.0F), StatusCode::kCorrupt,
                "finite");
  ExpectRefused(TinyModel().Set("llama.rope.freq_base", 1.0F), StatusCode::kCorrupt,
                "\"llama.rope.freq_base\" is 1");
  for (const uint32_t rotary_dim : {0U, 3U, 10U}) {
    ExpectRefused(TinyModel().Set("llama.rope.dimension_count", rotary_dim), StatusCode::kCorrupt,
                  "\"llama.rope.dimension_count\" is " + std::to_string(rotary_dim));
  }
}

TEST(ModelConfigReference, EveryTinyModelIsUnderstood) {
  const auto root = testing::SharedPath("reference/tiny");
  if (!root) GTEST_SKIP() << "no reference files";
  size_t n_files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(*root)) {
    if (entry.path().extension() != ".gguf") continue;
    const auto file = GgufFile::Open(entry.path().string());
    ASSERT_TRUE(file.ok()) << file.status().message();
    const auto config = ReadModelConfig(**file);
    ASSERT_TRUE(config.ok()) << config.status().message();
    EXPECT_EQ(config->n_vocab, 512U);
    const auto weights = FindModelWeights(**file, *config);
    EXPECT_TRUE(weights.ok()) << weights.status().message();
    const std::string name = entry.path().filename().string();
    const auto is = [&](const char* part) { return name.find(part) != std::string::npos; };
    EXPECT_EQ(config->rope.scaling == RopeScaling::kYarn, is("-yarn-")) << name;
    EXPECT_EQ(config->rope.scaling == RopeScaling::kLinear, is("-linear-")) << name;
    EXPECT_EQ(config->rope.scaling == RopeScaling::kLlama3, is("llama3-rope")) << name;
    EXPECT_EQ(config->has_qkv_bias, is("qwen2")) << name;
    EXPECT_EQ(config->has_qk_norm, is("qwen3")) << name;
    ++n_files;
  }
  EXPECT_GT(n_files, 10U);
}

TEST(ModelConfigReference, TheTestModelIsUnderstood) {
  const auto path = testing::TestModelPath();
  if (!path) GTEST_SKIP() << "no test model";
  const auto file = GgufFile::Open(*path);
  ASSERT_TRUE(file.ok()) << file.status().message();
  const auto config = ReadModelConfig(**file);
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_TRUE(FindModelWeights(**file, *config).ok());
  if (config->n_layers != 30) GTEST_SKIP() << "KVRUN_MODEL names another model";
  EXPECT_EQ(config->KvBytesPerToken(2), 22U * 1024 + 512);
  EXPECT_TRUE(config->has_tied_output);
}

}  // namespace
}  // namespace kvrun
