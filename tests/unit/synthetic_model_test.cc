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
  const std::pair<const char*, uint64_t> shapes[] = {
      // As kvrun info says of the real ones.
      {"SmolLM2-135M", 134515008},  {"Llama-3.2-1B", 1235814400}, {"Llama-3.2-3B", 3212749824},
      {"Llama-3.1-8B", 8030261248}, {"Qwen3-0.6B", 596049920},    {"Qwen3-4B", 4022468096},
      {"Qwen3-8B", 8190735360}};
  EXPECT_EQ(SyntheticShapes().size(), std::size(shapes));
  for (const auto& [name, expected] : shapes) {
    const std::unique_ptr<Model> model = Make(OrDie(FindSyntheticShape(name)));
    uint64_t parameters = 0;
    for (const GgufTensor& tensor : model->file->tensors()) parameters += tensor.elements();
    EXPECT_EQ(parameters, expected) << name;
    EXPECT_EQ(model->n_layers_whole, 0U);
    EXPECT_EQ(model->config.has_qk_norm, std::string_view(name).starts_with("Qwen3"));
  }
  const auto unknown = FindSyntheticShape("GPT-5");
  ASSERT_FALSE(unknown.ok());
  EXPECT_EQ(unknown.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(unknown.status().message(),
            "there is no shape \"GPT-5\"; known: SmolLM2-135M, Llama-3.2-1B, Llama-3.2-3B, Llama-3.1-8B, "
            "Qwen3-0.6B, Qwen3-4B, Qwen3-8B");
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

}  // namespace
}  // namespace kvrun
