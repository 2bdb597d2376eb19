// How far a session is opened and saved is told, and what is cancelled leaves what was saved last.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/engine/engine.h"
#include "tests/support/engine_fixture.h"
#include "tests/support/generated_ids.h"
#include "tests/support/or_die.h"
#include "tests/support/program_runner.h"
#include "tests/support/small_models.h"
#include "tests/support/tiny_model_file.h"

namespace kvrun::testing {
namespace {

namespace session_progress {

class SessionProgress : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (SharedDevice() == nullptr) GTEST_SKIP() << "no device";
    model_ = OrDie(OpenModel(WriteModel(folder_, "model.gguf", TalkingModel(2).Build())));
    EngineOptions options;
    options.device = DeviceOptionsHere();
    engine_ = OrDie(Engine::Create(*model_, options));
  }

  Result<std::unique_ptr<Session>> Start() {
    SessionOptions options;
    options.n_ctx = 1024;
    options.path = folder_.Path("one.session");
    options.kv.storage.folder = folder_.Path("kv");
    options.kv.storage.allow_tmpfs = true;
    options.load_progress = [this](uint64_t done, uint64_t total) { return Note(done, total, &loaded_); };
    options.save_progress = [this](uint64_t done, uint64_t total) { return Note(done, total, &saved_); };
    RunOrDie(ParseKvOptions(GetParam(), &options.kv));
    return engine_->CreateSession(options);
  }

  struct Told {
    std::vector<uint64_t> done;
    uint64_t total = 0;
  };
  bool Note(uint64_t done, uint64_t total, Told* told) {
    told->done.push_back(done);
    told->total = total;
    return told->done.size() == cancel_at_;
  }
  // It goes on, to the end, in no more than some steps.
  static void ExpectWhole(const Told& told) {
    ASSERT_FALSE(told.done.empty());
    EXPECT_GT(told.total, 0U);
    EXPECT_EQ(told.done.back(), told.total);
    for (size_t i = 1; i < told.done.size(); ++i) EXPECT_GT(told.done[i], told.done[i - 1]);
    EXPECT_LE(told.done.size(), 102U);
  }

  TemporaryFolder folder_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Engine> engine_;
  Told loaded_;
  Told saved_;
  size_t cancel_at_ = 0;
};

INSTANTIATE_TEST_SUITE_P(Methods, SessionProgress,
                         ::testing::Values("--kv-method full", "--kv-method kvswap --kv-budget 1/3"),
                         [](const auto& test) { return test.index == 0 ? "full" : "kvswap"; });

TEST_P(SessionProgress, IsToldToTheEnd) {
  const std::vector<TokenId> ids = SomeIds(600, 5, 300);
  {
    const std::unique_ptr<Session> session = OrDie(Start());
    EXPECT_TRUE(loaded_.done.empty()) << "there was nothing";
    RunOrDie(session->Feed(0, ids));
    saved_ = {};
    RunOrDie(session->SavePoint());
    ExpectWhole(saved_);
    EXPECT_GT(saved_.done.size(), 3U);
  }
  const std::unique_ptr<Session> session = OrDie(Start());
  ExpectWhole(loaded_);
  EXPECT_EQ(loaded_.total, saved_.total);
  EXPECT_EQ(session->Length(0), 600U);
}

TEST_P(SessionProgress, WhatIsCancelledLeavesWhatWasSavedLast) {
  const std::vector<TokenId> ids = SomeIds(600, 5, 300);
  {
    const std::unique_ptr<Session> session = OrDie(Start());
    RunOrDie(session->Feed(0, std::span(ids).first(300)));
    RunOrDie(session->SavePoint());
    RunOrDie(session->Feed(0, std::span(ids).subspan(300)));
    saved_ = {};
    cancel_at_ = 2;
    EXPECT_EQ(session->SavePoint().code(), StatusCode::kCancelled);
    EXPECT_EQ(session->Length(0), 600U);
  }
  EXPECT_EQ(Start().status().code(), StatusCode::kCancelled);
  cancel_at_ = 0;
  loaded_ = {};
  const std::unique_ptr<Session> session = OrDie(Start());
  EXPECT_EQ(session->Length(0), 300U);
  RunOrDie(session->Feed(0, std::span(ids).subspan(300)));
  RunOrDie(session->SavePoint());
}

}  // namespace session_progress

}  // namespace
}  // namespace kvrun::testing
