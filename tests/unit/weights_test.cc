#include "runtime/model/weights.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "tests/support/gguf_builder.h"

namespace kvrun {
namespace {

using testing::Bytes;
using testing::GgufBuilder;
using testing::TinyModel;
using testing::TinyModelOptions;

// Bytes, file and weights together: each points into the one before.
struct Loaded {
  Bytes bytes;
  std::unique_ptr<GgufFile> file;
  ModelConfig config;
  Status status;
  ModelWeights weights;
};

std::unique_ptr<Loaded> Load(const GgufBuilder& builder) {
  auto loaded = std::make_unique<Loaded>();
  loaded->bytes = builder.Build();
  auto file = GgufFile::Parse(loaded->bytes, "model.gguf");
  if (!file.ok()) {
    loaded->status = file.status();
    return loaded;
  }
  loaded->file = std::move(*file);
  auto config = ReadModelConfig(*loaded->file);
  if (!config.ok()) {
    loaded->status = config.status();
    return loaded;
  }
  loaded->config = *config;
  auto weights = FindModelWeights(*loaded->file, loaded->config);
  loaded->status = weights.status();
  if (weights.ok()) loaded->weights = std::move(*weights);
  return loaded;
}

void ExpectRefused(const GgufBuilder& builder, StatusCode code, std::string_view part) {
  const Status status = Load(builder)->status;
  EXPECT_EQ(status.code(), code) << status.message();
  EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
  EXPECT_EQ(status.message().find("model.gguf: "), 0U) << status.message();
}

TEST(Weights, FindsEveryTensorOfALlama) {
  const auto loaded = Load(TinyModel());
  ASSERT_TRUE(loaded->status.ok()) << loaded->status.message();
  const ModelWeights& weights = loaded->weights;
  EXPECT_EQ(weights.token_embedding->name, "token_embd.weight");
  EXPECT_EQ(weights.output_norm->name, "output_norm.weight");
  EXPECT_EQ(weights.output->name, "output.weight");
  ASSERT_EQ(weights.layers.size(), 2U);
  const LayerWeights& layer = weights.layers[1];
  EXPECT_EQ(layer.attention_norm->name, "blk.1.attn_norm.weight");
  EXPECT_EQ(layer.q.tensor->name, "blk.1.attn_q.weight");
  EXPECT_EQ(layer.k.tensor->name, "blk.1.attn_k.weight");
  EXPECT_EQ(layer.v.tensor->name, "blk.1.attn_v.weight");
  EXPECT_EQ(layer.attention_output->name, "blk.1.attn_output.weight");
  EXPECT_EQ(layer.ffn_norm->name, "blk.1.ffn_norm.weight");
  EXPECT_EQ(layer.ffn_gate.tensor->name, "blk.1.ffn_gate.weight");
  EXPECT_EQ(layer.ffn_up.tensor->name, "blk.1.ffn_up.weight");
  EXPECT_EQ(layer.ffn_down->name, "blk.1.ffn_down.weight");
  EXPECT_EQ(layer.q_bias, nullptr);
  EXPECT_EQ(layer.q_norm, nullptr);
}

TEST(Weights, FindsBiasesNormsAndTiedOutput) {
  TinyModelOptions options;
  options.architecture = "qwen2";
  options.has_qkv_bias = true;
  options.has_tied_output = true;
  const auto qwen2 = Load(TinyModel(options));
  ASSERT_TRUE(qwen2->status.ok()) << qwen2->status.message();
  EXPECT_EQ(qwen2->weights.output, qwen2->weights.token_embedding);
  EXPECT_EQ(qwen2->weights.layers[0].q_bias->name, "blk.0.attn_q.bias");
  EXPECT_EQ(qwen2->weights.layers[0].k_bias->name, "blk.0.attn_k.bias");
  EXPECT_EQ(qwen2->weights.layers[0].v_bias->name, "blk.0.attn_v.bias");
  options.architecture = "qwen3";
  options.has_qkv_bias = false;
  options.has_qk_norm = true;
  const auto qwen3 = Load(TinyModel(options));
  ASSERT_TRUE(qwen3->status.ok()) << qwen3->status.message();
  EXPECT_EQ(qwen3->weights.layers[1].q_norm->name, "blk.1.attn_q_norm.weight");
  EXPECT_EQ(qwen3->weights.layers[1].k_norm->name, "blk.1.attn_k_norm.weight");
}

TEST(Weights, EveryMissingTensorIsNamed) {
  const auto whole = Load(TinyModel());
  ASSERT_TRUE(whole->status.ok());
  for (const GgufTensor& tensor : whole->file->tensors()) {
    if (tensor.name == "output.weight") continue;  // then it is tied
    const std::string name(tensor.name);
    ExpectRefused(TinyModel().EraseTensor(name), StatusCode::kCorrupt, "tensor \"" + name + "\" of shape [");
  }
  TinyModelOptions options;
  options.architecture = "qwen2";
  ExpectRefused(TinyModel(options), StatusCode::kCorrupt,
                "tensor \"blk.0.attn_q.bias\" of shape [32] is missing");
}

TEST(Weights, EveryWrongShapeIsNamed) {
  const auto whole = Load(TinyModel());
  ASSERT_TRUE(whole->status.ok());
  for (const GgufTensor& tensor : whole->file->tensors()) {
    const std::string name(tensor.name);
    std::vector<uint64_t> shape(tensor.shape.begin(), tensor.shape.begin() + tensor.n_dims);
    ++shape.back();
    const auto n = static_cast<size_t>(tensor.elements() / (shape.back() - 1) * shape.back());
    ExpectRefused(TinyModel().AddTensor(name, shape, std::vector<float>(n)), StatusCode::kCorrupt,
                  "tensor \"" + name + "\" has shape [");
  }
  ExpectRefused(TinyModel().AddTensor("blk.0.attn_k.weight", {16, 32}, std::vector<float>(512)),
                StatusCode::kCorrupt, "has shape [16, 32], expected [32, 16]");
  ExpectRefused(TinyModel().AddTensor("output_norm.weight", {32, 2}, std::vector<float>(64)),
                StatusCode::kCorrupt, "has shape [32, 2], expected [32]");
}

TEST(Weights, MatricesOfAnyTypeVectorsOfF32) {
  const auto halved =
      Load(TinyModel().AddTensor("blk.0.attn_q.weight", TensorType::kQ8_0, {32, 32}, Bytes(size_t{34} * 32)));
  EXPECT_TRUE(halved->status.ok()) << halved->status.message();
  ExpectRefused(TinyModel().AddTensor("blk.0.attn_norm.weight", TensorType::kF16, {32}, Bytes(64)),
                StatusCode::kUnsupported,
                "\"blk.0.attn_norm.weight\" is F16; kvrun reads norms and biases in F32");
}

TEST(Weights, ATensorWithoutAPlaceIsRefused) {
  const std::vector<float> values(32);
  for (const char* name : {"blk.0.attn_output.bias", "blk.2.attn_norm.weight", "blk.0.ffn_gate_inp.weight"}) {
    ExpectRefused(TinyModel().AddTensor(name, {32}, values), StatusCode::kUnsupported,
                  std::string("tensor \"") + name + "\" has no place");
  }
  const auto harmless = Load(TinyModel().AddTensor("blk.0.attn_rot_embd.weight", {32}, values));
  EXPECT_TRUE(harmless->status.ok()) << harmless->status.message();
}

}  // namespace
}  // namespace kvrun
