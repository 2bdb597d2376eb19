// Models in the C API: what is said of them, text to tokens and back, chats. Device and forward pass are
// fakes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include "tests/support/capi_fixture.h"

namespace kvrun {
namespace {

using testing::CapiTest;
using testing::GgufBuilder;
using testing::LastError;
using testing::ParseAndFree;
using testing::TinyModel;
using testing::TinyModelOptions;

TEST_F(CapiTest, ModelInfoHasWhatTheHeaderSays) {
  char* text = nullptr;
  ASSERT_EQ(kvrun_model_info_json(model_, 0, &text), KVRUN_OK) << LastError();
  auto info = ParseAndFree(text);
  EXPECT_EQ(info["architecture"], "llama");
  EXPECT_EQ(info["file_bytes"], std::filesystem::file_size(path_));
  EXPECT_EQ(info["n_layers"], 2);
  EXPECT_EQ(info["n_vocab"], kVocab);
  EXPECT_EQ(info["context"], 128);
  EXPECT_EQ(info["kv_bytes_per_token"], 2 * 2 * 16 * 2);  // K and V, 2 layers of 16 dimensions of f16
  EXPECT_EQ(info["kv_bytes"], 128 * 128);
  EXPECT_EQ(info["tensor_types"]["F32"].get<size_t>(), model_->model->file->tensors().size());
  EXPECT_GT(info["parameters"].get<uint64_t>(), 2U * 32 * kVocab);
  for (const char* key : {"name", "gguf_version", "n_embd", "n_ff", "n_heads", "n_kv_heads", "head_dim",
                          "n_ctx_train", "rope", "tokenizer", "chat_form"}) {
    EXPECT_TRUE(info.contains(key)) << key;
  }
  ASSERT_EQ(kvrun_model_info_json(model_, 10, &text), KVRUN_OK);
  EXPECT_EQ(ParseAndFree(text)["kv_bytes"], 1280);
  EXPECT_EQ(kvrun_model_vocab_size(model_), kVocab);
  EXPECT_EQ(kvrun_model_context_train(model_), 128U);
  EXPECT_EQ(kvrun_model_is_end_of_generation(model_, model_->model->tokenizer->eos()), 1);
  EXPECT_EQ(kvrun_model_is_end_of_generation(model_, 5), 0);
}

TEST_F(CapiTest, ModelInfoHasWhatTheFileAdvisesToSampleWith) {
  const auto sampling_of = [this](const auto& set) {
    TinyModelOptions options;
    options.n_vocab = kVocab;
    GgufBuilder builder = TinyModel(options);
    set(&builder);
    Rewrite(builder);
    kvrun_model* model = nullptr;
    EXPECT_EQ(kvrun_model_open(path_.c_str(), &model), KVRUN_OK) << LastError();
    char* text = nullptr;
    EXPECT_EQ(kvrun_model_info_json(model, 0, &text), KVRUN_OK) << LastError();
    kvrun_model_close(model);
    return ParseAndFree(text)["sampling"];
  };
  EXPECT_EQ(sampling_of([](GgufBuilder*) {}).dump(),
            R"({"min_p":null,"temperature":null,"top_k":null,"top_p":null})");
  EXPECT_EQ(sampling_of([](GgufBuilder* builder) {
              builder->Set("general.sampling.temp", 0.7F).Set("general.sampling.top_k", int32_t{20});
              builder->Set("general.sampling.top_p", 0.95F).Set("general.sampling.min_p", uint32_t{0});
            }).dump(),
            R"({"min_p":0.0,"temperature":0.7,"top_k":20,"top_p":0.95})");
  EXPECT_EQ(
      sampling_of([](GgufBuilder* builder) { builder->Set("general.sampling.top_k", int32_t{-1}); })["top_k"],
      0)
      << "off";
  const auto hostile = sampling_of([](GgufBuilder* builder) {
    builder->Set("general.sampling.temp", std::numeric_limits<float>::quiet_NaN());
    builder->Set("general.sampling.top_k", 2.5F).Set("general.sampling.top_p", -0.5F);
    builder->Set("general.sampling.min_p", "a little");
  });
  for (const char* name : {"temperature", "top_k", "top_p", "min_p"})
    EXPECT_TRUE(hostile[name].is_null()) << name;
  ASSERT_EQ(hostile["ignored"].size(), 4U) << hostile;
  EXPECT_NE(hostile["ignored"][0].get<std::string>().find("general.sampling.temp"), std::string::npos)
      << hostile;
}

TEST_F(CapiTest, AMissingModelIsNotFoundAndNamed) {
  kvrun_model* model = model_;
  EXPECT_EQ(kvrun_model_open("/nowhere/a.gguf", &model), KVRUN_NOT_FOUND);
  EXPECT_EQ(model, nullptr);
  EXPECT_NE(LastError().find("/nowhere/a.gguf"), std::string::npos) << LastError();
}

TEST_F(CapiTest, TokenizeSaysHowMuchRoomItNeeds) {
  const std::string text = "abc";
  size_t count = 0;
  ASSERT_EQ(kvrun_tokenize(model_, text.data(), text.size(), 0, nullptr, &count), KVRUN_OK) << LastError();
  ASSERT_GT(count, 0U);
  const size_t needed = count;
  std::vector<int32_t> ids(needed, -7);
  count = needed - 1;
  ASSERT_EQ(kvrun_tokenize(model_, text.data(), text.size(), 0, ids.data(), &count), KVRUN_OK);
  EXPECT_EQ(count, needed);
  EXPECT_EQ(ids[0], -7);  // nothing was written
  ASSERT_EQ(kvrun_tokenize(model_, text.data(), text.size(), 0, ids.data(), &count), KVRUN_OK);
  std::string back(8, '\0');
  size_t bytes = back.size();
  ASSERT_EQ(kvrun_detokenize(model_, ids.data(), ids.size(), back.data(), &bytes), KVRUN_OK);
  EXPECT_EQ(back.substr(0, bytes), model_->model->tokenizer->Decode(ids));
}

TEST_F(CapiTest, TokenizeAddsBosOnceAndOnlyWhenTold) {
  const Tokenizer& tokenizer = *model_->model->tokenizer;
  const auto first_id = [&](uint32_t flags) {
    std::vector<int32_t> ids(16, -1);
    size_t count = ids.size();
    EXPECT_EQ(kvrun_tokenize(model_, "a", 1, flags, ids.data(), &count), KVRUN_OK) << LastError();
    EXPECT_EQ(std::count(ids.begin(), ids.end(), tokenizer.bos()), ids[0] == tokenizer.bos() ? 1 : 0);
    return ids[0];
  };
  EXPECT_NE(first_id(0), tokenizer.bos());
  EXPECT_EQ(first_id(KVRUN_ENCODE_ADD_BOS), tokenizer.bos());
  EXPECT_EQ(first_id(KVRUN_ENCODE_ADD_BOS | KVRUN_ENCODE_BOS_IF_ASKED), tokenizer.bos());
  EXPECT_EQ(first_id(KVRUN_ENCODE_BOS_IF_ASKED) == tokenizer.bos(), kvrun_model_adds_bos(model_) == 1);
  size_t count = 0;
  EXPECT_EQ(kvrun_tokenize(model_, "a", 1, 64, nullptr, &count), KVRUN_INVALID_ARGUMENT);
}

TEST_F(CapiTest, AnUnknownChatFormSaysSo) {
  const kvrun_chat_message message = {"user", "hello"};
  char* text = nullptr;
  EXPECT_EQ(kvrun_chat_format(model_, &message, 1, 0, &text), KVRUN_UNSUPPORTED);
  EXPECT_EQ(text, nullptr);
  EXPECT_FALSE(LastError().empty());
  Rewrite(TinyModel().Set(
      "tokenizer.chat_template",
      "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
      "'<|im_end|>' + "
      "'\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"));
  kvrun_model* talking = nullptr;
  ASSERT_EQ(kvrun_model_open(path_.c_str(), &talking), KVRUN_OK) << LastError();
  ASSERT_EQ(kvrun_chat_format(talking, &message, 1, 0, &text), KVRUN_OK) << LastError();
  kvrun_model_close(talking);
  EXPECT_NE(std::string(text).find("<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"),
            std::string::npos);
  kvrun_string_free(text);
  const kvrun_chat_message no_role = {nullptr, "hello"};
  EXPECT_EQ(kvrun_chat_format(model_, &no_role, 1, 0, &text), KVRUN_INVALID_ARGUMENT);
}

TEST_F(CapiTest, ChatsBecomeIds) {
  const kvrun_chat_message message = {"user", "a</s>b"};
  size_t count = 0;
  EXPECT_EQ(kvrun_chat_encode(model_, &message, 1, nullptr, nullptr, &count), KVRUN_UNSUPPORTED);
  kvrun_chat_options options;
  kvrun_chat_options_init(&options);
  EXPECT_EQ(options.struct_size, sizeof(options));
  EXPECT_EQ(options.thinking, KVRUN_THINKING_DEFAULT);
  options.chat_template = "zephyr";  // <|user|>\n..</s>\n: its end-of-turn token is in every vocabulary
  const auto encode = [&] {
    size_t n_ids = 0;
    EXPECT_EQ(kvrun_chat_encode(model_, &message, 1, &options, nullptr, &n_ids), KVRUN_OK) << LastError();
    std::vector<int32_t> ids(n_ids, -1);
    n_ids = n_ids / 2;
    EXPECT_EQ(kvrun_chat_encode(model_, &message, 1, &options, ids.data(), &n_ids), KVRUN_OK);
    EXPECT_EQ(std::count(ids.begin(), ids.end(), -1), static_cast<ptrdiff_t>(ids.size()))
        << "it wrote without room for all";
    EXPECT_EQ(kvrun_chat_encode(model_, &message, 1, &options, ids.data(), &n_ids), KVRUN_OK);
    return ids;
  };
  const Tokenizer& tokenizer = *model_->model->tokenizer;
  const auto ends = [&](const std::vector<int32_t>& ids) {
    return std::count(ids.begin(), ids.end(), tokenizer.eos());
  };
  const std::vector<int32_t> ids = encode();
  EXPECT_EQ(ends(ids), 1);
  EXPECT_EQ(ids[0] == tokenizer.bos(), kvrun_model_adds_bos(model_) == 1);
  options.parse_special = 1;
  EXPECT_EQ(ends(encode()), 2);
  options.parse_special = 0;
  options.continued = 1;
  const std::vector<int32_t> next = encode();
  EXPECT_EQ(next[0], tokenizer.eos());
  EXPECT_EQ(ends(next), 2);
}

TEST_F(CapiTest, AShapeHasNoMoreLayersThanItHas) {
  kvrun_model* made = nullptr;
  EXPECT_EQ(kvrun_model_make("SmolLM2-135M", 31, &made), KVRUN_INVALID_ARGUMENT);
  EXPECT_EQ(made, nullptr);
  EXPECT_NE(LastError().find("has 30 layers, and 31 were asked for"), std::string::npos) << LastError();
}

TEST_F(CapiTest, WrongChatOptionsAreRefused) {
  const kvrun_chat_message message = {"user", "hello"};
  kvrun_chat_options options;
  kvrun_chat_options_init(&options);
  size_t count = 0;
  const auto expect = [&](kvrun_status status, const std::string& part) {
    EXPECT_EQ(kvrun_chat_encode(model_, &message, 1, &options, nullptr, &count), status);
    EXPECT_NE(LastError().find(part), std::string::npos) << LastError();
  };
  options.chat_template = "llama-4";
  expect(KVRUN_UNSUPPORTED, "chatml, llama-2");
  options.chat_template = "{{ '<start_of_turn>' }}";
  expect(KVRUN_UNSUPPORTED, "does not write what the user asks");
  options.chat_template = "chatml";
  options.thinking = KVRUN_THINKING_OFF;
  expect(KVRUN_UNSUPPORTED, "thinking");
  options.chat_template = "qwen3";
  EXPECT_EQ(kvrun_chat_encode(model_, &message, 1, &options, nullptr, &count), KVRUN_OK) << LastError();
  options.struct_size = 3;
  count = 0;
  expect(KVRUN_INVALID_ARGUMENT, "kvrun_chat_options");
  EXPECT_EQ(kvrun_chat_encode(model_, &message, 1, nullptr, nullptr, nullptr), KVRUN_INVALID_ARGUMENT);
  EXPECT_EQ(std::string(kvrun_chat_template_names()[0]), "chatml");
}

TEST_F(CapiTest, LostBytesAreCounted) {
  // The fixture's vocabulary has all bytes.
  const std::string text = "\xc3\xa9";
  uint64_t lost_bytes = 99;
  ASSERT_EQ(kvrun_count_lost_bytes(model_, text.data(), text.size(), 0, &lost_bytes), KVRUN_OK);
  EXPECT_EQ(lost_bytes, 0U);
  ASSERT_EQ(kvrun_count_lost_bytes(model_, nullptr, 0, 0, &lost_bytes), KVRUN_OK);
  EXPECT_EQ(lost_bytes, 0U);
  EXPECT_EQ(kvrun_count_lost_bytes(model_, "a", 1, 64, &lost_bytes), KVRUN_INVALID_ARGUMENT);
  EXPECT_EQ(kvrun_count_lost_bytes(model_, "a", 1, 0, nullptr), KVRUN_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace kvrun
