// A session as a whole: feeding and generating in turns, truncation, wrong calls, statistics.
#include "runtime/engine/session/session.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/session_fixture.h"

namespace kvrun {
namespace {

using testing::FakePassOptions;
using testing::GreedyAfter;
using testing::Ids;
using testing::SomeIds;

class SessionTest : public testing::SessionFixture {};

TEST_F(SessionTest, GeneratesWhatTheLogitsOfEachPrefixSay) {
  for (const size_t n_prompt : {1U, 15U, 16U, 17U, 33U}) {  // around the chunk of 16
    auto session = Make();
    const Ids prompt = SomeIds(n_prompt);
    ASSERT_TRUE(session->Feed(0, prompt).ok());
    EXPECT_EQ(session->Length(0), n_prompt);
    EXPECT_EQ(Generate(session.get(), {0}, Tokens(9))[0].ids, GreedyAfter(prompt, 9)) << n_prompt;
    EXPECT_EQ(session->Length(0), n_prompt + 8);  // the last is not computed yet
  }
}

TEST_F(SessionTest, SplittingFeedsAndGenerationsChangesNothing) {
  auto session = Make();
  Ids all = SomeIds(5);
  ASSERT_TRUE(session->Feed(0, all).ok());
  for (const uint32_t n : {1U, 3U, 2U}) {
    const Ids expected = GreedyAfter(all, n);
    EXPECT_EQ(Generate(session.get(), {0}, Tokens(n))[0].ids, expected);
    all.insert(all.end(), expected.begin(), expected.end());
  }
  const Ids more = SomeIds(20, 3);  // the pending token goes first
  ASSERT_TRUE(session->Feed(0, more).ok());
  all.insert(all.end(), more.begin(), more.end());
  EXPECT_EQ(session->Length(0), all.size());
  EXPECT_EQ(Generate(session.get(), {0}, Tokens(4))[0].ids, GreedyAfter(all, 4));
}

TEST_F(SessionTest, TruncateForgetsAndGenerationGoesOnFromThere) {
  auto session = Make();
  const Ids prompt = SomeIds(20);
  ASSERT_TRUE(session->Feed(0, prompt).ok());
  Generate(session.get(), {0}, Tokens(5));
  const Ids kept(prompt.begin(), prompt.begin() + 11);
  ASSERT_TRUE(session->Truncate(0, 11).ok());
  EXPECT_EQ(session->Length(0), 11U);
  EXPECT_EQ(Generate(session.get(), {0}, Tokens(4))[0].ids, GreedyAfter(kept, 4));

  const uint32_t length = session->Length(0);
  ASSERT_TRUE(session->Truncate(0, length).ok());  // drops the pending token alone
  ASSERT_TRUE(session->Feed(0, {}).ok());
  EXPECT_EQ(session->Length(0), length);
  const Status status = session->Truncate(0, length + 1);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  ASSERT_TRUE(session->Truncate(0, 0).ok());
  ASSERT_TRUE(session->Feed(0, kept).ok());
  EXPECT_EQ(Generate(session.get(), {0}, Tokens(4))[0].ids, GreedyAfter(kept, 4));
}

TEST_F(SessionTest, WrongCallsAreNamed) {
  FakePassOptions pass;
  pass.n_sequences = 2;
  auto session = Make(pass);
  ASSERT_TRUE(session->Feed(0, Ids{1}).ok());
  const auto generate = [&](std::vector<uint32_t> sequences, GenerateOptions options = Tokens(1)) {
    return session->Generate(sequences, options, {}, {});
  };
  EXPECT_NE(generate({1}).message().find("sequence 1 is empty"), std::string::npos);
  EXPECT_NE(generate({0, 0}).message().find("twice"), std::string::npos);
  EXPECT_NE(generate({2}).message().find("no sequence 2"), std::string::npos);
  EXPECT_EQ(generate({}).code(), StatusCode::kInvalidArgument);
  GenerateOptions options;
  options.stops = {""};
  EXPECT_EQ(generate({0}, options).code(), StatusCode::kInvalidArgument);
  options.stops = {"\xFF"};
  EXPECT_EQ(generate({0}, options).code(), StatusCode::kInvalidArgument);
  options.stops = {};
  options.sampler.top_p = 2.0F;
  EXPECT_EQ(generate({0}, options).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(session->Feed(7, Ids{1}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(session->Truncate(7, 0).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(session->Length(7), 0U);
}

TEST_F(SessionTest, StatisticsRunFromTheReset) {
  auto session = Make();
  ASSERT_TRUE(session->Feed(0, SomeIds(20)).ok());
  Generate(session.get(), {0}, Tokens(3));
  EXPECT_EQ(session->stats().prefill_tokens, 20U);
  EXPECT_EQ(session->stats().decode_tokens, 2U);
  EXPECT_GT(session->stats().prefill_ms, 0.0);
  EXPECT_GT(session->stats().decode_ms, 0.0);
  session->ResetStats();
  EXPECT_EQ(session->stats().prefill_tokens, 0U);
  EXPECT_EQ(session->stats().ttft_ms, 0.0);
  Generate(session.get(), {0}, Tokens(3));
  EXPECT_EQ(session->stats().decode_tokens, 3U);
  EXPECT_GT(session->stats().ttft_ms, 0.0);
}

TEST_F(SessionTest, ATurnIsItsFeedsAndTheAnswerToThem) {
  auto session = Make();
  ASSERT_TRUE(session->Feed(0, SomeIds(20)).ok());
  Generate(session.get(), {0}, Tokens(3));
  const double first_ms = session->stats().ttft_ms;
  EXPECT_EQ(session->turn_stats().prefill_tokens, 20U);
  EXPECT_EQ(session->turn_stats().answer_tokens, 3U);
  EXPECT_EQ(session->turn_stats().ttft_ms, first_ms);
  ASSERT_TRUE(session->Feed(0, SomeIds(4)).ok());
  ASSERT_TRUE(session->Feed(0, SomeIds(5)).ok());
  EXPECT_EQ(session->turn_stats().answer_tokens, 0U);
  EXPECT_EQ(session->turn_stats().ttft_ms, 0.0);
  Generate(session.get(), {0}, Tokens(7));
  const SessionStats turn = session->turn_stats();
  EXPECT_EQ(turn.prefill_tokens, 10U);  // with the token that was pending
  EXPECT_EQ(turn.answer_tokens, 7U);
  EXPECT_EQ(turn.decode_tokens, 6U);
  EXPECT_GT(turn.prefill_ms, 0.0);
  EXPECT_LT(turn.prefill_ms, session->stats().prefill_ms);
  EXPECT_GT(turn.ttft_ms, 0.0);
  EXPECT_EQ(session->stats().ttft_ms, first_ms);
  EXPECT_EQ(session->stats().answer_tokens, 10U);
  session->ResetStats();
  EXPECT_EQ(session->turn_stats().answer_tokens, 0U);
}

// What a cut costs is told apart from what was given, and counted from the reset and the turn on.
TEST_F(SessionTest, TokensThatAreComputedAgainAreTold) {
  log_.n_recomputed = 100;  // before this session's
  auto session = Make();
  session->ResetStats();
  ASSERT_TRUE(session->Feed(0, SomeIds(20)).ok());
  Generate(session.get(), {0}, Tokens(3));
  EXPECT_EQ(session->stats().recomputed_tokens, 0U);
  ASSERT_TRUE(session->Truncate(0, 12).ok());
  EXPECT_EQ(log_.cuts, (std::vector<std::pair<uint32_t, uint32_t>>{{0, 12}}));
  ASSERT_TRUE(session->Feed(0, SomeIds(4)).ok());
  log_.n_recomputed += 8;
  EXPECT_EQ(session->stats().recomputed_tokens, 8U);
  EXPECT_EQ(session->turn_stats().recomputed_tokens, 8U);
  EXPECT_EQ(session->stats().prefill_tokens, 24U);
  Generate(session.get(), {0}, Tokens(3));
  ASSERT_TRUE(session->Feed(0, SomeIds(4)).ok());
  log_.n_recomputed += 2;
  EXPECT_EQ(session->stats().recomputed_tokens, 10U);
  EXPECT_EQ(session->turn_stats().recomputed_tokens, 2U);
  session->ResetStats();
  EXPECT_EQ(session->stats().recomputed_tokens, 0U);
}

}  // namespace
}  // namespace kvrun
