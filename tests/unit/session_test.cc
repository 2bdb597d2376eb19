#include "runtime/engine/session.h"

#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/session_fixture.h"

namespace kvrun {
namespace {

using testing::Answer;
using testing::FakeForwardPass;
using testing::FakePassOptions;
using testing::FakeTokenizer;
using testing::GreedyAfter;
using testing::Ids;
using testing::kVocab;
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

TEST_F(SessionTest, FeedOfNothingComputesThePendingToken) {
  auto session = Make();
  ASSERT_TRUE(session->Feed(0, SomeIds(3)).ok());
  Generate(session.get(), {0}, Tokens(2));
  EXPECT_EQ(session->Length(0), 4U);
  ASSERT_TRUE(session->Feed(0, {}).ok());
  EXPECT_EQ(session->Length(0), 5U);
}

TEST_F(SessionTest, ABatchEqualsEachAlone) {
  FakePassOptions options;
  options.n_sequences = 5;
  options.max_output_rows = 2;  // the step's logits come in three parts
  auto session = Make(options);
  std::vector<Ids> prompts;
  for (uint32_t i = 0; i < 5; ++i) {
    prompts.push_back(SomeIds(3 + 8 * i, static_cast<int>(i)));
    ASSERT_TRUE(session->Feed(i, prompts[i]).ok());
  }
  auto answers = Generate(session.get(), {4, 0, 2, 1, 3}, Tokens(12));
  for (uint32_t i = 0; i < 5; ++i) EXPECT_EQ(answers[i].ids, GreedyAfter(prompts[i], 12)) << i;
}

TEST_F(SessionTest, ABatchTakesOneStepPerToken) {
  FakePassOptions options;
  options.n_sequences = 4;
  auto session = Make(options);
  for (uint32_t i = 0; i < 4; ++i) ASSERT_TRUE(session->Feed(i, SomeIds(4, static_cast<int>(i))).ok());
  const uint64_t before = log_.n_runs;
  Generate(session.get(), {0, 1, 2, 3}, Tokens(10));
  EXPECT_EQ(log_.n_runs - before, 9U);  // the first token is of the feed's logits
  EXPECT_EQ(session->stats().decode_tokens, 36U);
  EXPECT_EQ(session->stats().prefill_tokens, 16U);
  EXPECT_GT(session->stats().ttft_ms, 0.0);
}

TEST_F(SessionTest, AFinishedSequenceDropsOutAndTheOthersGoOn) {
  FakePassOptions options;
  options.n_sequences = 2;
  options.script = [](uint32_t sequence, uint32_t position) {
    return sequence == 0 && position == 4 ? FakeTokenizer::kEos : static_cast<TokenId>('a' + sequence);
  };
  auto session = Make(options);
  ASSERT_TRUE(session->Feed(0, Ids{1, 2, 3}).ok());
  ASSERT_TRUE(session->Feed(1, Ids{1, 2, 3}).ok());
  GenerateOptions generate;
  generate.max_tokens = 6;
  std::vector<GenerateResult> results;
  auto answers = Generate(session.get(), {0, 1}, generate, &results);
  EXPECT_EQ(answers[0].text, "aa");
  EXPECT_EQ(results[0].finish, Finish::kEnd);
  EXPECT_EQ(results[0].n_tokens, 2U);  // the end is not counted
  EXPECT_EQ(answers[1].text, "bbbbbb");
  EXPECT_EQ(results[1].finish, Finish::kLength);
  ASSERT_TRUE(session->Feed(0, {}).ok());  // the end-of-generation token belongs to the conversation
  EXPECT_EQ(session->Length(0), 6U);
}

TEST_F(SessionTest, StopStringsAcrossTokensAreNotShown) {
  auto session = MakeScripted({"Hello", " wor", "ld.\nUs", "er", ": x", "never"});
  ASSERT_TRUE(session->Feed(0, Ids{1}).ok());
  GenerateOptions options;
  options.stops = {"User:", "zzz"};
  std::vector<GenerateResult> results;
  const Answer answer = Generate(session.get(), {0}, options, &results)[0];
  EXPECT_EQ(answer.text, "Hello world.\n");
  EXPECT_EQ(answer.ids.size(), 5U);
  EXPECT_EQ(results[0].finish, Finish::kStop);
  EXPECT_EQ(results[0].n_tokens, 5U);
}

TEST_F(SessionTest, TheCallbackGetsWholeCharacters) {
  auto session = MakeScripted({"\xF0\x9F", "\x98", "\x80!", "\xE2\x82"});
  ASSERT_TRUE(session->Feed(0, Ids{1}).ok());
  std::vector<std::pair<TokenId, std::string>> calls;
  ASSERT_TRUE(session
                  ->Generate(std::vector<uint32_t>{0}, {},
                             [&](const GeneratedToken& token) {
                               calls.emplace_back(token.id, token.text);
                               return false;
                             },
                             {})
                  .ok());
  const TokenId first = FakeTokenizer::kFirstWord;
  const std::vector<std::pair<TokenId, std::string>> expected = {
      {first, ""}, {first + 1, ""}, {first + 2, "\xF0\x9F\x98\x80!"}, {first + 3, ""}, {-1, "\xEF\xBF\xBD"}};
  EXPECT_EQ(calls, expected);
}

TEST_F(SessionTest, TheSpaceThatBeginsATextIsNotShownThatOfAContinuationIs) {
  const std::vector<std::string> words = {"", " Once", " upon"};
  for (const TokenId before : {FakeTokenizer::kBos, TokenId{'x'}}) {
    auto session = MakeScripted(words);
    ASSERT_TRUE(session->Feed(0, Ids{before}).ok());
    EXPECT_EQ(Generate(session.get(), {0}, {})[0].text,
              before == FakeTokenizer::kBos ? "Once upon" : " Once upon");
  }
}

TEST_F(SessionTest, AFullContextEndsGenerationAndLeavesRoomForItsTokens) {
  FakePassOptions options;
  options.n_ctx = 10;
  auto session = Make(options);
  const Ids prompt = SomeIds(7);
  ASSERT_TRUE(session->Feed(0, prompt).ok());
  std::vector<GenerateResult> results;
  EXPECT_EQ(Generate(session.get(), {0}, Tokens(0), &results)[0].ids, GreedyAfter(prompt, 3));
  EXPECT_EQ(results[0].finish, Finish::kContextFull);
  EXPECT_EQ(results[0].n_tokens, 3U);
  EXPECT_TRUE(Generate(session.get(), {0}, Tokens(5), &results)[0].ids.empty());
  EXPECT_EQ(results[0].finish, Finish::kContextFull);
  ASSERT_TRUE(session->Feed(0, {}).ok());
  EXPECT_EQ(session->Length(0), 10U);
}

TEST_F(SessionTest, MaxTokensReachedWithTheContextIsLength) {
  FakePassOptions options;
  options.n_ctx = 10;
  auto session = Make(options);
  ASSERT_TRUE(session->Feed(0, SomeIds(7)).ok());
  std::vector<GenerateResult> results;
  Generate(session.get(), {0}, Tokens(3), &results);
  EXPECT_EQ(results[0].finish, Finish::kLength);
}

TEST_F(SessionTest, AFeedThatDoesNotFitAppendsNothingAndSaysTheNumbers) {
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

TEST_F(SessionTest, IdsOutsideOfTheVocabularyAreRefused) {
  auto session = Make();
  for (const TokenId bad : {-1, 300}) {
    const Status status = session->Feed(0, Ids{1, bad});
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(std::to_string(bad)), std::string::npos);
  }
  EXPECT_EQ(session->Length(0), 0U);
}

TEST_F(SessionTest, ProgressCountsTokensAndCanCancelBetweenChunks) {
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

TEST_F(SessionTest, ARunThatReportsItsRowsIsCountedWithinTheFeed) {
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

TEST_F(SessionTest, ACancelWithinARunKeepsTheRunsBeforeIt) {
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

TEST_F(SessionTest, TheDeviceIsFreeAndTheClockStandsWhileProgressIsAsked) {
  constexpr auto kPause = std::chrono::milliseconds(250);
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
  EXPECT_LT(session->stats().prefill_ms, 250.0);
  EXPECT_GE(session->stats().prefill_ms, 0.0);
}

TEST_F(SessionTest, ACancelBeforeTheFirstChunkKeepsThePendingToken) {
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

TEST_F(SessionTest, ADeviceErrorLeavesTheFinishedChunks) {
  auto session = Make();
  log_.fail_at_run = 1;
  const Ids prompt = SomeIds(40);
  EXPECT_EQ(session->Feed(0, prompt).code(), StatusCode::kDevice);
  EXPECT_EQ(session->Length(0), 16U);
  ASSERT_TRUE(session->Feed(0, std::span(prompt).subspan(16)).ok());
  EXPECT_EQ(Generate(session.get(), {0}, Tokens(3))[0].ids, GreedyAfter(prompt, 3));
}

TEST_F(SessionTest, ADeviceErrorWhileGeneratingCanBeTriedAgain) {
  auto session = Make();
  const Ids prompt = SomeIds(4);
  ASSERT_TRUE(session->Feed(0, prompt).ok());
  log_.fail_at_run = 3;  // the feed was 0; tokens 2 and 3 are computed
  Ids ids;
  const auto collect = [&](const GeneratedToken& token) {
    if (token.id >= 0) ids.push_back(token.id);
    return false;
  };
  const std::vector<uint32_t> sequences = {0};
  EXPECT_EQ(session->Generate(sequences, Tokens(6), collect, {}).code(), StatusCode::kDevice);
  EXPECT_EQ(ids.size(), 3U);
  ASSERT_TRUE(session->Generate(sequences, Tokens(3), collect, {}).ok());
  EXPECT_EQ(ids, GreedyAfter(prompt, 6));
}

TEST_F(SessionTest, ALogitThatIsNotANumberIsReported) {
  auto session = Make();
  log_.nan_at_run = 0;
  ASSERT_TRUE(session->Feed(0, SomeIds(4)).ok());
  const std::vector<uint32_t> sequences = {0};
  const Status status = session->Generate(sequences, Tokens(2), {}, {});
  EXPECT_EQ(status.code(), StatusCode::kDevice);
  EXPECT_NE(status.message().find("doctor"), std::string::npos);
}

TEST_F(SessionTest, FeedLogitsHandsOutEachPositionInOrder) {
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

TEST_F(SessionTest, FeedLogitsCanBeCancelled) {
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

TEST_F(SessionTest, TheCallbackCancelsAllAndTheyCanGoOn) {
  FakePassOptions options;
  options.n_sequences = 2;
  auto session = Make(options);
  std::vector<Ids> all = {SomeIds(3, 1), SomeIds(5, 2)};
  for (uint32_t i = 0; i < 2; ++i) ASSERT_TRUE(session->Feed(i, all[i]).ok());
  int calls = 0;
  std::vector<GenerateResult> results(2);
  const std::vector<uint32_t> sequences = {0, 1};
  const auto cancel_at_fifth = [&](const GeneratedToken& token) {
    all[token.sequence].push_back(token.id);
    return ++calls == 5;
  };
  ASSERT_TRUE(session->Generate(sequences, Tokens(10), cancel_at_fifth, results).ok());
  EXPECT_EQ(calls, 5);
  EXPECT_EQ(results[0].finish, Finish::kCancelled);
  EXPECT_EQ(results[1].finish, Finish::kCancelled);
  EXPECT_EQ(results[0].n_tokens, 3U);
  EXPECT_EQ(results[1].n_tokens, 2U);
  auto answers = Generate(session.get(), {0, 1}, Tokens(4));
  for (uint32_t i = 0; i < 2; ++i) EXPECT_EQ(answers[i].ids, GreedyAfter(all[i], 4));
}

TEST_F(SessionTest, ASeedGivesTheSameTextHoweverItIsSplit) {
  GenerateOptions options = Tokens(12);
  options.sampler.temperature = 2.0F;
  options.sampler.seed = 11;
  FakePassOptions pass;
  pass.n_sequences = 2;
  const auto run = [&](const std::vector<uint32_t>& parts) {
    auto session = Make(pass);
    std::vector<Ids> ids(2);
    for (uint32_t i = 0; i < 2; ++i) EXPECT_TRUE(session->Feed(i, SomeIds(4)).ok());
    for (const uint32_t n : parts) {
      options.max_tokens = n;
      auto answers = Generate(session.get(), {0, 1}, options);
      for (uint32_t i = 0; i < 2; ++i)
        ids[i].insert(ids[i].end(), answers[i].ids.begin(), answers[i].ids.end());
    }
    return ids;
  };
  const std::vector<Ids> whole = run({12});
  EXPECT_EQ(whole, run({12}));
  EXPECT_EQ(whole, run({1, 5, 6}));
  EXPECT_NE(whole[0], whole[1]);  // the same prompt, another stream
  options.sampler.seed = 12;
  EXPECT_NE(whole, run({12}));
}

TEST_F(SessionTest, ThePenaltyCountsThePrompt) {
  FakePassOptions pass;
  pass.script = [](uint32_t, uint32_t) { return TokenId{65}; };
  auto session = Make(pass);
  ASSERT_TRUE(session->Feed(0, Ids{65, 1}).ok());
  GenerateOptions options = Tokens(1);
  options.sampler.repetition_penalty = 100.0F;  // 100 becomes 1, and others reach 4
  EXPECT_NE(Generate(session.get(), {0}, options)[0].ids, Ids{65});
  ASSERT_TRUE(session->Truncate(0, 2).ok());
  options.sampler.repetition_window = 1;  // only the 1
  EXPECT_EQ(Generate(session.get(), {0}, options)[0].ids, Ids{65});
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

}  // namespace
}  // namespace kvrun
