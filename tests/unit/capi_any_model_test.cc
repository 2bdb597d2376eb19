// Not grouped (cmake/KvrunCompile.cmake): its headers have names of others, too.
// kvrun_model_open_any: files that can be shown and tokenised with, but not computed.
#include <gtest/gtest.h>

#include <string>

#include "runtime/model/gguf.h"
#include "tests/support/capi_fixture.h"

namespace kvrun {
namespace {

using testing::Bytes;
using testing::GgufBuilder;
using testing::LastError;
using testing::ParseAndFree;
using testing::TinyModel;

using CapiAnyModel = testing::CapiFixture;

// A vocabulary alone, an architecture or types that are not known: everything but computing.
TEST_F(CapiAnyModel, AModelThatCannotBeComputedIsOpenedToBeShown) {
  GgufBuilder vocabulary = TinyModel();
  const Bytes whole = vocabulary.Build();
  const auto file = GgufFile::Parse(whole, "whole");
  ASSERT_TRUE(file.ok());
  for (const GgufTensor& tensor : (*file)->tensors()) vocabulary.EraseTensor(tensor.name);
  GgufBuilder bare = vocabulary;
  for (const char* key : {"llama.block_count", "llama.context_length", "llama.vocab_size",
                          "llama.embedding_length", "general.architecture"})
    bare.Erase(key);
  GgufBuilder foreign = TinyModel().Set("general.architecture", "mamba");
  foreign.Set("mamba.context_length", uint32_t{512}).Set("mamba.block_count", uint32_t{7});
  GgufBuilder typed = TinyModel();
  typed.AddTensor("output.weight", 39, {32, 24}, Bytes(32 * 24));
  struct Case {
    const GgufBuilder& builder;
    const char* why;
    nlohmann::json said;
  };
  for (const Case& one :
       {Case{vocabulary, "it holds no tensors", {{"n_layers", 2}, {"parameters", 0}}},
        Case{bare, "it holds no tensors", {{"architecture", nullptr}, {"context", nullptr}}},
        Case{foreign, "mamba", {{"n_ctx_train", 512}, {"n_layers", 7}, {"n_ff", nullptr}}},
        Case{typed,
             "\"output.weight\": tensor type 39 is not supported",
             {{"n_layers", 2}, {"tensor_types", {{"F32", 20}, {"type 39", 1}}}}}}) {
    SCOPED_TRACE(one.why);
    Rewrite(one.builder);
    kvrun_model* model = nullptr;
    EXPECT_EQ(kvrun_model_open(path_.c_str(), &model), KVRUN_UNSUPPORTED);
    EXPECT_EQ(model, nullptr);
    const std::string refusal = LastError();
    EXPECT_NE(refusal.find(one.why), std::string::npos) << refusal;
    ASSERT_EQ(kvrun_model_open_any(path_.c_str(), &model), KVRUN_OK) << LastError();
    char* text = nullptr;
    ASSERT_EQ(kvrun_model_info_json(model, 0, &text), KVRUN_OK) << LastError();
    const auto info = ParseAndFree(text);
    EXPECT_EQ(info["unsupported"], refusal);
    EXPECT_EQ(info["n_vocab"], 24);
    EXPECT_EQ(info["vocabulary"]["tokens"], 24);
    EXPECT_EQ(info["vocabulary"]["control"], 2);
    EXPECT_EQ(info["vocabulary"]["bos"], 1);
    EXPECT_EQ(info["vocabulary"]["ends"], nlohmann::json({2}));
    EXPECT_TRUE(info["vocabulary"]["merges"].is_null());
    EXPECT_TRUE(info["vocabulary"]["unusable"].is_null());
    EXPECT_TRUE(info["kv_bytes"].is_null());
    for (const auto& [key, value] : one.said.items()) EXPECT_EQ(info[key], value) << key;
    EXPECT_EQ(kvrun_model_vocab_size(model), 24U);
    size_t count = 0;
    EXPECT_EQ(kvrun_tokenize(model, "a", 1, 0, nullptr, &count), KVRUN_OK) << LastError();
    EXPECT_GT(count, 0U);
    kvrun_engine* engine = nullptr;
    EXPECT_EQ(kvrun_engine_create(model, nullptr, &engine), KVRUN_UNSUPPORTED);
    EXPECT_EQ(LastError(), refusal);
    EXPECT_EQ(kvrun_kv_plan_json(model, nullptr, &text), KVRUN_UNSUPPORTED);
    EXPECT_EQ(LastError(), refusal);
    EXPECT_EQ(kvrun_config_json("config.toml", model, nullptr, nullptr, &text), KVRUN_UNSUPPORTED);
    EXPECT_EQ(LastError(), refusal);
    kvrun_model_close(model);
  }
}

TEST_F(CapiAnyModel, AVocabularyThatCannotBeUsedIsShownAndSaysWhy) {
  Rewrite(TinyModel().Set("general.architecture", "mamba").Erase("tokenizer.ggml.scores"));
  kvrun_model* model = nullptr;
  ASSERT_EQ(kvrun_model_open_any(path_.c_str(), &model), KVRUN_OK) << LastError();
  char* text = nullptr;
  ASSERT_EQ(kvrun_model_info_json(model, 0, &text), KVRUN_OK) << LastError();
  const auto vocabulary = ParseAndFree(text)["vocabulary"];
  EXPECT_EQ(vocabulary["tokens"], 24);
  EXPECT_TRUE(vocabulary["bos"].is_null());
  EXPECT_TRUE(vocabulary["ends"].is_null());
  const auto why = vocabulary["unusable"].get<std::string>();
  EXPECT_NE(why.find("tokenizer.ggml.scores"), std::string::npos) << why;
  size_t count = 0;
  EXPECT_EQ(kvrun_tokenize(model, "a", 1, 0, nullptr, &count), KVRUN_NOT_FOUND);
  EXPECT_EQ(LastError(), "the model has no vocabulary that can be used: " + why);
  kvrun_model_close(model);
  Rewrite(TinyModel().Set("general.architecture", "mamba").Erase("tokenizer.ggml.tokens"));
  ASSERT_EQ(kvrun_model_open_any(path_.c_str(), &model), KVRUN_OK) << LastError();
  ASSERT_EQ(kvrun_model_info_json(model, 0, &text), KVRUN_OK) << LastError();
  EXPECT_TRUE(ParseAndFree(text)["vocabulary"].is_null());
  kvrun_model_close(model);
}

TEST_F(CapiAnyModel, ADamagedModelIsRefused) {
  Rewrite(TinyModel().EraseTensor("output_norm.weight"));
  kvrun_model* damaged = nullptr;
  EXPECT_EQ(kvrun_model_open_any(path_.c_str(), &damaged), KVRUN_CORRUPT);
}

}  // namespace
}  // namespace kvrun
