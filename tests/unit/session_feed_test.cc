// Feeding a session: what fits, progress and cancelling, errors of the device, logits of each position.
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "runtime/engine/session/session.h"
#include "tests/support/session_fixture.h"

namespace kvrun {
namespace {

using testing::FakeForwardPass;
using testing::FakePassOptions;
using testing::GreedyAfter;
using testing::Ids;
using testing::kVocab;
using testing::SomeIds;

class SessionFeedTest : public testing::SessionFixture {};

TEST_F(SessionFeedTest, FeedOfNothingComputesThePendingToken) {
  auto session = Make();
  ASSERT_TRUE(session->Feed(0, SomeIds(3)).ok());
  Generate(session.get(), {0}, Tokens(2));
  EXPECT_EQ(session->Length(0), 4U);
  ASSERT_TRUE(session->Feed(0, {}).ok());
  EXPECT_EQ(session->Length(0), 5U);
}

TEST_F(SessionFeedTest, AFeedThatDoesNotFitAppendsNothingAndSaysTheNumbers) {
  FakePassOptions options;
  options.n_ctx = 20;
  auto session = Make(options);
  ASSERT_TRUE(session->Feed(0, SomeIds(8)).ok());
  const Status status = session->Feed(0, SomeIds(13));
  EXPECT_EQ(status.code(), StatusCode::kContextFull);
  for (const char* number : {"13", "20", "8", "--ctx 21"}) {
    EXPECT_NE(status.message().find(number), std::string::npos) << status.message();
  }
  EXPECT_EQ(session->Length(0), 8U);
  EXPECT_EQ(Generate(session.get(), {0}, Tokens(2))[0].ids, GreedyAfter(SomeIds(8), 2));
  ASSERT_TRUE(session->Feed(0, SomeIds(10)).ok());  // with the pending token exactly full
  EXPECT_EQ(session->Length(0), 20U);
}

TEST_F(SessionFeedTest, IdsOutsideOfTheVocabularyAreRefused) {
  auto session = Make();
  for (const TokenId bad : {-1, 300}) {
    const Status status = session->Feed(0, Ids{1, bad});
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(std::to_string(bad)), std::string::npos);
  }
  EXPECT_EQ(session->Length(0), 0U);
}

TEST_F(SessionFeedTest, ProgressCountsTokensAndCanCancelBetweenChunks) {
  std::vector<uint64_t> seen;
  uint64_t cancel_at = 32;
  auto session = Make({}, {}, [&](uint64_t done, uint64_t total) {
    EXPECT_EQ(total, 40U);
    seen.push_back(done);
    return done == cancel_at;
  });
  const Ids prompt = SomeIds(40);
  EXPECT_EQ(session->Feed(0, prompt).code(), StatusCode::kCancelled);
  EXPECT_EQ(seen, (std::vector<uint64_t>{0, 16, 32}));
  EXPECT_EQ(session->Length(0), 32U);  // finished chunks stay
  const Ids kept(prompt.begin(), prompt.begin() + 32);
  EXPECT_EQ(Generate(session.get(), {0}, Tokens(3))[0].ids, GreedyAfter(kept, 3));

  cancel_at = 999;
  seen.clear();
  ASSERT_TRUE(session->Truncate(0, 0).ok());
  ASSERT_TRUE(session->Feed(0, prompt).ok());
  EXPECT_EQ(seen, (std::vector<uint64_t>{0, 16, 32, 40}));
}

TEST_F(SessionFeedTest, ARunThatReportsItsRowsIsCountedWithinTheFeed) {
  std::vector<uint64_t> seen;
  uint64_t total = 0;
  const FakePassOptions options{.max_rows = 24, .progress_rows = 8};  // a feed of 40 is two runs
  auto session = Make(options, {}, [&](uint64_t done, uint64_t of) {
    seen.push_back(done);
    total = of;
    return false;
  });
  ASSERT_TRUE(session->Feed(0, SomeIds(40)).ok());
  EXPECT_EQ(seen, (std::vector<uint64_t>{0, 8, 16, 24, 32, 40})) << "once each";
  EXPECT_EQ(total, 40U);
  seen.clear();
  Generate(session.get(), {0}, Tokens(5));
  EXPECT_TRUE(seen.empty()) << "a generation is no prompt";
  ASSERT_TRUE(session->Feed(0, SomeIds(10)).ok());  // and the pending token
  EXPECT_EQ(seen, (std::vector<uint64_t>{0, 8, 11})) << "counted from this feed's beginning";
  EXPECT_EQ(total, 11U);
}

TEST_F(SessionFeedTest, ACancelWithinARunKeepsTheRunsBeforeIt) {
  uint64_t cancel_at = 32;
  auto session = Make({.max_rows = 24, .progress_rows = 8}, {},
                      [&](uint64_t done, uint64_t) { return done == cancel_at; });
  const Ids prompt = SomeIds(40);
  EXPECT_EQ(session->Feed(0, prompt).code(), StatusCode::kCancelled);
  EXPECT_EQ(session->Length(0), 24U);
  cancel_at = 999;
  ASSERT_TRUE(session->Feed(0, Ids(prompt.begin() + 24, prompt.end())).ok());
  EXPECT_EQ(Generate(session.get(), {0}, Tokens(4))[0].ids, GreedyAfter(prompt, 4));
}

TEST_F(SessionFeedTest, TheDeviceIsFreeAndTheClockStandsWhileProgressIsAsked) {
  constexpr auto kPause = std::chrono::milliseconds(500);
  int n_locked = 0;
  int n_calls = 0;
  auto session = Make({.max_rows = 64, .progress_rows = 8}, {}, [&](uint64_t, uint64_t) {
    ++n_calls;
    std::thread([&] {  // another session's
      if (mutex_.try_lock()) {
        mutex_.unlock();
      } else {
        ++n_locked;
      }
    })
        .join();
    std::this_thread::sleep_for(kPause);
    return false;
  });
  ASSERT_TRUE(session->Feed(0, SomeIds(24)).ok());
  EXPECT_EQ(n_calls, 4);
  EXPECT_EQ(n_locked, 0);
  // The fake computes in microseconds; either of the two pauses within the run would show.
  EXPECT_LT(session->stats().prefill_ms, 500.0);
  EXPECT_GE(session->stats().prefill_ms, 0.0);
}

TEST_F(SessionFeedTest, ACancelBeforeTheFirstChunkKeepsThePendingToken) {
  bool cancel = false;
  auto session = Make({}, {}, [&](uint64_t, uint64_t) { return cancel; });
  const Ids prompt = SomeIds(3);
  ASSERT_TRUE(session->Feed(0, prompt).ok());
  const Ids first = Generate(session.get(), {0}, Tokens(2))[0].ids;
  cancel = true;
  EXPECT_EQ(session->Feed(0, SomeIds(20)).code(), StatusCode::kCancelled);
  EXPECT_EQ(session->Length(0), 4U);
  Ids all = prompt;
  all.insert(all.end(), first.begin(), first.end());
  EXPECT_EQ(Generate(session.get(), {0}, Tokens(2))[0].ids, GreedyAfter(all, 2));
}

TEST_F(SessionFeedTest, ADeviceErrorLeavesTheFinishedChunks) {
  auto session = Make();
  log_.fail_at_run = 1;
  const Ids prompt = SomeIds(40);
  EXPECT_EQ(session->Feed(0, prompt).code(), StatusCode::kDevice);
  EXPECT_EQ(session->Length(0), 16U);
  ASSERT_TRUE(session->Feed(0, std::span(prompt).subspan(16)).ok());
  EXPECT_EQ(Generate(session.get(), {0}, Tokens(3))[0].ids, GreedyAfter(prompt, 3));
}

TEST_F(SessionFeedTest, FeedLogitsHandsOutEachPositionInOrder) {
  FakePassOptions options;
  options.max_output_rows = 5;
  const Ids prompt = SomeIds(37);
  for (const size_t last : {size_t{0}, size_t{1}, size_t{6}, size_t{21}, size_t{37}, size_t{100}}) {
    auto session = Make(options);
    ASSERT_TRUE(session->Feed(0, Ids{9}).ok());
    Generate(session.get(), {0}, Tokens(1));  // one token is pending: not asked for
    Ids all = {9};
    all.push_back(GreedyAfter(all, 1)[0]);
    all.insert(all.end(), prompt.begin(), prompt.end());
    const size_t n_asked = last == 0 || last > prompt.size() ? prompt.size() : last;
    uint32_t next = static_cast<uint32_t>(all.size() - n_asked);
    const Status status =
        session->FeedLogits(0, prompt, last, [&](uint32_t position, uint32_t rows, const float* logits) {
          EXPECT_EQ(position, next);
          for (uint32_t i = 0; i < rows; ++i, ++next) {
            const std::vector<float> row(logits + size_t{i} * kVocab, logits + size_t{i + 1} * kVocab);
            EXPECT_EQ(row, FakeForwardPass::LogitsAfter(std::span(all).first(next + 1), kVocab)) << next;
          }
          return false;
        });
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(next, all.size()) << last;
    EXPECT_EQ(Generate(session.get(), {0}, Tokens(3))[0].ids, GreedyAfter(all, 3));
  }
}

TEST_F(SessionFeedTest, FeedLogitsCanBeCancelled) {
  FakePassOptions options;
  options.max_output_rows = 5;
  auto session = Make(options);
  const Ids prompt = SomeIds(37);
  int calls = 0;
  const Status status = session->FeedLogits(0, prompt, 0, [&](uint32_t, uint32_t, const float*) {
    return ++calls == 5;  // in the second chunk
  });
  EXPECT_EQ(status.code(), StatusCode::kCancelled);
  EXPECT_EQ(session->Length(0), 32U);
  const Ids kept(prompt.begin(), prompt.begin() + 32);
  EXPECT_EQ(Generate(session.get(), {0}, Tokens(2))[0].ids, GreedyAfter(kept, 2));
}

}  // namespace
}  // namespace kvrun
