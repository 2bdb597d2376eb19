#include "runtime/model/synthetic_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <vector>

#include "tests/support/or_die.h"
#include "tests/support/program_runner.h"

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
  static const TemporaryFolder folder;
  return OrDie(MakeSyntheticModel(shape, n_layers, folder.Path("made/here")));
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

TEST(SyntheticModel, NamedShapesAreThoseOfTheirModels) {
  const SyntheticShape shape = OrDie(FindSyntheticShape("SmolLM2-135M"));
  const std::unique_ptr<Model> model = Make(shape);
  uint64_t parameters = 0;
  for (const GgufTensor& tensor : model->file->tensors()) parameters += tensor.elements();
  EXPECT_EQ(parameters, 134515008U);  // as kvrun info says of the real one
  EXPECT_EQ(SyntheticShapes().size(), 3U);
  const auto unknown = FindSyntheticShape("GPT-5");
  ASSERT_FALSE(unknown.ok());
  EXPECT_EQ(unknown.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(unknown.status().message(),
            "there is no shape \"GPT-5\"; known: SmolLM2-135M, Llama-3.2-1B, Llama-3.1-8B");
}

TEST(SyntheticModel, SaysWhereItsFileCannotBeMade) {
  const auto model = MakeSyntheticModel(kTiny, 0, "/proc/nowhere");
  ASSERT_FALSE(model.ok());
  EXPECT_NE(model.status().message().find("random weights of tiny in /proc/nowhere: "), std::string::npos)
      << model.status().message();
}

}  // namespace
}  // namespace kvrun
