// The C API on a real device, with a self-made model.
// Not grouped (cmake/KvrunCompile.cmake): its names are others', too.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include <nlohmann/json.hpp>

#include "runtime/include/kvrun/kvrun.h"
#include "tests/support/engine_fixture.h"
#include "tests/support/tiny_model_file.h"

namespace kvrun::testing {
namespace {

using Ids = std::vector<int32_t>;

// Cancels at the `cancel_at`th token; -1: never.
struct Answer {
  Ids ids;
  std::string text;
  int cancel_at = -1;

  static int Callback(void* user, uint32_t, int32_t token, const char* text, size_t text_bytes) {
    auto* answer = static_cast<Answer*>(user);
    if (token >= 0) answer->ids.push_back(token);
    answer->text.append(text, text_bytes);
    return static_cast<int>(answer->ids.size()) == answer->cancel_at ? 1 : 0;
  }
};

int KeepLogits(void* user, uint32_t, uint32_t rows, const float* logits) {
  auto* kept = static_cast<std::vector<float>*>(user);
  kept->insert(kept->end(), logits, logits + size_t{rows} * 300);
  return 0;
}

Ids SomeIds(size_t n, int seed) {
  Ids ids;
  for (size_t i = 0; i < n; ++i)
    ids.push_back(static_cast<int32_t>(3 + (i * 37 + static_cast<size_t>(seed) * 11) % 290));
  return ids;
}

class Api : public ::testing::Test {
 protected:
  void SetUp() override {
    if (SharedDevice() == nullptr) GTEST_SKIP() << "no device";
    path_ = WriteModel(folder_, "tiny.gguf", TalkingModel().Build());
    ASSERT_EQ(kvrun_model_open(path_.c_str(), &model_), KVRUN_OK) << kvrun_last_error();
    kvrun_engine_options options = EngineOptionsHere();
    ASSERT_EQ(kvrun_engine_create(model_, &options, &engine_), KVRUN_OK) << kvrun_last_error();
  }

  void TearDown() override {
    for (kvrun_session* session : sessions_) kvrun_session_destroy(session);
    kvrun_engine_destroy(engine_);
    kvrun_model_close(model_);
  }

  kvrun_session* MakeSession(uint32_t n_sequences = 1, uint32_t n_ctx = 128) {
    kvrun_session_options options;
    kvrun_session_options_init(&options);
    options.n_sequences = n_sequences;
    options.n_ctx = n_ctx;
    options.kv_type = KVRUN_KV_F32;
    kvrun_session* session = nullptr;
    EXPECT_EQ(kvrun_session_create(engine_, &options, &session), KVRUN_OK) << kvrun_last_error();
    sessions_.push_back(session);
    return session;
  }

  static void Feed(kvrun_session* session, const Ids& ids, uint32_t sequence = 0) {
    EXPECT_EQ(kvrun_session_feed(session, sequence, ids.data(), ids.size()), KVRUN_OK) << kvrun_last_error();
  }

  static std::vector<float> FeedLogits(kvrun_session* session, const Ids& ids, size_t last) {
    std::vector<float> logits;
    EXPECT_EQ(kvrun_session_feed_logits(session, 0, ids.data(), ids.size(), last, KeepLogits, &logits),
              KVRUN_OK)
        << kvrun_last_error();
    return logits;
  }

  static Answer Generate(kvrun_session* session, uint32_t max_tokens, uint32_t sequence = 0,
                         kvrun_finish expected = KVRUN_FINISH_LENGTH, int cancel_at = -1) {
    kvrun_generate_options options;
    kvrun_generate_options_init(&options);
    options.max_tokens = max_tokens;
    options.ignore_end = 1;
    Answer answer;
    answer.cancel_at = cancel_at;
    kvrun_generate_result result{};
    const kvrun_status status =
        kvrun_session_generate(session, &sequence, 1, &options, Answer::Callback, &answer, &result);
    EXPECT_EQ(status, KVRUN_OK) << kvrun_last_error();
    EXPECT_EQ(result.finish, expected);
    EXPECT_EQ(result.n_tokens, answer.ids.size());
    return answer;
  }

  TemporaryFolder folder_;
  std::string path_;
  kvrun_model* model_ = nullptr;
  kvrun_engine* engine_ = nullptr;
  std::vector<kvrun_session*> sessions_;
};

TEST_F(Api, GreedyGenerationFollowsTheLargestLogit) {
  const Ids prompt = SomeIds(9, 1);
  kvrun_session* session = MakeSession();
  Feed(session, prompt);
  const Ids generated = Generate(session, 12).ids;
  ASSERT_EQ(generated.size(), 12U);

  Ids all = prompt;
  all.insert(all.end(), generated.begin(), generated.end() - 1);
  const std::vector<float> logits = FeedLogits(MakeSession(), all, generated.size());
  ASSERT_EQ(logits.size(), generated.size() * 300);
  for (size_t i = 0; i < generated.size(); ++i) {
    const auto row = logits.begin() + static_cast<std::ptrdiff_t>(i * 300);
    EXPECT_NEAR(row[generated[i]], *std::max_element(row, row + 300), 1e-3F) << "token " << i;
  }
}

TEST_F(Api, TheTextIsThatOfTheTokens) {
  kvrun_session* session = MakeSession();
  Feed(session, SomeIds(5, 2));
  const Answer answer = Generate(session, 20);
  std::string text(4096, '\0');
  size_t bytes = text.size();
  ASSERT_EQ(kvrun_detokenize(model_, answer.ids.data(), answer.ids.size(), text.data(), &bytes), KVRUN_OK);
  text.resize(bytes);
  if (text.starts_with(' ') && !answer.text.starts_with(' ')) text.erase(0, 1);
  // Incomplete characters are held back or replaced while streaming; whole words are the same.
  EXPECT_EQ(answer.text.empty(), text.empty());
  EXPECT_EQ(answer.text.find("word") == std::string::npos, text.find("word") == std::string::npos);
}

TEST_F(Api, CancellingKeepsTheSessionUsable) {
  kvrun_session* whole = MakeSession();
  Feed(whole, SomeIds(6, 3));
  const Ids expected = Generate(whole, 10).ids;

  kvrun_session* session = MakeSession();
  Feed(session, SomeIds(6, 3));
  Ids ids = Generate(session, 10, 0, KVRUN_FINISH_CANCELLED, 4).ids;
  EXPECT_EQ(ids.size(), 4U);
  const Ids rest = Generate(session, 6).ids;
  ids.insert(ids.end(), rest.begin(), rest.end());
  EXPECT_EQ(ids, expected);
}

TEST_F(Api, TruncatingForgets) {
  const Ids prompt = SomeIds(20, 4);
  kvrun_session* session = MakeSession();
  Feed(session, prompt);
  const Ids expected = Generate(session, 5).ids;
  Feed(session, SomeIds(30, 5));
  ASSERT_EQ(kvrun_session_truncate(session, 0, 13), KVRUN_OK);
  EXPECT_EQ(kvrun_session_length(session, 0), 13U);
  Feed(session, Ids(prompt.begin() + 13, prompt.end()));
  EXPECT_EQ(Generate(session, 5).ids, expected);
}

TEST_F(Api, FeedLogitsDoesNotDependOnHowMuchIsAskedFor) {
  const Ids ids = SomeIds(300, 6);  // more than one chunk
  const std::vector<float> all = FeedLogits(MakeSession(1, 300), ids, 0);
  const std::vector<float> last = FeedLogits(MakeSession(1, 300), ids, 60);
  ASSERT_EQ(all.size(), 300U * 300);
  ASSERT_EQ(last.size(), 60U * 300);
  const LogitsDifference difference = CompareLogits(std::span<const float>(all).last(last.size()), last, 300);
  EXPECT_LE(difference.max_absolute, 1e-3);
}

TEST_F(Api, AFullContextIsAnEnd) {
  kvrun_session* session = MakeSession(1, 16);
  Feed(session, SomeIds(10, 7));
  const Ids too_many = SomeIds(7, 8);
  EXPECT_EQ(kvrun_session_feed(session, 0, too_many.data(), too_many.size()), KVRUN_CONTEXT_FULL);
  EXPECT_EQ(kvrun_session_length(session, 0), 10U);
  const Answer answer = Generate(session, 0, 0, KVRUN_FINISH_CONTEXT_FULL);
  EXPECT_GE(answer.ids.size(), 6U);
}

TEST_F(Api, SequencesTogetherGenerateWhatEachDoesAlone) {
  constexpr uint32_t kSequences = 5;
  std::vector<Ids> expected;
  for (uint32_t s = 0; s < kSequences; ++s) {
    kvrun_session* alone = MakeSession();
    Feed(alone, SomeIds(4 + 9 * s, static_cast<int>(s)));
    expected.push_back(Generate(alone, 8).ids);
  }
  kvrun_session* together = MakeSession(kSequences);
  std::vector<uint32_t> sequences(kSequences);
  std::iota(sequences.begin(), sequences.end(), 0U);
  for (const uint32_t s : sequences) Feed(together, SomeIds(4 + 9 * s, static_cast<int>(s)), s);
  kvrun_generate_options options;
  kvrun_generate_options_init(&options);
  options.max_tokens = 8;
  options.ignore_end = 1;
  std::vector<Ids> ids(kSequences);
  const auto keep = [](void* user, uint32_t sequence, int32_t token, const char*, size_t) {
    if (token >= 0) (*static_cast<std::vector<Ids>*>(user))[sequence].push_back(token);
    return 0;
  };
  ASSERT_EQ(kvrun_session_generate(together, sequences.data(), kSequences, &options, keep, &ids, nullptr),
            KVRUN_OK)
      << kvrun_last_error();
  EXPECT_EQ(ids, expected);
}

TEST_F(Api, TwoSessionsInTwoThreads) {
  std::vector<Ids> expected;
  std::vector<kvrun_session*> sessions;
  for (int i = 0; i < 2; ++i) {
    kvrun_session* alone = MakeSession();
    Feed(alone, SomeIds(12, i));
    expected.push_back(Generate(alone, 15).ids);
    sessions.push_back(MakeSession());
  }
  std::vector<Ids> ids(2);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < 2; ++i) {
    threads.emplace_back([&, i] {
      Feed(sessions[i], SomeIds(12, static_cast<int>(i)));
      ids[i] = Generate(sessions[i], 15).ids;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(ids, expected);
}

TEST_F(Api, LoadingCanBeCancelled) {
  kvrun_engine_options options = EngineOptionsHere();
  int calls = 0;
  options.progress = [](void* user, kvrun_phase phase, uint64_t done, uint64_t total) {
    EXPECT_EQ(phase, KVRUN_PHASE_LOAD);
    EXPECT_LE(done, total);
    return ++*static_cast<int*>(user) == 3 ? 1 : 0;
  };
  options.progress_user = &calls;
  kvrun_engine* engine = nullptr;
  EXPECT_EQ(kvrun_engine_create(model_, &options, &engine), KVRUN_CANCELLED);
  EXPECT_EQ(engine, nullptr);
  EXPECT_EQ(calls, 3);
}

TEST_F(Api, ADeviceThatIsNotThereIsNamed) {
  kvrun_engine_options options = EngineOptionsHere();
  options.device = "no such device";
  kvrun_engine* engine = nullptr;
  EXPECT_EQ(kvrun_engine_create(model_, &options, &engine), KVRUN_NOT_FOUND);
  EXPECT_NE(std::string(kvrun_last_error()).find("no such device"), std::string::npos) << kvrun_last_error();
}

TEST_F(Api, AContextThatDoesNotFitIsRefused) {
  kvrun_session_options options;
  kvrun_session_options_init(&options);
  options.n_sequences = 16;
  options.n_ctx = 4000000000U;
  kvrun_session* session = nullptr;
  EXPECT_NE(kvrun_session_create(engine_, &options, &session), KVRUN_OK);
  EXPECT_EQ(session, nullptr);
  EXPECT_NE(std::string(kvrun_last_error()), "");
}

TEST_F(Api, ProfilingNamesTheOperations) {
  kvrun_engine_options options = EngineOptionsHere();
  options.profile = 1;
  kvrun_engine* engine = nullptr;
  ASSERT_EQ(kvrun_engine_create(model_, &options, &engine), KVRUN_OK) << kvrun_last_error();
  kvrun_session_options session_options;
  kvrun_session_options_init(&session_options);
  kvrun_session* session = nullptr;
  ASSERT_EQ(kvrun_session_create(engine, &session_options, &session), KVRUN_OK) << kvrun_last_error();
  Feed(session, SomeIds(5, 1));
  char* text = nullptr;
  EXPECT_EQ(kvrun_session_stats_json(session, &text), KVRUN_OK);
  const auto stats = nlohmann::json::parse(text == nullptr ? "{}" : text);
  kvrun_string_free(text);
  EXPECT_FALSE(stats.value("operations", nlohmann::json::array()).empty());
  kvrun_session_destroy(session);
  kvrun_engine_destroy(engine);
}

}  // namespace
}  // namespace kvrun::testing
