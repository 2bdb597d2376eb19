#include "runtime/model/synthetic_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/support/or_die.h"

namespace kvrun {
namespace {

using testing::OrDie;

constexpr SyntheticShape kTiny{.name = "tiny",
                               .n_layers = 3,
                               .n_embd = 64,
                               .n_ff = 96,
                               .n_heads = 4,
                               .n_kv_heads = 2,
                               .head_dim = 32,
                               .n_vocab = 100,
                               .n_ctx_train = 256,
                               .rope_base = 10000.0F,
                               .embedding_type = TensorType::kQ8_0,
                               .matrix_type = TensorType::kQ4_1,
                               .has_tied_output = false};

std::unique_ptr<Model> Make(const SyntheticShape& shape, uint32_t n_layers = 0) {
  return OrDie(MakeSyntheticModel(shape, n_layers));
}

// Every tensor's mean and deviation are those of weights that keep the size of what they are given.
void ExpectSoundWeights(const Model& model) {
  for (const GgufTensor& tensor : model.file->tensors()) {
    std::vector<float> values(std::min<uint64_t>(tensor.elements(), 1 << 16));
    DecodeTensor(tensor.type, OrDie(model.file->ReadAll(tensor)), values);
    if (tensor.type == TensorType::kF32) {
      for (const float value : values) EXPECT_EQ(value, 1.0F);
      continue;
    }
    double sum = 0.0;
    double squares = 0.0;
    for (const float value : values) {
      sum += value;
      squares += double{value} * value;
    }
    const auto n = static_cast<double>(values.size());
    const double deviation = 1.0 / std::sqrt(static_cast<double>(tensor.shape[0]));
    EXPECT_NEAR(std::sqrt(squares / n), deviation, 0.1 * deviation) << tensor.name;
    EXPECT_NEAR(sum / n, 0.0, 0.2 * deviation) << tensor.name;
  }
}

TEST(SyntheticModel, HasTheShapesAndTypesThatWereAskedFor) {
  for (const TensorType type : {TensorType::kQ4_0, TensorType::kQ4_1, TensorType::kQ8_0}) {
    for (const bool tied : {true, false}) {
      SyntheticShape shape = kTiny;
      shape.matrix_type = type;
      shape.has_tied_output = tied;
      const std::unique_ptr<Model> model = Make(shape);
      EXPECT_EQ(model->config.n_layers, 3U);
      EXPECT_EQ(model->config.n_embd, 64U);
      EXPECT_EQ(model->config.n_ff, 96U);
      EXPECT_EQ(model->config.n_heads, 4U);
      EXPECT_EQ(model->config.n_kv_heads, 2U);
      EXPECT_EQ(model->config.head_dim, 32U);
      EXPECT_EQ(model->config.n_vocab, 100U);
      EXPECT_EQ(model->config.n_ctx_train, 256U);
      EXPECT_EQ(model->config.rope.frequency_base, 10000.0F);
      EXPECT_EQ(model->config.has_tied_output, tied);
      EXPECT_EQ(model->weights.token_embedding->type, TensorType::kQ8_0);
      EXPECT_EQ(model->weights.layers[2].ffn_down->type, type);
      EXPECT_EQ(model->tokenizer, nullptr);
      ExpectSoundWeights(*model);
    }
  }
}

TEST(SyntheticModel, IsTheSameEveryTime) {
  const std::unique_ptr<Model> one = Make(kTiny);
  const std::unique_ptr<Model> two = Make(kTiny);
  EXPECT_EQ(OrDie(one->Fingerprint()), OrDie(two->Fingerprint()));
  const auto data = [](const Model& model, const char* name) {
    return OrDie(model.file->ReadAll(*model.file->FindTensor(name)));
  };
  EXPECT_EQ(data(*one, "blk.1.ffn_up.weight"), data(*two, "blk.1.ffn_up.weight"));
  EXPECT_NE(data(*one, "blk.1.ffn_up.weight"), data(*one, "blk.2.ffn_up.weight"));
  EXPECT_EQ(Make(kTiny, 1)->config.n_layers, 1U);
}

// Loading reads pieces, and a fingerprint some bytes of the middle: they are those of the whole.
TEST(SyntheticModel, AnyBytesAreThoseOfTheWhole) {
  const std::unique_ptr<Model> model = Make(kTiny);
  for (const char* name : {"blk.1.ffn_up.weight", "token_embd.weight", "blk.0.attn_norm.weight"}) {
    const GgufTensor& tensor = *model->file->FindTensor(name);
    const std::vector<std::byte> whole = OrDie(model->file->ReadAll(tensor));
    for (uint64_t begin = 0; begin < 60; ++begin) {
      for (const uint64_t n : {1, 2, 3, 7, 8, 9, 17, 18, 41, 100}) {
        std::vector<std::byte> part(n);
        EXPECT_TRUE(model->file->Read(tensor, begin, part).ok());
        EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + static_cast<ptrdiff_t>(begin)))
            << name << " " << begin << " " << n;
      }
    }
  }
  EXPECT_TRUE(model->file->paths().empty());
  EXPECT_TRUE(model->file->CheckUnchanged().ok());
  EXPECT_FALSE(model->file->HasName("/"));
}

TEST(SyntheticModel, NamedShapesAreThoseOfTheirModels) {
  const std::pair<const char*, uint64_t> shapes[] = {// As kvrun info says of the real ones.
                                                     {"SmolLM2-135M", 134515008},
                                                     {"Llama-3.2-1B", 1235814400},
                                                     {"Llama-3.2-3B", 3212749824},
                                                     {"Llama-3.1-8B", 8030261248},
                                                     {"Qwen3-0.6B", 596049920},
                                                     {"Qwen3-4B", 4022468096},
                                                     {"Qwen3-8B", 8190735360},
                                                     // Counted by hand from their configurations.
                                                     {"Qwen3.5-0.8B", 752393024},
                                                     {"Gemma-3-1B", 999885952},
                                                     {"LFM2-1.2B", 1170340608},
                                                     {"SmolLM3-3B", 3075098624}};
  EXPECT_EQ(SyntheticShapes().size(), std::size(shapes));
  for (const auto& [name, expected] : shapes) {
    const std::unique_ptr<Model> model = Make(OrDie(FindSyntheticShape(name)));
    uint64_t parameters = 0;
    for (const GgufTensor& tensor : model->file->tensors()) parameters += tensor.elements();
    EXPECT_EQ(parameters, expected) << name;
    EXPECT_EQ(model->n_layers_whole, 0U);
    const bool has_no_qk_norm = name == std::string_view("SmolLM2-135M") ||
                                name == std::string_view("SmolLM3-3B") ||
                                std::string_view(name).starts_with("Llama");
    EXPECT_EQ(model->config.has_qk_norm, !has_no_qk_norm) << name;
  }
  const auto unknown = FindSyntheticShape("GPT-5");
  ASSERT_FALSE(unknown.ok());
  EXPECT_EQ(unknown.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(unknown.status().message(),
            "there is no shape \"GPT-5\"; known: SmolLM2-135M, Llama-3.2-1B, Llama-3.2-3B, Llama-3.1-8B, "
            "Qwen3-0.6B, Qwen3-4B, Qwen3-8B, Qwen3.5-0.8B, Gemma-3-1B, LFM2-1.2B, SmolLM3-3B");
}

std::string KindsOf(const Model& model) {
  std::string kinds;
  for (const LayerConfig& layer : model.config.layers) {
    kinds += LayerKindName(layer.kind).front();
    if (layer.rope == LayerRope::kNone && layer.is_attention()) kinds += '-';
  }
  return kinds;
}

TEST(SyntheticModel, LayersAreOfTheKindsThatTheirModelsHave) {
  const std::unique_ptr<Model> qwen = Make(OrDie(FindSyntheticShape("Qwen3.5-0.8B")));
  EXPECT_EQ(KindsOf(*qwen), "dddadddadddadddadddaddda");
  EXPECT_TRUE(qwen->config.has_query_gate);
  EXPECT_EQ(qwen->config.rope.rotary_dim, 64U);
  EXPECT_EQ(qwen->config.KvBytesPerToken(2), 12288U);
  EXPECT_EQ(qwen->config.StateBytes(2), 18U * (16 * 128 * 128 + 3 * 3 * 2048) * sizeof(float));
  const std::unique_ptr<Model> gemma = Make(OrDie(FindSyntheticShape("Gemma-3-1B")));
  EXPECT_EQ(KindsOf(*gemma), "wwwwwawwwwwawwwwwawwwwwaww");
  EXPECT_EQ(gemma->config.sliding_window, 512U);
  EXPECT_EQ(gemma->config.n_ctx_train, 32768U);
  const std::unique_ptr<Model> lfm = Make(OrDie(FindSyntheticShape("LFM2-1.2B")));
  EXPECT_EQ(KindsOf(*lfm), "ssassassasasasas");
  EXPECT_EQ(lfm->config.n_convolution_taps, 3U);
  const std::unique_ptr<Model> smol = Make(OrDie(FindSyntheticShape("SmolLM3-3B")));
  EXPECT_EQ(KindsOf(*smol), "aaaa-aaaa-aaaa-aaaa-aaaa-aaaa-aaaa-aaaa-aaaa-");
  EXPECT_TRUE(smol->config.is_uniform());
}

// A state of a delta net forgets, and a convolution does not grow.
TEST(SyntheticModel, WhatIsNoMatrixIsSoundToo) {
  const std::unique_ptr<Model> model = Make(OrDie(FindSyntheticShape("Qwen3.5-0.8B")), 4);
  const auto first = [&model](const char* name) {
    float value = 0.0F;
    const GgufTensor& tensor = *model->file->FindTensor(name);
    EXPECT_TRUE(model->file->Read(tensor, 0, std::as_writable_bytes(std::span(&value, 1))).ok());
    return value;
  };
  EXPECT_EQ(first("blk.0.ssm_a"), -1.0F);
  EXPECT_EQ(first("blk.0.ssm_dt.bias"), -3.0F);
  EXPECT_EQ(first("blk.0.ssm_conv1d.weight"), 0.5F);
  EXPECT_EQ(first("blk.0.ssm_norm.weight"), 1.0F);
}

TEST(SyntheticModel, HasAsManyLayersAsFit) {
  const SyntheticShape shape = OrDie(FindSyntheticShape("Llama-3.1-8B"));
  const uint64_t whole_bytes = SyntheticModelBytes(shape, 32);
  EXPECT_NEAR(static_cast<double>(whole_bytes), 4.5e9, 0.1e9);  // 4.5 bits for each of 8.03e9
  EXPECT_EQ(LayersThatFit(shape, 24'000'000'000), 32U);
  EXPECT_EQ(LayersThatFit(shape, whole_bytes / 3 * 4 + 4), 32U);
  EXPECT_EQ(LayersThatFit(shape, whole_bytes / 3 * 4 - 4), 31U);
  EXPECT_EQ(LayersThatFit(shape, 4'000'000'000), 19U);
  EXPECT_EQ(LayersThatFit(shape, 0), 2U);
}

// As many of each kind as the whole model has, for one that is not.
TEST(SyntheticModel, PartsAreOfWholePeriods) {
  const SyntheticShape shape = OrDie(FindSyntheticShape("Qwen3.5-0.8B"));
  EXPECT_EQ(LayersThatFit(shape, 24'000'000'000), 24U);
  EXPECT_EQ(LayersThatFit(shape, SyntheticModelBytes(shape, 23) / 3 * 4 + 4), 20U);
  EXPECT_EQ(LayersThatFit(shape, 0), 8U);
  EXPECT_EQ(LayersThatFit(OrDie(FindSyntheticShape("LFM2-1.2B")), 0), 16U);
}

}  // namespace
}  // namespace kvrun
