// A scheduler over real sessions, whatever the method: requests that run together are answered as alone, and
// what was read and said is not read again, also in another process.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "runtime/kv/plan/kv_method.h"
#include "runtime/schedule/request.h"
#include "runtime/schedule/scheduler.h"
#include "tests/support/gguf_builder.h"
#include "tests/support/kept_session_fixture.h"
#include "tests/support/method_exclusions.h"

namespace kvrun::testing::kept_session {
namespace {

namespace fs = std::filesystem;

struct Told {
  Ids ids;
  uint64_t n_read = 0;
  RequestOutcome outcome;
  bool has_ended = false;
};

class Listener final : public RequestEvents {
 public:
  explicit Listener(Told* told) : told_(told) {}
  void OnProgress(uint64_t done, uint64_t, uint64_t) override { told_->n_read = done; }
  bool OnToken(const GeneratedToken& token) override {
    if (token.id >= 0) told_->ids.push_back(token.id);
    return false;
  }
  void OnEnd(const RequestOutcome& outcome) override {
    told_->outcome = outcome;
    told_->has_ended = true;
  }

 private:
  Told* told_;
};

class SchedulerSessions : public KeptSessions, public ::testing::WithParamInterface<KvMethod> {
 protected:
  static constexpr uint32_t kAnswer = 12;

  std::string OptionsHere() const {
    return "--kv-method " + std::string(GetParam().name) +
           (GetParam().needs_file() ? " --kv-budget 1/3" : " --kv-type int8");
  }
  void SetUp() override {
    KeptSessions::SetUp();
    fs::create_directory(Folder());
  }
  std::string Folder() const { return folder_.Path("kept"); }

  // An engine with a scheduler on it, as a process has them.
  struct Server {
    std::unique_ptr<Engine> engine;
    std::unique_ptr<Scheduler> scheduler;
  };
  Server StartServer(uint64_t keep_bytes = uint64_t{1} << 30) const {
    Server server;
    server.engine = OrDie(Engine::Create(*model_, EngineHere()));
    SchedulerOptions options;
    options.n_parallel = 3;
    options.n_ctx = n_ctx_;
    options.least_ctx = n_ctx_;
    options.slice = std::chrono::milliseconds(0);
    options.kv = Options(OptionsHere(), "").kv;
    options.stored = {
        .folder = Folder(), .key = nullptr, .keep_bytes = keep_bytes, .model = OrDie(model_->Fingerprint())};
    server.scheduler = OrDie(
        Scheduler::Create(std::move(options), [engine = server.engine.get()](const SessionOptions& session) {
          return engine->CreateSession(session);
        }));
    return server;
  }

  static RequestId Add(const Server& server, const Ids& ids, Told* told, uint32_t n_answer = kAnswer) {
    Request request;
    request.ids = ids;
    request.generate.max_tokens = n_answer;
    request.generate.ignore_end = true;
    request.generate.sampler.temperature = 1.0F;
    request.generate.sampler.seed = 3;
    return OrDie(server.scheduler->Add(std::move(request), std::make_unique<Listener>(told)));
  }
  static void RunAll(const Server& server) {
    while (server.scheduler->StepOnce()) {
    }
  }
  // One request after another.
  static Told Ask(const Server& server, const Ids& ids) {
    Told told;
    Add(server, ids, &told);
    RunAll(server);
    EXPECT_TRUE(told.has_ended && told.outcome.status.ok()) << told.outcome.status.message();
    return told;
  }
  // Without a scheduler.
  Ids Alone(const Ids& ids) const {
    SessionOptions options = Options(OptionsHere(), "");
    options.n_ctx = n_ctx_;
    const Process process = Start(options);
    RunOrDie(process.session->Feed(0, ids));
    return Generate(*process.session, kAnswer);
  }
  // In a session that has read and answered another prompt before.
  Ids After(const Ids& before, const Ids& ids) const {
    const Process process = Start(OptionsHere(), "");
    RunOrDie(process.session->Feed(0, before));
    Generate(*process.session, kAnswer);
    const uint32_t common = std::min<uint32_t>(CommonLength(process.session->Tokens(0), ids),
                                               static_cast<uint32_t>(ids.size()) - 2);
    RunOrDie(process.session->Truncate(0, common));
    Status fed = process.session->Feed(0, std::span<const TokenId>(ids).subspan(common));
    if (fed.code() == StatusCode::kUnsupported) {  // what it has forgotten is read again
      RunOrDie(process.session->Truncate(0, 0));
      fed = process.session->Feed(0, ids);
    }
    RunOrDie(fed);
    return Generate(*process.session, kAnswer);
  }
  Ids Text(size_t n, uint64_t seed) const { return SomeIds(n, seed, kVocabulary); }
  static Ids Joined(Ids a, const Ids& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
  }
  void TakeLongModel() {
    TinyModelOptions shape;
    shape.n_layers = 4;
    shape.n_vocab = kVocabulary;
    shape.n_ctx_train = n_ctx_ = 2048;
    model_ = OrDie(OpenModel(WriteModel(folder_, "long.gguf", TinyModel(shape).Build())));
  }

  uint32_t n_ctx_ = kContext;

  size_t CountFiles() const {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(Folder())) {
      if (entry.path().extension() == ".session") names.insert(entry.path());
    }
    return names.size();
  }
};

// Of those whose answers read from flash.
class SchedulerReads : public SchedulerSessions {
 public:
  static std::vector<KvMethod> Methods() {
    std::vector<KvMethod> methods;
    for (const KvMethod& method : KvMethods()) {
      if (method.needs_file() && !method.evicts()) methods.push_back(method);
    }
    return methods;
  }
};

INSTANTIATE_TEST_SUITE_P(All, SchedulerReads, ::testing::ValuesIn(SchedulerReads::Methods()), MethodTestName);
INSTANTIATE_TEST_SUITE_P(All, SchedulerSessions, ::testing::ValuesIn(KvMethods().begin(), KvMethods().end()),
                         MethodTestName);

TEST_P(SchedulerSessions, RunTogetherAsAlone) {
  std::vector<Ids> prompts;
  for (uint64_t i = 0; i < 5; ++i) prompts.push_back(Text(20 + 60 * i, i + 1));
  const Server server = StartServer();
  std::vector<Told> told(prompts.size());
  for (size_t i = 0; i < prompts.size(); ++i) Add(server, prompts[i], &told[i]);
  RunAll(server);
  for (size_t i = 0; i < prompts.size(); ++i) {
    ASSERT_TRUE(told[i].has_ended && told[i].outcome.status.ok()) << told[i].outcome.status.message();
    EXPECT_EQ(told[i].ids, Alone(prompts[i])) << i;
  }
  EXPECT_EQ(CountFiles(), prompts.size() - 1) << "the first is too short to be worth it";
}

TEST_P(SchedulerSessions, AConversationIsNotReadAgain) {
  const Ids first = Text(150, 7);
  Ids after_first;
  {
    const Server server = StartServer();
    after_first = Joined(first, Ask(server, first).ids);
  }
  const Ids second = Joined(after_first, Text(30, 8));
  const Server server = StartServer();  // another process
  const Told told = Ask(server, second);
  if (!GetParam().evicts()) {
    EXPECT_GE(told.outcome.stats.cached_tokens, after_first.size() - 1);
  }
  EXPECT_LE(told.outcome.stats.prefill_tokens + told.outcome.stats.cached_tokens, second.size());
  EXPECT_EQ(CountFiles(), 1U);
  // As a session that was never closed.
  const Process process = Start(OptionsHere(), "");
  RunOrDie(process.session->Feed(0, first));
  Generate(*process.session, kAnswer);
  RunOrDie(process.session->Feed(0, Text(30, 8)));
  EXPECT_EQ(told.ids, Generate(*process.session, kAnswer));
}

TEST_P(SchedulerSessions, TwoThatBeginAlikeAtOnceAreBothRight) {
  const Ids text = Text(200, 9);
  const auto prompt = [&](size_t i) { return Joined(text, Text(10, i + 20)); };
  std::vector<Told> told(3);
  const Server server = StartServer();
  for (size_t i = 0; i < told.size(); ++i) Add(server, prompt(i), &told[i]);
  RunAll(server);
  for (size_t i = 0; i < told.size(); ++i) {
    ASSERT_TRUE(told[i].has_ended && told[i].outcome.status.ok()) << told[i].outcome.status.message();
    std::set<Ids> right = {Alone(prompt(i))};
    // The last may have begun after another was kept.
    if (told[i].outcome.stats.cached_tokens > 0)
      right = {After(prompt(0), prompt(i)), After(prompt(1), prompt(i))};
    EXPECT_TRUE(right.contains(told[i].ids)) << i;
  }
}

TEST_P(SchedulerSessions, WhatHasNoRoomGoes) {
  {
    const Server server = StartServer();
    for (uint64_t i = 0; i < 3; ++i) Ask(server, Text(120, 30 + i));
    EXPECT_EQ(CountFiles(), 3U);
  }
  const Server server = StartServer(/*keep_bytes=*/1);
  EXPECT_EQ(CountFiles(), 0U);
  EXPECT_EQ(Ask(server, Text(120, 31)).ids, Alone(Text(120, 31)));
}

// The prompt of a client that goes away, and comes again. Others are read and answered in between.
TEST_P(SchedulerSessions, WhatWasGivenUpGoesOn) {
  TakeLongModel();
  const Server server = StartServer();
  const Ids text = Text(1500, 50);
  Told first;
  const RequestId id = Add(server, text, &first);
  while (first.n_read < 1200) ASSERT_TRUE(server.scheduler->StepOnce());
  server.scheduler->Cancel(id);
  RunAll(server);
  ASSERT_TRUE(first.has_ended);
  EXPECT_EQ(first.outcome.status.code(), StatusCode::kCancelled);
  const Ids other = Text(600, 51);
  EXPECT_EQ(Ask(server, other).ids, Alone(other));
  const Told again = Ask(server, text);
  EXPECT_GE(again.outcome.stats.cached_tokens, 1000U);
  EXPECT_EQ(again.outcome.stats.cached_tokens + again.outcome.stats.prefill_tokens, text.size());
  EXPECT_EQ(again.ids, Alone(text));
}

// What one has on flash is damaged while both are answered in one step: the other does not notice.
TEST_P(SchedulerReads, AFailingReadIsOfOneAnswer) {
  TakeLongModel();
  constexpr uint32_t kLong = 1800;
  Told damaged;
  Told whole;
  const Server server = StartServer();
  Add(server, Text(150, 60), &damaged, kLong);
  while (damaged.ids.empty()) ASSERT_TRUE(server.scheduler->StepOnce());
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(Folder())) files.push_back(entry.path());
  ASSERT_FALSE(files.empty());
  Add(server, Text(70, 61), &whole);
  while (whole.ids.empty()) ASSERT_TRUE(server.scheduler->StepOnce());
  ASSERT_FALSE(damaged.has_ended);
  for (const fs::path& file : files) fs::resize_file(file, 0);
  RunAll(server);
  ASSERT_TRUE(damaged.has_ended && whole.has_ended);
  EXPECT_EQ(damaged.outcome.status.ok(), damaged.ids.size() == kLong) << damaged.outcome.status.message();
  if (GetParam().name == "flexgen") {
    EXPECT_FALSE(damaged.outcome.status.ok()) << "it reads all";
  }
  EXPECT_TRUE(whole.outcome.status.ok()) << whole.outcome.status.message();
  EXPECT_EQ(whole.ids, Alone(Text(70, 61)));
}

// Its files are damaged: it is read again, and kept again.
TEST_P(SchedulerSessions, WhatIsDamagedIsReadAgain) {
  const Ids text = Text(150, 40);
  Ask(StartServer(), text);
  const Server server = StartServer();
  for (const auto& entry : fs::directory_iterator(Folder())) {
    fs::resize_file(entry.path(), fs::file_size(entry.path()) / 2);
  }
  const Told told = Ask(server, Joined(text, Text(10, 41)));
  EXPECT_EQ(told.ids, Alone(Joined(text, Text(10, 41))));
  EXPECT_EQ(Ask(server, text).ids, After(Joined(text, Text(10, 41)), text));
}

}  // namespace
}  // namespace kvrun::testing::kept_session
