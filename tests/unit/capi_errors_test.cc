// What the C API refuses, and how it says so; structs of older and newer callers; the names of statuses.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>

#include "runtime/capi/border.h"
#include "tests/support/capi_fixture.h"

namespace kvrun {
namespace {

using testing::CapiTest;
using testing::LastError;

// An older caller's struct ends with what was padding: nothing new lies there.
static_assert(sizeof(void*) != 8 || offsetof(kvrun_generate_options, presence_penalty) >= 64);

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

}  // namespace
}  // namespace kvrun
