// Which layers of a file are of which kind, and what is refused.
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "runtime/model/gguf.h"
#include "runtime/model/model_config.h"
#include "runtime/model/weights.h"
#include "tests/support/gguf_builder.h"

namespace kvrun {
namespace {

using testing::GgufBuilder;
using testing::TinyModel;
using testing::TinyModelOptions;

// A tiny model that says it is another architecture's, with that one's keys: its tensors are still a llama's.
class Keys {
 public:
  Keys(const std::string& architecture, uint32_t n_layers)
      : architecture_(architecture), builder_(TinyModel(OptionsOf(architecture, n_layers))) {}

  template <typename T>
  Keys& Set(std::string_view key, T value) {
    builder_.Set(architecture_ + "." + std::string(key), value);
    return *this;
  }
  template <typename T>
  Keys& SetArray(std::string_view key, const std::vector<T>& values) {
    builder_.SetArray<T>(architecture_ + "." + std::string(key), values);
    return *this;
  }
  Keys& Erase(std::string_view key) {
    builder_.Erase(architecture_ + "." + std::string(key));
    return *this;
  }

  Result<ModelConfig> Read() const {
    const testing::Bytes bytes = builder_.Build();
    const auto file = GgufFile::Parse(bytes, "model.gguf");
    if (!file.ok()) return file.status();
    return ReadModelConfig(**file);
  }
  Status Weights() const {
    const testing::Bytes bytes = builder_.Build();
    const auto file = GgufFile::Parse(bytes, "model.gguf");
    if (!file.ok()) return file.status();
    const auto config = ReadModelConfig(**file);
    if (!config.ok()) return config.status();
    return FindModelWeights(**file, *config).status();
  }
  // A letter for each layer: a, w, d, c; u for attention that does not rotate.
  std::string Kinds() const {
    const auto config = Read();
    EXPECT_TRUE(config.ok()) << config.status().message();
    std::string kinds;
    if (!config.ok()) return kinds;
    for (const LayerConfig& layer : config->layers) {
      const bool is_turned = layer.kind != LayerKind::kAttention || layer.rope != LayerRope::kNone;
      kinds += is_turned ? "awdc"[static_cast<size_t>(layer.kind)] : 'u';
    }
    return kinds;
  }

 private:
  static TinyModelOptions OptionsOf(const std::string& architecture, uint32_t n_layers) {
    TinyModelOptions options;
    options.architecture = architecture;
    options.n_layers = n_layers;
    options.has_qk_norm = architecture == "qwen3moe";
    return options;
  }

  std::string architecture_;
  GgufBuilder builder_;
};

void ExpectRefused(const Status& status, StatusCode code, std::string_view part) {
  EXPECT_EQ(status.code(), code) << status.message();
  EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
  EXPECT_EQ(status.message().find("model.gguf: "), 0U) << status.message();
}

Keys Qwen35(uint32_t n_layers) {
  Keys keys("qwen35", n_layers);
  keys.Set("ssm.group_count", 2).Set("ssm.time_step_rank", 4).Set("ssm.state_size", 16);
  keys.Set("ssm.inner_size", 64).Set("ssm.conv_kernel", 4);
  return keys;
}

TEST(LayerKinds, FollowTheArchitecturesPattern) {
  EXPECT_EQ(Keys("llama", 3).Kinds(), "aaa");
  EXPECT_EQ(Keys("smollm3", 9).Kinds(), "aaauaaaua");
  EXPECT_EQ(Keys("gemma2", 5).Kinds(), "wawaw");
  EXPECT_EQ(Keys("gemma3", 7).Set("attention.sliding_window", 8).Kinds(), "wwwwwaw");
  EXPECT_EQ(Qwen35(9).Kinds(), "dddadddad");
  EXPECT_EQ(Keys("lfm2", 3).Kinds(), "aaa") << "no zeros";
}

TEST(LayerKinds, FollowTheFilesKeys) {
  const auto gemma = [] {
    Keys keys("gemma3", 4);
    keys.Set("attention.sliding_window", 8);
    return keys;
  };
  EXPECT_EQ(gemma().Set("attention.sliding_window_pattern", 2).Kinds(), "wawa");
  EXPECT_EQ(gemma().SetArray<bool>("attention.sliding_window_pattern", {false, true, true, true}).Kinds(),
            "awww");
  EXPECT_EQ(Qwen35(4).Set("full_attention_interval", 3).Kinds(), "ddad");
  EXPECT_EQ(Qwen35(4).SetArray<bool>("attention.recurrent_layers", {true, false, true, false}).Kinds(),
            "dada");
  Keys lfm("lfm2", 4);
  EXPECT_EQ(
      lfm.SetArray<int32_t>("attention.head_count_kv", {0, 2, 0, 2}).Set("shortconv.l_cache", 3).Kinds(),
      "caca");
}

// The last blocks of a file may be draft heads.
TEST(LayerKinds, DraftHeadsAreNoLayers) {
  const auto config = Qwen35(5).Set("nextn_predict_layers", 1).Read();
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->n_layers, 4U);
  EXPECT_EQ(config->n_draft_heads, 1U);
  EXPECT_EQ(config->kv_layers, std::vector<uint32_t>{3});
  ExpectRefused(Qwen35(2).Set("nextn_predict_layers", 2).Read().status(), StatusCode::kCorrupt,
                "nextn_predict_layers");
}

TEST(LayerKinds, SayWhatTheyKeep) {
  const auto config = Qwen35(4).Read();
  ASSERT_TRUE(config.ok()) << config.status().message();
  // Three layers: 4 heads of 16 x 16, and 3 inputs of 2 * 32 + 64 channels, floats.
  EXPECT_EQ(config->StateBytes(2), 3U * (4 * 16 * 16 + 3 * 128) * 4);
  EXPECT_EQ(config->KvBytesPerToken(2), uint64_t{2} * config->kv_dim() * 2) << "of one layer";
  const auto gemma = Keys("gemma3", 6).Set("attention.sliding_window", 8).Read();
  ASSERT_TRUE(gemma.ok()) << gemma.status().message();
  EXPECT_EQ(gemma->StateBytes(2), uint64_t{5} * 2 * 8 * gemma->kv_dim() * 2);
}

TEST(LayerKinds, WrongWindowsAndPatternsAreRefused) {
  ExpectRefused(Keys("gemma3", 6).Read().status(), StatusCode::kNotFound, "attention.sliding_window");
  ExpectRefused(Keys("gemma3", 6).Set("attention.sliding_window", 0).Read().status(),
                StatusCode::kUnsupported, "attention.sliding_window\" is 0");
  const auto gemma = [] {
    Keys keys("gemma3", 4);
    keys.Set("attention.sliding_window", 8);
    return keys;
  };
  for (const uint32_t n : {0U, 5U, 4000000000U}) {
    ExpectRefused(gemma().Set("attention.sliding_window_pattern", n).Read().status(), StatusCode::kCorrupt,
                  "n = " + std::to_string(n));
  }
  ExpectRefused(gemma().Read().status(), StatusCode::kCorrupt, "n = 6");
  ExpectRefused(gemma().SetArray<bool>("attention.sliding_window_pattern", {true, false}).Read().status(),
                StatusCode::kCorrupt, "2 elements for 4 layers");
  ExpectRefused(
      gemma().SetArray<bool>("attention.sliding_window_pattern", {true, true, true, true}).Read().status(),
      StatusCode::kUnsupported, "none of the 4 layers");
}

TEST(LayerKinds, WrongStatesAreRefused) {
  for (const char* key :
       {"ssm.group_count", "ssm.time_step_rank", "ssm.state_size", "ssm.inner_size", "ssm.conv_kernel"}) {
    ExpectRefused(Qwen35(4).Erase(key).Read().status(), StatusCode::kNotFound, key);
  }
  ExpectRefused(Qwen35(4).Set("ssm.inner_size", 63).Read().status(), StatusCode::kCorrupt, "ssm.inner_size");
  ExpectRefused(Qwen35(4).Set("ssm.group_count", 3).Read().status(), StatusCode::kUnsupported, "multiple");
  ExpectRefused(Qwen35(4).Set("ssm.conv_kernel", 1).Read().status(), StatusCode::kUnsupported,
                "ssm.conv_kernel");
  ExpectRefused(Qwen35(4).Set("ssm.state_size", 100000).Read().status(), StatusCode::kUnsupported,
                "ssm.state_size");
  ExpectRefused(Keys("lfm2", 2).SetArray<int32_t>("attention.head_count_kv", {0, 2}).Read().status(),
                StatusCode::kNotFound, "shortconv.l_cache");
  ExpectRefused(Qwen35(4).Weights(), StatusCode::kCorrupt, "attn_qkv.weight");
}

TEST(LayerKinds, HeadsThatDoNotDivideAreRefused) {
  ExpectRefused(
      Keys("gemma2", 2).Set("attention.head_count", 5).Set("attention.head_count_kv", 2).Read().status(),
      StatusCode::kCorrupt, "5 attention heads are not a multiple of 2");
  ExpectRefused(Keys("lfm2", 3).SetArray<int32_t>("attention.head_count_kv", {0, 2, 1}).Read().status(),
                StatusCode::kUnsupported, "differs from layer to layer");
}

TEST(LayerKinds, WrongExpertsAreRefused) {
  const auto experts = [] {
    Keys keys("qwen3moe", 2);
    keys.Set("expert_count", 8).Set("expert_used_count", 2).Set("expert_feed_forward_length", 32);
    return keys;
  };
  EXPECT_TRUE(experts().Read().ok());
  ExpectRefused(experts().Set("expert_count", 100000).Read().status(), StatusCode::kUnsupported, "100000");
  ExpectRefused(experts().Set("expert_used_count", 9).Read().status(), StatusCode::kUnsupported, "is 9");
  ExpectRefused(experts().Set("expert_used_count", 0).Read().status(), StatusCode::kUnsupported, "is 0");
  ExpectRefused(experts().Erase("expert_feed_forward_length").Read().status(), StatusCode::kNotFound,
                "expert_feed_forward_length");
  ExpectRefused(experts().Weights(), StatusCode::kCorrupt, "ffn_gate_inp.weight");
}

TEST(LayerKinds, CapsAreOfThoseThatHaveThem) {
  const auto config = Keys("gemma2", 2).Set("final_logit_softcapping", 7.0F).Read();
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->score_cap, 50.0F);
  EXPECT_EQ(config->logit_cap, 7.0F);
  EXPECT_EQ(config->sliding_window, 4096U);
  ExpectRefused(Keys("llama", 2).Set("attn_logit_softcapping", 30.0F).Read().status(),
                StatusCode::kUnsupported, "attn_logit_softcapping");
  ExpectRefused(Keys("gemma2", 2).Set("attn_logit_softcapping", -1.0F).Read().status(), StatusCode::kCorrupt,
                "attn_logit_softcapping");
}

}  // namespace
}  // namespace kvrun
