// Generating with a session: batches, ends and stops, text, sampling, what interrupts it.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "runtime/engine/session/session.h"
#include "tests/support/session_fixture.h"

namespace kvrun {
namespace {

using testing::Answer;
using testing::FakePassOptions;
using testing::FakeTokenizer;
using testing::GreedyAfter;
using testing::Ids;
using testing::SomeIds;

class SessionGenerateTest : public testing::SessionFixture {};

TEST_F(SessionGenerateTest, ABatchEqualsEachAlone) {
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

TEST_F(SessionGenerateTest, ABatchTakesOneStepPerToken) {
  FakePassOptions options;
  options.n_sequences = 4;
  auto session = Make(options);
  for (uint32_t i = 0; i < 4; ++i) ASSERT_TRUE(session->Feed(i, SomeIds(4, static_cast<int>(i))).ok());
  const uint64_t before = log_.n_runs;
  Generate(session.get(), {0, 1, 2, 3}, Tokens(10));
  EXPECT_EQ(log_.n_runs - before, 9U);  // the first token is of the feed's logits
  EXPECT_EQ(session->stats().answer_tokens, 40U);
  EXPECT_EQ(session->stats().decode_tokens, 36U);
  EXPECT_EQ(session->stats().prefill_tokens, 16U);
  EXPECT_GT(session->stats().ttft_ms, 0.0);
}

TEST_F(SessionGenerateTest, AFinishedSequenceDropsOutAndTheOthersGoOn) {
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

TEST_F(SessionGenerateTest, AnAnswerThatRepeatsItselfEndsWhereThatIsAskedFor) {
  FakePassOptions options;
  options.n_sequences = 2;
  options.n_ctx = 1024;
  options.script = [](uint32_t sequence, uint32_t position) {
    return static_cast<TokenId>('a' + (sequence == 0 ? position % 40 : (position * position / 3) % 26));
  };
  auto session = Make(options);
  for (const uint32_t sequence : {0U, 1U}) ASSERT_TRUE(session->Feed(sequence, Ids{1, 2, 3}).ok());
  GenerateOptions generate = Tokens(300);
  generate.repeat_limit = 4;
  std::vector<GenerateResult> results;
  Generate(session.get(), {0, 1}, generate, &results);
  EXPECT_EQ(results[0].finish, Finish::kRepeats);
  EXPECT_EQ(results[0].n_tokens, 160U);
  EXPECT_EQ(results[1].finish, Finish::kLength);
  generate.repeat_limit = 0;
  Generate(session.get(), {0}, generate, &results);
  EXPECT_EQ(results[0].finish, Finish::kLength);
}

TEST_F(SessionGenerateTest, StopStringsAcrossTokensAreNotShown) {
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

TEST_F(SessionGenerateTest, TheCallbackGetsWholeCharacters) {
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

TEST_F(SessionGenerateTest, TheSpaceThatBeginsATextIsNotShownThatOfAContinuationIs) {
  const std::vector<std::string> words = {"", " Once", " upon"};
  for (const TokenId before : {FakeTokenizer::kBos, TokenId{'x'}}) {
    auto session = MakeScripted(words);
    ASSERT_TRUE(session->Feed(0, Ids{before}).ok());
    EXPECT_EQ(Generate(session.get(), {0}, {})[0].text,
              before == FakeTokenizer::kBos ? "Once upon" : " Once upon");
  }
}

TEST_F(SessionGenerateTest, AFullContextEndsGenerationAndLeavesRoomForItsTokens) {
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

TEST_F(SessionGenerateTest, MaxTokensReachedWithTheContextIsLength) {
  FakePassOptions options;
  options.n_ctx = 10;
  auto session = Make(options);
  ASSERT_TRUE(session->Feed(0, SomeIds(7)).ok());
  std::vector<GenerateResult> results;
  Generate(session.get(), {0}, Tokens(3), &results);
  EXPECT_EQ(results[0].finish, Finish::kLength);
}

TEST_F(SessionGenerateTest, ADeviceErrorWhileGeneratingCanBeTriedAgain) {
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

TEST_F(SessionGenerateTest, ALogitThatIsNotANumberIsReported) {
  auto session = Make();
  log_.nan_at_run = 0;
  ASSERT_TRUE(session->Feed(0, SomeIds(4)).ok());
  const std::vector<uint32_t> sequences = {0};
  const Status status = session->Generate(sequences, Tokens(2), {}, {});
  EXPECT_EQ(status.code(), StatusCode::kDevice);
  EXPECT_NE(status.message().find("doctor"), std::string::npos);
}

TEST_F(SessionGenerateTest, TheCallbackCancelsAllAndTheyCanGoOn) {
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

TEST_F(SessionGenerateTest, ASeedGivesTheSameTextHoweverItIsSplit) {
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

TEST_F(SessionGenerateTest, EachSequenceMayHaveOptionsOfItsOwn) {
  FakePassOptions pass;
  pass.n_sequences = 4;
  const auto options = [](uint32_t n, float temperature, uint64_t seed, bool by_seed_alone) {
    GenerateOptions one = Tokens(n);
    one.sampler.temperature = temperature;
    one.sampler.seed = seed;
    one.draws_by_seed_alone = by_seed_alone;
    return one;
  };
  const std::vector<GenerateOptions> each = {options(8, 0.0F, 0, false), options(3, 2.0F, 7, true),
                                             options(12, 2.0F, 7, true), options(12, 2.0F, 7, false)};
  auto session = Make(pass);
  for (uint32_t i = 0; i < 4; ++i) ASSERT_TRUE(session->Feed(i, SomeIds(5)).ok());
  std::vector<Ids> ids(4);
  const std::vector<uint32_t> sequences = {0, 1, 2, 3};
  std::vector<GenerateResult> results(4);
  const auto keep = [&](const GeneratedToken& token) {
    if (token.id >= 0) ids[token.sequence].push_back(token.id);
    return false;
  };
  const uint64_t before = log_.n_runs;
  ASSERT_TRUE(session->GenerateEach(sequences, each, keep, results).ok());
  EXPECT_EQ(log_.n_runs - before, 11U) << "together: as many steps as the longest needs";
  EXPECT_EQ(ids[0], GreedyAfter(SomeIds(5), 8));
  auto alone = Make(FakePassOptions());
  ASSERT_TRUE(alone->Feed(0, SomeIds(5)).ok());
  EXPECT_EQ(ids[2], Generate(alone.get(), {0}, options(12, 2.0F, 7, false))[0].ids)
      << "by the seed alone it draws as the only sequence does";
  EXPECT_EQ(ids[1], Ids(ids[2].begin(), ids[2].begin() + 3));
  EXPECT_NE(ids[3], ids[2]);
  GenerateOptions bad;
  bad.sampler.top_p = 2.0F;
  EXPECT_FALSE(session->GenerateEach(sequences, std::vector{each[0], each[1], each[2], bad}, {}, {}).ok());
}

// What was fed does not count, nor what was generated before it; what was truncated neither.
TEST_F(SessionGenerateTest, PresencePenaltyCountsWhatWasGeneratedSinceTheFeed) {
  FakePassOptions pass;
  pass.script = [](uint32_t, uint32_t) { return TokenId{65}; };
  auto session = Make(pass);
  GenerateOptions options = Tokens(1);
  options.sampler.presence_penalty = 100.0F;  // a scripted token's logit is 100, others reach 4
  ASSERT_TRUE(session->Feed(0, Ids{65, 1}).ok());
  EXPECT_EQ(Generate(session.get(), {0}, options)[0].ids, Ids{65}) << "only the prompt has it";
  EXPECT_NE(Generate(session.get(), {0}, options)[0].ids, Ids{65}) << "a call later";
  ASSERT_TRUE(session->Truncate(0, 2).ok());
  EXPECT_EQ(Generate(session.get(), {0}, options)[0].ids, Ids{65});
  ASSERT_TRUE(session->Feed(0, Ids{2}).ok());
  EXPECT_EQ(Generate(session.get(), {0}, options)[0].ids, Ids{65}) << "it was answered before this feed";
}

TEST_F(SessionGenerateTest, LogprobsAreThoseOfTheRawLogits) {
  auto session = Make();
  const Ids prompt = SomeIds(5);
  ASSERT_TRUE(session->Feed(0, prompt).ok());
  GenerateOptions options = Tokens(3);
  options.n_logprobs = 2;
  options.sampler.repetition_penalty = 50.0F;
  options.sampler.temperature = 5.0F;
  Ids tokens = prompt;
  size_t n_told = 0;
  const auto check = [&](const GeneratedToken& token) {
    if (token.id < 0) return false;
    ++n_told;
    const std::vector<TokenLogprob> expected =
        LikeliestAnd(testing::FakeForwardPass::LogitsAfter(tokens, testing::kVocab), 2, token.id);
    EXPECT_EQ(token.logprobs.size(), 3U);
    for (size_t i = 0; i < token.logprobs.size(); ++i) {
      EXPECT_EQ(token.logprobs[i].id, expected[i].id);
      EXPECT_EQ(token.logprobs[i].logprob, expected[i].logprob);
    }
    tokens.push_back(token.id);
    return false;
  };
  std::vector<GenerateResult> results(1);
  const std::vector<uint32_t> sequences = {0};
  ASSERT_TRUE(session->Generate(sequences, options, check, results).ok());
  EXPECT_EQ(n_told, results[0].n_tokens);
  EXPECT_GT(n_told, 0U);
  options.n_logprobs = kMaxLogprobs + 1;
  EXPECT_EQ(session->Generate(sequences, options, check, results).code(), StatusCode::kInvalidArgument);
}

TEST_F(SessionGenerateTest, ThePenaltyCountsThePrompt) {
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

}  // namespace
}  // namespace kvrun
