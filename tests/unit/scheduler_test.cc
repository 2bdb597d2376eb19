// Requests that share an engine: each is answered as if it were alone, whatever else goes on.
#include "runtime/schedule/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/program_runner.h"
#include "tests/support/session_fixture.h"

namespace kvrun {
namespace {

using testing::FakeForwardPass;
using testing::FakePassLog;
using testing::FakePassOptions;
using testing::FakeTokenizer;
using testing::GreedyAfter;
using testing::Ids;
using testing::SomeIds;

// What was told of a request.
struct Told {
  Ids ids;
  std::vector<uint64_t> progress;
  std::vector<RequestOutcome> ends;
  bool token_before_progress_end = false;
  size_t cancel_after_tokens = 0;
};

class Listener final : public RequestEvents {
 public:
  explicit Listener(Told* told) : told_(told) {}
  void OnProgress(uint64_t done, uint64_t /*total*/, uint64_t /*cached*/) override {
    EXPECT_TRUE(told_->ids.empty() && told_->ends.empty());
    told_->progress.push_back(done);
  }
  bool OnToken(const GeneratedToken& token) override {
    EXPECT_TRUE(told_->ends.empty());
    if (token.id >= 0) told_->ids.push_back(token.id);
    return told_->cancel_after_tokens > 0 && told_->ids.size() >= told_->cancel_after_tokens;
  }
  void OnEnd(const RequestOutcome& outcome) override { told_->ends.push_back(outcome); }

 private:
  Told* told_;
};

class SchedulerTest : public ::testing::Test {
 protected:
  std::unique_ptr<Scheduler> Make(SchedulerOptions options = {}) {
    options.n_ctx = options.n_ctx == 0 ? 4096 : options.n_ctx;
    options.slice = std::chrono::milliseconds(0);  // a prompt rests wherever it can
    auto scheduler = Scheduler::Create(std::move(options), [this](const SessionOptions& session) {
      FakePassOptions pass = pass_;
      pass.n_ctx = session.n_ctx;
      contexts_.push_back(session.n_ctx);
      pass.log = &log_;
      if (fails_to_open_) return Result<std::unique_ptr<Session>>(Status(StatusCode::kDevice, "no device"));
      Session::Parts parts;
      parts.n_ctx = session.n_ctx;
      parts.forward_pass = std::make_unique<FakeForwardPass>(pass);
      parts.device_mutex = &mutex_;
      parts.progress = session.progress;
      return Session::Create(std::move(parts));
    });
    EXPECT_TRUE(scheduler.ok()) << scheduler.status().message();
    return std::move(scheduler).value();
  }

  static Request Ask(Ids ids, uint32_t n) {
    Request request;
    request.ids = std::move(ids);
    request.generate.max_tokens = n;
    return request;
  }
  RequestId Add(Scheduler* scheduler, const std::string& name, Request request) {
    const Result<RequestId> id = scheduler->Add(std::move(request), std::make_unique<Listener>(&told_[name]));
    EXPECT_TRUE(id.ok()) << id.status().message();
    return id.ok() ? *id : 0;
  }
  static void RunAll(Scheduler* scheduler) {
    while (scheduler->StepOnce()) {
    }
  }
  void ExpectAnswered(const std::string& name, const Ids& ids, uint32_t n) {
    const Told& told = told_[name];
    EXPECT_EQ(told.ids, GreedyAfter(ids, n)) << name;
    ASSERT_EQ(told.ends.size(), 1U) << name;
    EXPECT_TRUE(told.ends[0].status.ok()) << told.ends[0].status.message();
    EXPECT_EQ(told.ends[0].result.finish, Finish::kLength);
    EXPECT_EQ(told.ends[0].result.n_tokens, n);
    EXPECT_EQ(told.ends[0].stats.prefill_tokens, ids.size());
  }

  // A prompt is read as a whole, and is cancelled when so many tokens are.
  void GiveUpAt(Scheduler* scheduler, const std::string& name, Request request, uint64_t n_tokens) {
    pass_.max_rows = 4096;
    pass_.progress_rows = 64;
    const size_t n_told = told_[name].progress.size();
    const RequestId id = Add(scheduler, name, std::move(request));
    const auto is_there = [&] {
      return told_[name].progress.size() > n_told && told_[name].progress.back() >= n_tokens;
    };
    while (!is_there()) ASSERT_TRUE(scheduler->StepOnce());
    scheduler->Cancel(id);
    RunAll(scheduler);
    ASSERT_FALSE(told_[name].ends.empty());
    EXPECT_EQ(told_[name].ends.back().status.code(), StatusCode::kCancelled);
  }
  // What was there at `n_tokens` is not read again, in the session that there was.
  void ExpectGoneOnWith(const std::string& name, const Ids& ids, uint32_t n, uint64_t n_tokens) {
    const Told& told = told_[name];
    EXPECT_EQ(told.ids, GreedyAfter(ids, n)) << name;
    ASSERT_EQ(told.ends.size(), 1U) << name;
    const SessionStats& stats = told.ends[0].stats;
    EXPECT_GE(told.progress.at(0), n_tokens) << name;
    EXPECT_GE(stats.cached_tokens, n_tokens) << name;
    EXPECT_EQ(stats.prefill_tokens + stats.cached_tokens, ids.size()) << name;
    EXPECT_EQ(told.progress.back(), ids.size()) << name;
  }

  std::mutex mutex_;
  FakePassOptions pass_;
  FakePassLog log_;
  bool fails_to_open_ = false;
  std::vector<uint32_t> contexts_;  // of the sessions that were made
  std::map<std::string, Told> told_;
};

TEST_F(SchedulerTest, AContextIsAsLongAsItsRequestNeedsButForTheLeast) {
  for (const auto& [least_ctx, expected] :
       {std::pair(1024U, std::vector<uint32_t>{1024, 1500}), std::pair(1U, std::vector<uint32_t>{30, 1500}),
        std::pair(9000U, std::vector<uint32_t>{2000, 2000})}) {
    contexts_.clear();
    told_.clear();
    SchedulerOptions options;
    options.n_ctx = 2000;
    options.least_ctx = least_ctx;
    const auto scheduler = Make(std::move(options));
    Add(scheduler.get(), "short", Ask(SomeIds(20, 1), 10));
    Add(scheduler.get(), "long", Ask(SomeIds(1490, 2), 10));
    RunAll(scheduler.get());
    EXPECT_EQ(contexts_, expected);
  }
}

TEST_F(SchedulerTest, EachIsAnsweredAsIfItWereAlone) {
  for (const uint32_t n_parallel : {1U, 3U, 16U}) {
    told_.clear();
    SchedulerOptions options;
    options.n_parallel = n_parallel;
    const auto scheduler = Make(std::move(options));
    for (int i = 0; i < 20; ++i) {
      Add(scheduler.get(), std::to_string(i), Ask(SomeIds(1 + i * 37 % 200, i), 1 + i * 7 % 23));
      if (i % 3 == 0) scheduler->StepOnce();
    }
    RunAll(scheduler.get());
    for (int i = 0; i < 20; ++i)
      ExpectAnswered(std::to_string(i), SomeIds(1 + i * 37 % 200, i), 1 + i * 7 % 23);
    EXPECT_EQ(scheduler->report().n_requests, 20U);
    EXPECT_TRUE(scheduler->report().requests.empty());
  }
  EXPECT_EQ(log_.n_overlaps, 0);
}

// A prompt of many chunks rests after each: the answer beside it goes on.
TEST_F(SchedulerTest, AnswersGoOnWhileAPromptIsRead) {
  const auto scheduler = Make();
  Add(scheduler.get(), "answer", Ask(SomeIds(3), 500));
  for (int i = 0; i < 5; ++i) scheduler->StepOnce();
  const size_t n_before = told_["answer"].ids.size();
  EXPECT_GT(n_before, 0U);
  Add(scheduler.get(), "long", Ask(SomeIds(1600, 2), 2));  // 100 chunks
  size_t n_meanwhile = 0;
  while (told_["long"].ids.empty()) {
    ASSERT_TRUE(scheduler->StepOnce());
    n_meanwhile = told_["answer"].ids.size() - n_before;
  }
  EXPECT_GE(n_meanwhile, 50U);
  EXPECT_GT(told_["long"].progress.size(), 50U);
  EXPECT_EQ(told_["long"].progress.back(), 1600U);
  RunAll(scheduler.get());
  ExpectAnswered("answer", SomeIds(3), 500);
  ExpectAnswered("long", SomeIds(1600, 2), 2);
}

TEST_F(SchedulerTest, WhatIsCancelledEndsWhereverItIs) {
  SchedulerOptions options;
  options.n_parallel = 2;
  const auto scheduler = Make(std::move(options));
  const RequestId answering = Add(scheduler.get(), "answering", Ask(SomeIds(3), 1000));
  const RequestId reading = Add(scheduler.get(), "reading", Ask(SomeIds(1600, 2), 3));
  const RequestId queued = Add(scheduler.get(), "queued", Ask(SomeIds(9, 4), 3));
  Add(scheduler.get(), "other", Ask(SomeIds(10, 5), 30));
  // How soon the long prompt's turn comes depends on how long the first one took.
  for (int i = 0; i < 10 || told_["reading"].progress.size() < 3; ++i) ASSERT_TRUE(scheduler->StepOnce());
  EXPECT_EQ(scheduler->report().requests.size(), 4U);
  for (const RequestId id : {queued, reading, answering, queued, RequestId{999}}) scheduler->Cancel(id);
  RunAll(scheduler.get());
  for (const char* name : {"answering", "reading", "queued"}) {
    ASSERT_EQ(told_[name].ends.size(), 1U) << name;
    EXPECT_EQ(told_[name].ends[0].status.code(), StatusCode::kCancelled) << name;
  }
  EXPECT_FALSE(told_["answering"].ids.empty());
  EXPECT_LT(told_["answering"].ids.size(), 1000U);
  EXPECT_LT(told_["reading"].progress.back(), 1600U);
  EXPECT_TRUE(told_["queued"].progress.empty());
  ExpectAnswered("other", SomeIds(10, 5), 30);
  EXPECT_EQ(scheduler->report().n_cancelled, 3U);
}

// A pass that computes a prompt as a whole would have nothing to keep of a part.
TEST_F(SchedulerTest, APromptThatWasGivenUpGoesOnForWhoAsksTheSame) {
  const auto scheduler = Make();
  const Ids ids = SomeIds(3000, 1);
  GiveUpAt(scheduler.get(), "first", Ask(ids, 5), 2000);
  ASSERT_EQ(told_["first"].ends.size(), 1U);
  EXPECT_TRUE(scheduler->report().requests.empty());
  Add(scheduler.get(), "answer", Ask(SomeIds(40, 2), 20));  // goes on beside it
  RunAll(scheduler.get());
  ExpectAnswered("answer", SomeIds(40, 2), 20);
  GiveUpAt(scheduler.get(), "second", Ask(ids, 5), 2500);
  Add(scheduler.get(), "third", Ask(ids, 5));
  RunAll(scheduler.get());
  ExpectGoneOnWith("third", ids, 5, 2500);
  EXPECT_EQ(contexts_.size(), 2U);
  const SchedulerReport report = scheduler->report();
  EXPECT_EQ(report.n_requests, 4U);
  EXPECT_EQ(report.n_cancelled, 2U);
  EXPECT_EQ(report.answer_tokens, 25U);
  EXPECT_EQ(report.prompt_tokens - report.cached_tokens, 3040U);
}

TEST_F(SchedulerTest, APromptThatWasGivenUpGoesOnForAnotherQuestion) {
  const auto scheduler = Make();
  Ids ids = SomeIds(3000, 1);
  GiveUpAt(scheduler.get(), "first", Ask(ids, 30), 2000);
  ids.resize(2900);
  for (const TokenId id : SomeIds(120, 7)) ids.push_back(id);
  Add(scheduler.get(), "other", Ask(ids, 5));
  RunAll(scheduler.get());
  ExpectGoneOnWith("other", ids, 5, 2000);
  EXPECT_EQ(contexts_.size(), 1U);
  GiveUpAt(scheduler.get(), "short", Ask(SomeIds(800, 3), 5), 400);  // less than is worth it
  Add(scheduler.get(), "again", Ask(SomeIds(800, 3), 5));
  RunAll(scheduler.get());
  ExpectAnswered("again", SomeIds(800, 3), 5);
}

// Others that begin alike and have no use for it neither wait for it nor take it from who has.
TEST_F(SchedulerTest, APromptThatWasGivenUpIsInNobodysWay) {
  const TemporaryFolder folder;
  SchedulerOptions options;
  options.stored.folder = folder.Path("");
  options.stored.keep_bytes = 1 << 30;
  const auto scheduler = Make(std::move(options));
  const Ids common = SomeIds(1500, 1);
  const auto with = [&common](size_t n, int seed) {
    Ids ids = common;
    for (const TokenId id : SomeIds(n, seed)) ids.push_back(id);
    return ids;
  };
  const Ids ids = with(1500, 2);
  GiveUpAt(scheduler.get(), "first", Ask(ids, 5), 2500);
  Add(scheduler.get(), "other", Ask(with(30, 3), 5));
  RunAll(scheduler.get());
  EXPECT_EQ(told_["other"].ids, GreedyAfter(with(30, 3), 5));
  Add(scheduler.get(), "again", Ask(ids, 5));
  Add(scheduler.get(), "longer", Ask(ids, 900));
  RunAll(scheduler.get());
  ExpectGoneOnWith("again", ids, 5, 2500);
  EXPECT_EQ(told_["longer"].ids, GreedyAfter(ids, 900));
}

// What is under way is the longer prompt, and goes on as such.
TEST_F(SchedulerTest, APromptThatWasGivenUpGoesOnForAShorterOne) {
  const auto scheduler = Make();
  const Ids ids = SomeIds(3500, 1);
  const Ids shorter(ids.begin(), ids.begin() + 2500);
  GiveUpAt(scheduler.get(), "first", Ask(ids, 5), 2000);
  GiveUpAt(scheduler.get(), "shorter", Ask(shorter, 5), 2400);
  Add(scheduler.get(), "shorter again", Ask(shorter, 5));
  RunAll(scheduler.get());
  const Told& told = told_["shorter again"];
  EXPECT_EQ(told.ids, GreedyAfter(shorter, 5));
  EXPECT_EQ(std::count(told.progress.begin(), told.progress.end(), shorter.size()), 1) << "told too soon";
  EXPECT_EQ(contexts_.size(), 1U);
}

TEST_F(SchedulerTest, APromptThatWasGivenUpMakesRoom) {
  const Ids ids = SomeIds(2000, 1);
  for (const uint32_t n_parallel : {1U, 2U}) {
    contexts_.clear();
    told_.clear();
    SchedulerOptions options;
    options.n_parallel = n_parallel;
    const auto scheduler = Make(std::move(options));
    GiveUpAt(scheduler.get(), "first", Ask(ids, 5), 1500);
    Add(scheduler.get(), "longer", Ask(ids, 1500));  // the context has no room for it
    RunAll(scheduler.get());
    ExpectAnswered("longer", ids, 1500);
    GiveUpAt(scheduler.get(), "second", Ask(SomeIds(2000, 2), 5), 1500);
    GiveUpAt(scheduler.get(), "third", Ask(SomeIds(2000, 3), 5), 1500);
    contexts_.clear();
    for (const int nth : {3, 2}) Add(scheduler.get(), std::to_string(nth), Ask(SomeIds(2000, nth), 5));
    RunAll(scheduler.get());
    EXPECT_EQ(contexts_.size(), n_parallel == 1 ? 1 : 0);
    for (const int nth : {2, 3})
      EXPECT_EQ(told_[std::to_string(nth)].ids, GreedyAfter(SomeIds(2000, nth), 5));
    GiveUpAt(scheduler.get(), "at the end", Ask(ids, 5), 1500);
  }
}

TEST_F(SchedulerTest, AListenerMayCancel) {
  const auto scheduler = Make();
  told_["one"].cancel_after_tokens = 4;
  Add(scheduler.get(), "one", Ask(SomeIds(3), 1000));
  RunAll(scheduler.get());
  EXPECT_EQ(told_["one"].ids, GreedyAfter(SomeIds(3), 4));
  EXPECT_EQ(told_["one"].ends.at(0).result.finish, Finish::kCancelled);
}

TEST_F(SchedulerTest, RefusesWhatItHasNoRoomFor) {
  SchedulerOptions options;
  options.most_queued = 2;
  options.n_ctx = 100;
  const auto scheduler = Make(std::move(options));
  auto add = [&, n_asked = 0](Ids ids, uint32_t n) mutable {
    auto listener = std::make_unique<Listener>(&told_[std::to_string(++n_asked)]);
    return scheduler->Add(Ask(std::move(ids), n), std::move(listener)).status().code();
  };
  EXPECT_EQ(add({}, 1), StatusCode::kInvalidArgument);
  EXPECT_EQ(add(SomeIds(90), 11), StatusCode::kContextFull);
  EXPECT_EQ(add(SomeIds(90), 10), StatusCode::kOk);
  EXPECT_EQ(add(SomeIds(9), 10), StatusCode::kOk);
  EXPECT_EQ(add(SomeIds(9), 10), StatusCode::kOutOfMemory);
  RunAll(scheduler.get());
  EXPECT_EQ(add(SomeIds(9), 10), StatusCode::kOk);
}

TEST_F(SchedulerTest, AFailureIsOfOneRequest) {
  const auto scheduler = Make();
  Add(scheduler.get(), "good", Ask(SomeIds(3), 50));
  for (int i = 0; i < 5; ++i) scheduler->StepOnce();
  fails_to_open_ = true;
  Add(scheduler.get(), "bad", Ask(SomeIds(5), 5));
  RunAll(scheduler.get());
  ASSERT_EQ(told_["bad"].ends.size(), 1U);
  EXPECT_EQ(told_["bad"].ends[0].status.code(), StatusCode::kDevice);
  ExpectAnswered("good", SomeIds(3), 50);
  EXPECT_EQ(scheduler->report().n_failed, 1U);
}

TEST_F(SchedulerTest, EndsWhatIsUnderWayWhenItGoes) {
  {
    const auto scheduler = Make();
    Add(scheduler.get(), "answering", Ask(SomeIds(3), 1000));
    Add(scheduler.get(), "reading", Ask(SomeIds(1600, 2), 3));
    Add(scheduler.get(), "queued", Ask(SomeIds(9, 4), 3));
    for (int i = 0; i < 6; ++i) scheduler->StepOnce();
  }
  for (const char* name : {"answering", "reading", "queued"}) {
    ASSERT_EQ(told_[name].ends.size(), 1U) << name;
    EXPECT_EQ(told_[name].ends[0].status.code(), StatusCode::kCancelled) << name;
  }
}

TEST_F(SchedulerTest, TakesRequestsFromAnyThread) {
  const auto scheduler = Make();
  std::vector<Told> told(40);
  std::vector<std::thread> clients;
  for (size_t t = 0; t < 4; ++t) {
    clients.emplace_back([&, t] {
      for (size_t i = t; i < told.size(); i += 4) {
        const auto id = scheduler->Add(Ask(SomeIds(5 + i, static_cast<int>(i)), 12),
                                       std::make_unique<Listener>(&told[i]));
        EXPECT_TRUE(id.ok());
        if (i % 5 == 0 && id.ok()) scheduler->Cancel(*id);
        (void)scheduler->report();
      }
    });
  }
  const auto all_ended = [&] { return scheduler->report().n_requests == told.size(); };
  while (!all_ended()) {
    if (!scheduler->StepOnce()) scheduler->Wait(std::chrono::milliseconds(1));
  }
  for (std::thread& client : clients) client.join();
  for (size_t i = 0; i < told.size(); ++i) {
    ASSERT_EQ(told[i].ends.size(), 1U);
    const bool was_cancelled = told[i].ends[0].status.code() == StatusCode::kCancelled;
    EXPECT_TRUE(!was_cancelled || i % 5 == 0);
    if (!was_cancelled) {
      EXPECT_EQ(told[i].ids, GreedyAfter(SomeIds(5 + i, static_cast<int>(i)), 12));
    }
  }
}

}  // namespace
}  // namespace kvrun
