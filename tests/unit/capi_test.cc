#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include <nlohmann/json.hpp>

#include "runtime/capi/border.h"
#include "tests/support/capi_fixture.h"

namespace kvrun {
namespace {

using testing::Bytes;
using testing::FakeForwardPass;
using testing::GgufBuilder;
using testing::LastError;
using testing::ParseAndFree;
using testing::TinyModel;
using testing::TinyModelOptions;

class CapiTest : public testing::CapiFixture {};

int CollectToken(void* user, uint32_t, int32_t token, const char* text, size_t text_bytes) {
  EXPECT_NE(text, nullptr);
  EXPECT_TRUE(text_bytes == 0 || std::strlen(text) > 0);
  if (token >= 0) static_cast<std::vector<int32_t>*>(user)->push_back(token);
  return 0;
}

std::vector<int32_t> GenerateIds(kvrun_session* session, uint32_t n, uint32_t sequence = 0) {
  kvrun_generate_options options;
  kvrun_generate_options_init(&options);
  options.max_tokens = n;
  options.ignore_end = 1;
  std::vector<int32_t> ids;
  kvrun_generate_result result;
  EXPECT_EQ(kvrun_session_generate(session, &sequence, 1, &options, CollectToken, &ids, &result), KVRUN_OK)
      << LastError();
  EXPECT_EQ(result.n_tokens, n);
  EXPECT_EQ(result.finish, KVRUN_FINISH_LENGTH);
  return ids;
}

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

TEST_F(CapiTest, FeedsAndGenerates) {
  kvrun_session* session = MakeSession();
  EXPECT_EQ(kvrun_session_context(session), 64U);
  const std::vector<int32_t> ids = {5, 6, 7};
  ASSERT_EQ(kvrun_session_feed(session, 0, ids.data(), ids.size()), KVRUN_OK) << LastError();
  EXPECT_EQ(GenerateIds(session, 4).size(), 4U);
  EXPECT_EQ(kvrun_session_length(session, 0), 6U);
  ASSERT_EQ(kvrun_session_truncate(session, 0, 2), KVRUN_OK);
  EXPECT_EQ(kvrun_session_length(session, 0), 2U);
  const std::vector<int32_t> many(63, 5);
  EXPECT_EQ(kvrun_session_feed(session, 0, many.data(), many.size()), KVRUN_CONTEXT_FULL);
  EXPECT_NE(LastError().find("64"), std::string::npos);
  EXPECT_EQ(kvrun_session_length(session, 0), 2U);
  kvrun_session_destroy(session);
}

TEST_F(CapiTest, FeedLogitsHandsOutRows) {
  kvrun_session* session = MakeSession();
  const std::vector<int32_t> ids = {5, 6, 7, 8};
  std::vector<float> rows;
  const auto collect = [](void* user, uint32_t position, uint32_t n_rows, const float* logits) {
    EXPECT_EQ(position, 2U);
    static_cast<std::vector<float>*>(user)->assign(logits, logits + size_t{n_rows} * kVocab);
    return 0;
  };
  ASSERT_EQ(kvrun_session_feed_logits(session, 0, ids.data(), ids.size(), 2, collect, &rows), KVRUN_OK);
  ASSERT_EQ(rows.size(), 2U * kVocab);
  EXPECT_EQ(std::vector<float>(rows.begin() + kVocab, rows.end()), FakeForwardPass::LogitsAfter(ids, kVocab));
  EXPECT_EQ(kvrun_session_feed_logits(session, 0, ids.data(), ids.size(), 2, nullptr, nullptr),
            KVRUN_INVALID_ARGUMENT);
  kvrun_session_destroy(session);
}

TEST_F(CapiTest, ProgressOfPrefillReachesTheCallerWhoCanCancel) {
  kvrun_session_options options;
  kvrun_session_options_init(&options);
  options.progress = [](void* user, kvrun_phase phase, uint64_t done, uint64_t total) {
    EXPECT_EQ(phase, KVRUN_PHASE_PREFILL);
    EXPECT_EQ(total, 40U);
    ++*static_cast<int*>(user);
    return done >= 16 ? 1 : 0;
  };
  int calls = 0;
  options.progress_user = &calls;
  kvrun_session* session = nullptr;
  ASSERT_EQ(kvrun_session_create(engine_, &options, &session), KVRUN_OK);
  EXPECT_EQ(kvrun_session_context(session), 128U);  // what the model was trained with
  const std::vector<int32_t> ids(40, 9);
  EXPECT_EQ(kvrun_session_feed(session, 0, ids.data(), ids.size()), KVRUN_CANCELLED);
  EXPECT_EQ(calls, 2);
  EXPECT_EQ(kvrun_session_length(session, 0), 16U);
  kvrun_session_destroy(session);
}

TEST_F(CapiTest, StatisticsAreJsonWithEveryPart) {
  device_->operation_times = {{"matmul", 5, 2.0}};
  kvrun_session* session = MakeSession(1, 200);
  const std::vector<int32_t> ids = {1, 2, 3};
  ASSERT_EQ(kvrun_session_feed(session, 0, ids.data(), ids.size()), KVRUN_OK);
  GenerateIds(session, 5);
  device_->operation_times = {{"matmul", 3, 1.5}, {"embed", 1, 0.5}};
  char* text = nullptr;
  ASSERT_EQ(kvrun_session_stats_json(session, &text), KVRUN_OK) << LastError();
  const auto stats = ParseAndFree(text);
  EXPECT_EQ(stats["prefill_tokens"], 3);
  EXPECT_EQ(stats["answer_tokens"], 5);
  EXPECT_EQ(stats["decode_tokens"], 4);
  EXPECT_EQ(stats["last"]["answer_tokens"], 5);
  EXPECT_EQ(stats["last"]["prefill_tokens"], 3);
  EXPECT_GT(stats["decode_tps"].get<double>(), 0.0);
  EXPECT_GT(stats["prefill_tps"].get<double>(), 0.0);
  EXPECT_GT(stats["ttft_ms"].get<double>(), 0.0);
  nlohmann::json memory = stats["memory"];
  EXPECT_GE(memory["process_peak"], memory["process"]);
  EXPECT_GT(memory["process"], 1 << 20);
  EXPECT_GE(memory["all"], memory["process"]);
  EXPECT_LE(memory["all"], memory["process_peak"].get<uint64_t>() + 1234);
  for (const char* of_process : {"process", "process_peak", "all"}) memory.erase(of_process);
  EXPECT_EQ(memory, nlohmann::json::parse(R"({"weights": 1000, "kv": 230, "activations": 0,
                                                       "staging": 0, "pipelines": 4, "total": 1234})"));
  EXPECT_EQ(stats["operations"], nlohmann::json::parse(R"([{"name": "matmul", "count": 3, "ms": 1.5},
                                                           {"name": "embed", "count": 1, "ms": 0.5}])"));
  EXPECT_EQ(stats["notes"].size(), 1U);  // 200 tokens of context, trained with 128
  kvrun_session_stats_reset(session);
  ASSERT_EQ(kvrun_session_stats_json(session, &text), KVRUN_OK);
  const auto after_reset = ParseAndFree(text);
  EXPECT_EQ(after_reset["decode_tokens"], 0);
  EXPECT_TRUE(after_reset["operations"].empty());
  kvrun_session_destroy(session);
}

TEST_F(CapiTest, EngineInfoIsValidUtf8WhateverTheDriverSays) {
  char* text = nullptr;
  ASSERT_EQ(kvrun_engine_info_json(engine_, &text), KVRUN_OK) << LastError();
  const auto info = ParseAndFree(text);
  EXPECT_EQ(info["device"], "Fake device");
  EXPECT_EQ(info["driver"], "fake 1.0 \xEF\xBF\xBD");
  EXPECT_EQ(info["is_cpu"], true);
  EXPECT_EQ(info["notes"][0], "a note");
}

TEST_F(CapiTest, StructsOfOtherVersions) {
  kvrun_session* session = MakeSession();
  const int32_t id = 5;
  ASSERT_EQ(kvrun_session_feed(session, 0, &id, 1), KVRUN_OK);
  const uint32_t sequence = 0;
  const auto generate = [&](const kvrun_generate_options* options) {
    return kvrun_session_generate(session, &sequence, 1, options, nullptr, nullptr, nullptr);
  };
  kvrun_generate_options options;
  kvrun_generate_options_init(&options);
  for (const uint32_t bad : {0U, 4U, 9U, 5000U, 0xCCCCCCCCU}) {
    options.struct_size = bad;
    EXPECT_EQ(generate(&options), KVRUN_INVALID_ARGUMENT) << bad;
    EXPECT_NE(LastError().find("struct_size"), std::string::npos);
  }
  // An older, shorter struct: what it lacks is the default (top_p 1, not what lies behind it).
  kvrun_generate_options older;
  std::memset(&older, 0xFF, sizeof(older));
  older.struct_size = offsetof(kvrun_generate_options, temperature);
  older.max_tokens = 2;
  EXPECT_EQ(generate(&older), KVRUN_OK) << LastError();
  // A newer, longer one: fine as long as it asks for nothing that is not known.
  struct Newer {
    kvrun_generate_options options;
    uint64_t more;
  } newer = {};
  kvrun_generate_options_init(&newer.options);
  newer.options.struct_size = sizeof(newer);
  newer.options.max_tokens = 1;
  EXPECT_EQ(generate(&newer.options), KVRUN_OK) << LastError();
  newer.more = 1;
  EXPECT_EQ(generate(&newer.options), KVRUN_UNSUPPORTED);
  EXPECT_EQ(generate(nullptr), KVRUN_OK);  // all defaults
  kvrun_session_destroy(session);
}

TEST_F(CapiTest, OptionsOutOfRangeAreRefused) {
  kvrun_session_options options;
  kvrun_session* session = nullptr;
  for (const uint32_t n : {0U, 17U}) {
    kvrun_session_options_init(&options);
    options.n_sequences = n;
    EXPECT_EQ(kvrun_session_create(engine_, &options, &session), KVRUN_INVALID_ARGUMENT);
  }
  kvrun_session_options_init(&options);
  const int bad_type = 7;
  std::memcpy(&options.kv_type, &bad_type, sizeof(options.kv_type));
  EXPECT_EQ(kvrun_session_create(engine_, &options, &session), KVRUN_INVALID_ARGUMENT);
  kvrun_session_options_init(&options);
  options.n_ctx = 200000;
  EXPECT_EQ(kvrun_session_create(engine_, &options, &session), KVRUN_OUT_OF_MEMORY);
  options.n_ctx = 0xFFFFFFFFU;
  EXPECT_EQ(kvrun_session_create(engine_, &options, &session), KVRUN_INVALID_ARGUMENT);
  EXPECT_EQ(session, nullptr);
}

TEST_F(CapiTest, NullArgumentsAreNamed) {
  const auto expect_null = [](kvrun_status status, const char* name) {
    EXPECT_EQ(status, KVRUN_INVALID_ARGUMENT);
    EXPECT_NE(LastError().find(std::string("'") + name + "'"), std::string::npos) << LastError();
  };
  char* text = nullptr;
  size_t count = 0;
  kvrun_session* session = MakeSession();
  const uint32_t sequence = 0;
  expect_null(kvrun_devices_json(nullptr), "json");
  expect_null(kvrun_doctor_json(nullptr, nullptr, nullptr, nullptr), "json");
  expect_null(kvrun_doctor_within_json(nullptr, 1, nullptr, nullptr, nullptr), "json");
  expect_null(kvrun_calibrate_time_json(nullptr, nullptr, nullptr, nullptr), "json");
  expect_null(kvrun_calibrate_time_json(nullptr, nullptr, nullptr, &text), "engine");
  kvrun_model* no_model = nullptr;
  kvrun_engine* no_engine = nullptr;
  kvrun_session* no_session = nullptr;
  expect_null(kvrun_model_open(nullptr, &no_model), "path");
  expect_null(kvrun_model_open("a", nullptr), "model");
  expect_null(kvrun_model_info_json(nullptr, 0, &text), "model");
  expect_null(kvrun_model_info_json(model_, 0, nullptr), "json");
  expect_null(kvrun_tokenize(nullptr, "", 0, 0, nullptr, &count), "model");
  expect_null(kvrun_tokenize(model_, nullptr, 1, 0, nullptr, &count), "text");
  expect_null(kvrun_tokenize(model_, "", 0, 0, nullptr, nullptr), "count");
  expect_null(kvrun_detokenize(model_, nullptr, 1, nullptr, &count), "ids");
  expect_null(kvrun_chat_format(model_, nullptr, 1, 0, &text), "messages");
  expect_null(kvrun_engine_create(nullptr, nullptr, &no_engine), "model");
  expect_null(kvrun_engine_info_json(nullptr, &text), "engine");
  expect_null(kvrun_session_create(nullptr, nullptr, &no_session), "engine");
  expect_null(kvrun_session_feed(nullptr, 0, nullptr, 0), "session");
  expect_null(kvrun_session_feed(session, 0, nullptr, 1), "ids");
  expect_null(kvrun_session_generate(session, nullptr, 1, nullptr, nullptr, nullptr, nullptr), "sequences");
  expect_null(kvrun_session_generate(nullptr, &sequence, 1, nullptr, nullptr, nullptr, nullptr), "session");
  expect_null(kvrun_session_truncate(nullptr, 0, 0), "session");
  expect_null(kvrun_session_stats_json(nullptr, &text), "session");
  kvrun_session_destroy(session);
  kvrun_model_close(nullptr);
  kvrun_engine_destroy(nullptr);
  kvrun_session_destroy(nullptr);
  kvrun_string_free(nullptr);
  kvrun_session_stats_reset(nullptr);
  kvrun_engine_options_init(nullptr);
  EXPECT_EQ(kvrun_model_vocab_size(nullptr), 0U);
  EXPECT_EQ(kvrun_session_length(nullptr, 0), 0U);
}

TEST_F(CapiTest, BadStopStringsAreRefused) {
  kvrun_session* session = MakeSession();
  const int32_t id = 5;
  ASSERT_EQ(kvrun_session_feed(session, 0, &id, 1), KVRUN_OK);
  const uint32_t sequence = 0;
  for (const char* stop : {static_cast<const char*>(nullptr), "", "\xC3"}) {
    kvrun_generate_options options;
    kvrun_generate_options_init(&options);
    options.stop = &stop;
    options.n_stop = 1;
    EXPECT_EQ(kvrun_session_generate(session, &sequence, 1, &options, nullptr, nullptr, nullptr),
              KVRUN_INVALID_ARGUMENT);
  }
  kvrun_session_destroy(session);
}

TEST_F(CapiTest, ErrorsBelongToTheirThread) {
  kvrun_model* model = nullptr;
  ASSERT_EQ(kvrun_model_open("/nowhere/here.gguf", &model), KVRUN_NOT_FOUND);
  std::thread([] {
    EXPECT_STREQ(kvrun_last_error(), "");
    kvrun_model* other = nullptr;
    EXPECT_EQ(kvrun_model_open("/nowhere/there.gguf", &other), KVRUN_NOT_FOUND);
    EXPECT_NE(LastError().find("there.gguf"), std::string::npos);
  }).join();
  EXPECT_NE(LastError().find("here.gguf"), std::string::npos);
}

TEST_F(CapiTest, SessionsOfOneEngineRunInThreadsOneStepAtATime) {
  constexpr int kThreads = 4;
  std::vector<std::vector<int32_t>> expected(kThreads);
  for (int i = 0; i < kThreads; ++i) {
    kvrun_session* session = MakeSession(1, 128);
    const std::vector<int32_t> ids(static_cast<size_t>(20 + i), i + 3);
    ASSERT_EQ(kvrun_session_feed(session, 0, ids.data(), ids.size()), KVRUN_OK);
    expected[static_cast<size_t>(i)] = GenerateIds(session, 60);
    kvrun_session_destroy(session);
  }
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([this, i, &expected] {
      for (int round = 0; round < 5; ++round) {
        kvrun_session* session = MakeSession(1, 128);
        const std::vector<int32_t> ids(static_cast<size_t>(20 + i), i + 3);
        EXPECT_EQ(kvrun_session_feed(session, 0, ids.data(), ids.size()), KVRUN_OK);
        EXPECT_EQ(GenerateIds(session, 60), expected[static_cast<size_t>(i)]);
        char* text = nullptr;
        EXPECT_EQ(kvrun_session_stats_json(session, &text), KVRUN_OK);
        kvrun_string_free(text);
        kvrun_session_destroy(session);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(log_.n_overlaps, 0);
}

TEST_F(CapiTest, NamesAndVersion) {
  EXPECT_EQ(std::string(kvrun_version()).rfind("0.1.0 (", 0), 0U);
  EXPECT_STREQ(kvrun_status_name(KVRUN_CORRUPT), "corrupt");
  EXPECT_STREQ(kvrun_status_name(KVRUN_CONTEXT_FULL), "context full");
}

TEST(Border, ExceptionsBecomeStatuses) {
  using capi::Guard;
  EXPECT_EQ(Guard([]() -> Status { throw std::bad_alloc(); }), KVRUN_OUT_OF_MEMORY);
  EXPECT_NE(LastError().find("out of memory"), std::string::npos);
  EXPECT_EQ(Guard([]() -> Status { throw std::runtime_error("odd"); }), KVRUN_INTERNAL_ERROR);
  EXPECT_NE(LastError().find("odd"), std::string::npos);
  EXPECT_EQ(Guard([]() -> Status { throw 7; }), KVRUN_INTERNAL_ERROR);
  EXPECT_EQ(Guard([]() -> Status { return Status::Ok(); }), KVRUN_OK);
  EXPECT_STREQ(kvrun_last_error(), "");
  EXPECT_EQ(Guard([]() -> Status { return {StatusCode::kCorrupt, "file \xFF"}; }), KVRUN_CORRUPT);
  EXPECT_EQ(LastError(), "file \xEF\xBF\xBD");
}

TEST_F(CapiTest, EachSequenceMayHaveOptionsOfItsOwn) {
  kvrun_session* session = MakeSession(3);
  const int32_t prompt[] = {5, 6, 7};
  for (uint32_t i = 0; i < 3; ++i) ASSERT_EQ(kvrun_session_feed(session, i, prompt, 3), KVRUN_OK);
  std::vector<int32_t> told;
  kvrun_generate_options options[2];
  for (auto& one : options) {
    kvrun_generate_options_init(&one);
    one.ignore_end = 1;
  }
  options[0].max_tokens = 2;
  options[1].max_tokens = 4;
  options[1].n_logprobs = 1;
  options[1].logprobs_user = &told;
  options[1].logprobs = [](void* user, uint32_t sequence, kvrun_token_logprob taken,
                           const kvrun_token_logprob*, size_t) {
    EXPECT_EQ(sequence, 0U);
    static_cast<std::vector<int32_t>*>(user)->push_back(taken.token);
  };
  const uint32_t sequences[] = {2, 0};
  const kvrun_generate_options* each[] = {&options[0], &options[1]};
  kvrun_generate_result results[2];
  ASSERT_EQ(kvrun_session_generate_each(session, sequences, 2, each, nullptr, nullptr, results), KVRUN_OK)
      << LastError();
  EXPECT_EQ(results[0].n_tokens, 2U);
  EXPECT_EQ(results[1].n_tokens, 4U);
  EXPECT_EQ(told.size(), 4U);
  EXPECT_EQ(kvrun_session_generate_each(session, sequences, 2, nullptr, nullptr, nullptr, results),
            KVRUN_INVALID_ARGUMENT);
  options[1].top_p = 2.0F;
  EXPECT_EQ(kvrun_session_generate_each(session, sequences, 2, each, nullptr, nullptr, results),
            KVRUN_INVALID_ARGUMENT);
  kvrun_session_destroy(session);
}

// An older caller's struct ends with what was padding: nothing new lies there.
static_assert(sizeof(void*) != 8 || offsetof(kvrun_generate_options, presence_penalty) >= 64);

TEST_F(CapiTest, LogprobsComeRightBeforeTheirToken) {
  kvrun_session* session = MakeSession();
  const int32_t prompt[] = {5, 6, 7};
  ASSERT_EQ(kvrun_session_feed(session, 0, prompt, 3), KVRUN_OK) << LastError();
  struct Told {
    std::vector<int32_t> taken;
    std::vector<int32_t> tokens;
  } told;
  kvrun_generate_options options;
  kvrun_generate_options_init(&options);
  options.max_tokens = 4;
  options.ignore_end = 1;
  options.n_logprobs = 3;
  const uint32_t sequence = 0;
  const auto generate = [&] {
    return kvrun_session_generate(
        session, &sequence, 1, &options,
        [](void* user, uint32_t, int32_t token, const char*, size_t) {
          auto* seen = static_cast<Told*>(user);
          if (token >= 0) seen->tokens.push_back(token);
          EXPECT_EQ(seen->taken, seen->tokens);
          return 0;
        },
        &told, nullptr);
  };
  EXPECT_EQ(generate(), KVRUN_INVALID_ARGUMENT) << "nobody to tell";
  EXPECT_NE(LastError().find("logprobs"), std::string::npos) << LastError();
  options.logprobs = [](void* user, uint32_t, kvrun_token_logprob taken, const kvrun_token_logprob* likeliest,
                        size_t n) {
    EXPECT_EQ(n, 3U);
    EXPECT_EQ(taken.token, likeliest[0].token) << "greedy";
    EXPECT_EQ(taken.logprob, likeliest[0].logprob);
    EXPECT_GE(likeliest[0].logprob, likeliest[1].logprob);
    EXPECT_LE(taken.logprob, 0.0F);
    static_cast<Told*>(user)->taken.push_back(taken.token);
  };
  options.logprobs_user = &told;
  EXPECT_EQ(generate(), KVRUN_OK) << LastError();
  EXPECT_EQ(told.taken.size(), 4U);
  options.n_logprobs = KVRUN_MAX_LOGPROBS + 1;
  EXPECT_EQ(generate(), KVRUN_INVALID_ARGUMENT);
  options.n_logprobs = 0;
  options.presence_penalty = 101.0F;
  EXPECT_EQ(generate(), KVRUN_INVALID_ARGUMENT);
  EXPECT_NE(LastError().find("presence_penalty"), std::string::npos) << LastError();
  kvrun_session_destroy(session);
}

}  // namespace
}  // namespace kvrun
