// Engines and sessions in the C API: feeding, generating, several in one engine, statistics. Device and
// forward pass are fakes.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include <nlohmann/json.hpp>

#include "tests/support/capi_fixture.h"

namespace kvrun {
namespace {

using testing::CapiTest;
using testing::FakeForwardPass;
using testing::LastError;
using testing::ParseAndFree;

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

// What is read of a key, before any file is made.
TEST_F(CapiTest, ASessionsKeyIsReadOrRefused) {
  const auto status = [&](const char* session, const char* path, kvrun_session_key_fn ask) {
    kvrun_session_options options;
    kvrun_session_options_init(&options);
    options.session = session;
    options.session_key_path = path;
    options.session_key = ask;
    kvrun_session* made = nullptr;
    const kvrun_status status = kvrun_session_create(engine_, &options, &made);
    kvrun_session_destroy(made);
    return status;
  };
  const auto refuses = [](void*, uint8_t*) { return 1; };
  EXPECT_EQ(status("./x.session", nullptr, refuses), KVRUN_INVALID_ARGUMENT);
  EXPECT_NE(LastError().find("session_key gives no key"), std::string::npos) << LastError();
  EXPECT_EQ(status("./x.session", "some.key", refuses), KVRUN_INVALID_ARGUMENT);
  EXPECT_NE(LastError().find("a session has one key"), std::string::npos) << LastError();
  EXPECT_EQ(status(nullptr, "some.key", nullptr), KVRUN_INVALID_ARGUMENT);
  EXPECT_NE(LastError().find("name it with --session"), std::string::npos) << LastError();
  EXPECT_EQ(status(nullptr, nullptr, refuses), KVRUN_INVALID_ARGUMENT);
  EXPECT_EQ(status("./x.session", "/nowhere/some.key", nullptr), KVRUN_NOT_FOUND) << LastError();
}

TEST_F(CapiTest, WhatIsReadOnlyHasAName) {
  kvrun_session_options options;
  kvrun_session_options_init(&options);
  options.session_read_only = 1;
  kvrun_session* made = nullptr;
  EXPECT_EQ(kvrun_session_create(engine_, &options, &made), KVRUN_INVALID_ARGUMENT);
  EXPECT_NE(LastError().find("name it with --session"), std::string::npos) << LastError();
  options.session = "/nowhere/x.session";
  EXPECT_EQ(kvrun_session_create(engine_, &options, &made), KVRUN_NOT_FOUND) << LastError();
}

// As a limit is given: only of bytes, and only a day.
TEST_F(CapiTest, ALimitOfWhatIsWrittenIsBytesADay) {
  for (const char* value : {"20GiB/day", "1/day", "1.5G/day", "1024G/day"})
    EXPECT_EQ(kvrun_kv_option_check("write-limit", value), KVRUN_OK) << value;
  for (const char* value : {"20GiB", "0/day", "/day", "-1/day", "nan/day", "1/week", "1025G/day", "1/13"}) {
    EXPECT_EQ(kvrun_kv_option_check("write-limit", value), KVRUN_INVALID_ARGUMENT) << value;
    EXPECT_NE(LastError().find("such as 20GiB/day"), std::string::npos) << LastError();
  }
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
