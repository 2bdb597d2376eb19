// kvrun run --batch: what a line may ask for, and what becomes of one that cannot be answered.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/cli_fixture.h"

namespace kvrun {
namespace {

using testing::Cli;
using testing::Contains;
using testing::Json;
using testing::JsonLines;

ProgramResult Batch(const std::string& lines, const std::vector<std::string>& more = {},
                    const std::string& model = "nobos") {
  std::vector<std::string> arguments = {"run", "-m", model, "--batch", "-"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return Cli(arguments, {{}, lines, ""});
}

// The text of the answer to a batch of one line.
std::string TextOf(const std::string& line, const std::vector<std::string>& more = {}) {
  const ProgramResult result = Batch(line, more);
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  return JsonLines(result.out).at(0).value("text", "");
}

TEST(CliBatch, AnswersMoreLinesThanAreComputedAtOnceInOrder) {
  std::string input = "\n";
  for (int i = 0; i < 20; ++i) input += fmt::format("{{\"prompt\": \"p{}\", \"id\": {}}}\r\n", i, i);
  const ProgramResult result = Cli({"run", "-m", "nobos", "--batch", "-"}, {{}, input, ""});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const std::vector<Json> lines = JsonLines(result.out);
  ASSERT_EQ(lines.size(), 20U);
  for (size_t i = 0; i < lines.size(); ++i) {
    const std::string prompt = fmt::format("p{}", i);
    EXPECT_EQ(lines[i]["index"], i);
    EXPECT_EQ(lines[i]["text"], fmt::format("{}:{}", prompt.size(), prompt));
    EXPECT_EQ(lines[i]["finish"], "end");
    EXPECT_EQ(lines[i]["tokens"].size(), prompt.size() + 2);
    EXPECT_EQ(lines[i]["id"], i);
    EXPECT_FALSE(lines[i].contains("device"));
  }
  EXPECT_PRED2(Contains, result.err,
               "prompts  20 of 20 answered\nspeed    prompt 50 tokens at 100.0 token/s, answer 90 tokens at "
               "10.0 token/s\n");
}

TEST(CliBatch, JsonAddsTheStatistics) {
  const ProgramResult result =
      Cli({"run", "-m", "nobos", "--batch", "-", "--json"}, {{}, "{\"prompt\": \"a\"}", ""});
  const std::vector<Json> lines = JsonLines(result.out);
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_EQ(lines[0]["decode_tps"], 10.0);
  EXPECT_FALSE(Contains(result.err, "prompts  ")) << result.err;
}

TEST(CliBatch, StatisticsAreOfTheLineAlone) {
  const ProgramResult result =
      Batch("{\"prompt\": \"abcde\"}\n{\"prompt\": \"ab\"}\n", {"-n", "2", "--json"});
  const std::vector<Json> lines = JsonLines(result.out);
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[0]["prefill_tokens"], 5);
  EXPECT_EQ(lines[1]["prefill_tokens"], 2);
  EXPECT_EQ(lines[0]["memory"]["kv"], (5 + 2) * 4) << "each context is as long as the line needs";
  EXPECT_EQ(lines[1]["memory"]["kv"], (2 + 2) * 4);
}

TEST(CliBatch, JsonLinesOfABatchNameTheirPrompt) {
  const ProgramResult result =
      Cli({"run", "-m", "nobos", "--batch", "-", "-n", "2", "--json-lines", "--logprobs", "1"},
          {{}, "{\"prompt\": \"ab\"}\n{\"prompt\": \"c\"}\n", ""});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const std::vector<Json> lines = JsonLines(result.out);
  ASSERT_EQ(lines.size(), 6U) << result.out;
  EXPECT_EQ(lines[0]["index"], 0);
  EXPECT_EQ(lines[0]["text"], "2");
  EXPECT_EQ(lines[0]["logprob"], -0.5);
  EXPECT_EQ(lines[2]["index"], 1);
  EXPECT_EQ(lines[4]["index"], 0);
  EXPECT_EQ(lines[4]["logprobs"].size(), 2U);
  EXPECT_TRUE(lines[4].contains("device"));
}

TEST(CliBatch, ALineHasSamplingOptionsOfItsOwn) {
  EXPECT_EQ(TextOf(R"({"prompt": "a", "temperature": 0.5, "top_k": 7, "top_p": 0.9, "min_p": 0.1, )"
                   R"("repeat_penalty": 1.5, "repeat_window": 9, "seed": 18446744073709551615})"),
            "1:t=0.5,k=7,p=0.9,m=0.1,r=1.5,w=9,s=18446744073709551615;a");
  EXPECT_EQ(TextOf(R"({"prompt": "a", "temp": 0.5, "top-k": 3.0, "repetition_penalty": 2, "seed": 4})"),
            "1:t=0.5,k=3,p=1,m=0,r=2,w=64,s=4;a");
  EXPECT_EQ(TextOf(R"({"prompt": "a", "presence_penalty": 0.5, "frequency-penalty": -1})"),
            "1:pp=0.5,fp=-1;a");
  EXPECT_EQ(TextOf(R"({"prompt": "abc", "max_tokens": 3})"), "3:a");
  EXPECT_EQ(TextOf(R"({"prompt": "abc", "max_completion_tokens": 2})", {"-n", "4"}), "3:");
  EXPECT_EQ(TextOf(R"({"prompt": "abc", "max_tokens": -1})", {"-n", "2"}), "3:abc");
  EXPECT_EQ(TextOf(R"({"prompt": "abc", "stop": "b"})", {"--stop", "a"}), "3:a");
  EXPECT_EQ(TextOf(R"({"prompt": "abc", "stop": ["zz", "c"]})"), "3:ab");
  EXPECT_EQ(TextOf(R"({"prompt": "abc", "stop": [], "max_tokens": null})", {"-n", "2", "--stop", "3"}), "3:");
}

TEST(CliBatch, LinesOfDifferentOptionsRunTogether) {
  const ProgramResult result = Batch(
      "{\"prompt\": \"abc\", \"max_tokens\": 2}\n{\"prompt\": \"abc\"}\n"
      "{\"prompt\": \"abc\", \"temperature\": 1, \"seed\": 3}\n{\"prompt\": \"abc\", \"stop\": \"b\"}\n",
      {"-n", "3"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const std::vector<Json> lines = JsonLines(result.out);
  ASSERT_EQ(lines.size(), 4U);
  EXPECT_EQ(lines[0]["text"], "3:");
  EXPECT_EQ(lines[1]["text"], "3:a");
  EXPECT_EQ(lines[2]["text"], "3:t");
  EXPECT_EQ(lines[3]["text"], "3:a");
  EXPECT_PRED2(Contains, result.err, "prompts  4 of 4 answered");
}

TEST(CliBatch, TheContextHasRoomForTheLineThatAsksForMost) {
  const ProgramResult result =
      Batch("{\"prompt\": \"abcde\", \"max_tokens\": 20}\n{\"prompt\": \"abc\"}\n", {"-n", "10", "--json"});
  EXPECT_EQ(JsonLines(result.out).at(0)["memory"]["kv"], 25 * 4);
}

TEST(CliBatch, ASeedOfALinesOwnMayBeRandom) {
  const std::string line = R"({"prompt": "a", "temperature": 1, "seed": -1})";
  const ProgramResult result = Batch(line);
  EXPECT_PRED2(Contains, result.err, "kvrun: note: standard input: line 1: the seed is ");
  EXPECT_NE(JsonLines(result.out).at(0)["text"], JsonLines(Batch(line).out).at(0)["text"]);
}

TEST(CliBatch, MessagesAreAChat) {
  const std::string conversation = R"({"messages": [{"role": "user", "content": "Q"},
      {"role": "assistant", "content": "A"}, {"role": "user", "content": [{"type": "text", "text": "R"}]}]})";
  std::string line = conversation;
  for (size_t at = line.find('\n'); at != line.npos; at = line.find('\n')) line[at] = ' ';
  const std::string rest = "<start>user:Q<end><start>assistant:A<end><start>user:R<end><start>assistant:]";
  const auto answer = [&](const std::string& of, const std::vector<std::string>& more) {
    const ProgramResult result = Batch(of, more, "nobos-transcript");
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return JsonLines(result.out).at(0).value("text", "");
  };
  EXPECT_EQ(answer(line, {}), "[<start>system:be good<end>" + rest);
  EXPECT_EQ(answer(line, {"--chat"}), "[<start>system:be good<end>" + rest);
  EXPECT_EQ(answer(line, {"--chat", "--system", "S"}), "[<start>system:S<end>" + rest);
  EXPECT_EQ(
      answer(R"({"messages": [{"role": "developer", "content": "D"}, {"role": "user", "content": "Q"}]})",
             {"--chat", "--system", "S"}),
      "[<start>system:D<end><start>user:Q<end><start>assistant:]");
  EXPECT_EQ(answer(R"({"custom_id": "x", "body": {"messages": [{"role": "user", "content": "Q"}]}})", {}),
            "[<start>system:be good<end><start>user:Q<end><start>assistant:]");
}

TEST(CliBatch, ToolsAreTheTemplatesToRead) {
  const auto answer = [](const std::string& line) {
    const ProgramResult result = Batch(line, {}, "nobos-transcript");
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_FALSE(Contains(result.err, "not known")) << result.err;
    return JsonLines(result.out).at(0).value("text", "");
  };
  EXPECT_EQ(answer(R"({"tools": [{"type": "function"}], "messages": [{"role": "system", "content": "S"},)"
                   R"( {"role": "assistant", "content": null, "tool_calls": [{"id": "7", "function":)"
                   R"( {"name": "f", "arguments": "{\"a\": 1}"}}]}, {"role": "tool", "content": "2"}]})"),
            R"([{"tools":[{"type":"function"}]}<start>system:S<end><start>assistant:)"
            R"((tool_calls [{"id":"7","function":{"name":"f","arguments":{"a":1}}}])<end>)"
            R"(<start>tool:2<end><start>assistant:])");
  EXPECT_EQ(answer(R"({"tools": [], "messages": [{"role": "system", "content": "S", "name": null,)"
                   R"( "tool_calls": []}]})"),
            "[<start>system:S<end><start>assistant:]");
  EXPECT_PRED2(Contains, Batch(R"({"prompt": "a", "tools": [{}]})").err,
               " has \"tools\" beside a \"prompt\"");
  EXPECT_PRED2(Contains, Batch(R"({"messages": [{"role": "user", "name": "n", "content": "a\u0000b"}]})").err,
               "zero byte");
  for (const char* bad : {R"({"prompt": "a", "tools": 3})", R"({"prompt": "a", "tools": ["f"]})",
                          R"({"messages": [{"role": "assistant", "content": "", "tool_calls": "f"}]})",
                          R"({"messages": [{"role": "assistant", "content": "", "tool_calls": [{}]}]})"}) {
    EXPECT_PRED2(Contains, Batch(bad).err, "it must be");
  }
}

TEST(CliBatch, MessagesAreKeptFromRepetitionWithoutChatToo) {
  const auto penalty = [](const std::string& line, const std::vector<std::string>& more) {
    const std::string text = JsonLines(Batch(line, more, "tiny").out).at(0).value("text", "");
    const size_t at = text.find(",r=");
    return at == text.npos ? "" : text.substr(at + 3, text.find(',', at + 1) - at - 3);
  };
  const std::string messages = R"({"temp": 0.5, "messages": [{"role": "user", "content": "Q"}])";
  EXPECT_EQ(penalty(messages + "}", {}), "1.1");
  EXPECT_EQ(penalty(messages + "}", {"--repeat-penalty", "1.3"}), "1.3");
  EXPECT_EQ(penalty(messages + R"(, "repetition_penalty": 1})", {}), "1");
  EXPECT_EQ(penalty(R"({"temp": 0.5, "prompt": "Q"})", {}), "1");
  EXPECT_EQ(penalty(R"({"temp": 0.5, "prompt": "Q"})", {"--chat"}), "1.1");
}

TEST(CliBatch, TheIdIsRepeated) {
  const ProgramResult result = Batch(
      "{\"prompt\": \"a\", \"id\": \"first\"}\n{\"prompt\": \"b\", \"custom_id\": \"second\"}\n"
      "{\"prompt\": \"c\", \"id\": 7}\n{\"prompt\": \"d\"}\n",
      {"--json-lines", "-n", "1"});
  ASSERT_EQ(JsonLines(result.out).size(), 8U) << result.out;
  for (const bool is_answer : {false, true}) {
    std::vector<Json> lines;
    for (const Json& line : JsonLines(result.out)) {
      if (line.contains("finish") == is_answer) lines.push_back(line);
    }
    ASSERT_EQ(lines.size(), 4U) << result.out;
    EXPECT_EQ(lines[0]["id"], "first");
    EXPECT_EQ(lines[1]["custom_id"], "second");
    EXPECT_EQ(lines[2]["id"], 7);
    EXPECT_FALSE(lines[3].contains("id"));
  }
}

TEST(CliBatch, UnknownKeysAreNamedOnce) {
  const std::string lines =
      "{\"prompt\": \"a\", \"model\": \"x\", \"n\": 1}\n{\"prompt\": \"b\", \"n\": 1}\n";
  const std::string note =
      "kvrun: note: standard input: kvrun does not know these keys, and goes without them: ";
  const ProgramResult result = Batch(lines);
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_PRED2(Contains, result.err, note + "model, n\n");
  EXPECT_EQ(result.err.find(note), result.err.rfind(note));
  EXPECT_FALSE(Contains(Batch("{\"prompt\": \"a\", \"id\": 1, \"seed\": 1}").err, "does not know"));
  EXPECT_FALSE(
      Contains(Batch("{\"method\": \"POST\", \"url\": \"/v1/x\", \"body\": {\"prompt\": \"a\"}}").err,
               "does not know"))
      << "OpenAI's files have these";
  EXPECT_EQ(Batch(lines, {"-q"}).err, "");
}

TEST(CliBatch, ABadLineIsAnsweredWithWhatIsWrong) {
  const std::string good = "{\"prompt\": \"a\"}\n";
  const std::pair<const char*, const char*> kBad[] = {
      {"nonsense", " is not JSON: column 2: syntax error"},
      {R"({"prompt": "a", })", " is not JSON: column 17: syntax error"},
      {R"({"prompt": "a", "seed": 1e999})", " is not JSON: number overflow"},
      {R"({"body": 3})", ": \"body\" is 3: it must be an object"},
      {R"({"messages": [{"role": "king", "content": "Q"}]})",
       ": \"role\" is \"king\": it must be one of system, developer, user, assistant, tool"},
      {"[1]", " is not an object"},
      {"{}", " has neither a \"prompt\" nor \"messages\""},
      {R"({"prompt": 1})", ": \"prompt\" is 1: it must be a string"},
      {R"({"prompt": "a", "messages": [{"role": "user", "content": "Q"}]})", " has both"},
      {R"({"prompt": "a", "temperature": "hot"})",
       ": \"temperature\" is \"hot\": it must be a number from 0 to 100"},
      {R"({"prompt": "a", "top_p": 1.5})", ": \"top_p\" is 1.5: it must be a number from 0 to 1"},
      {R"({"prompt": "a", "max_tokens": 1.5})",
       ": \"max_tokens\" is 1.5: it must be a whole number from -1 to"},
      {R"({"prompt": "a", "seed": -2})", ": \"seed\" is -2"},
      {R"({"prompt": "a", "top_k": true})", ": \"top_k\" is true"},
      {R"({"prompt": "a", "stop": [""]})", ": \"stop\" is [\"\"]"},
      {R"({"prompt": "a", "id": [1]})", ": \"id\" is [1]: it must be a string or a number"},
      {R"({"messages": []})", ": \"messages\" is []"},
      {R"({"messages": [{"role": "user"}]})", ": a message has no \"content\""},
      {R"({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]})", ": \"content\" is "},
      {R"({"prompt": ""})", ": the prompt is empty"},
      {R"({"messages": [{"role": "user", "content": "a\u0000b"}]})", ": the text has a zero byte"},
      {R"({"prompt": "abcdefghijklmnopqrst"})", ": the prompt has 20 tokens, more than the context of 12"},
  };
  for (const auto& [bad, message] : kBad) {
    const ProgramResult result = Batch(good + "\n" + bad + "\n" + good, {"--ctx", "12"});
    EXPECT_EQ(result.exit_code, 1) << bad;
    const std::vector<Json> lines = JsonLines(result.out);
    ASSERT_EQ(lines.size(), 3U) << bad << result.out << result.err;
    EXPECT_EQ(lines[0]["text"], "1:a");
    EXPECT_EQ(lines[1]["index"], 1);
    const std::string said = lines[1]["error"].value("message", "");
    EXPECT_TRUE(said.starts_with(std::string("standard input: line 3") + message)) << said;
    EXPECT_FALSE(lines[1].contains("text"));
    EXPECT_EQ(lines[2]["index"], 2);
    EXPECT_EQ(lines[2]["text"], "1:a");
    EXPECT_PRED2(Contains, result.err, "kvrun: standard input: line 3");
  }
  EXPECT_EQ(JsonLines(Batch("{\"id\": \"x\", \"prompt\": 1}").out).at(0)["id"], "x")
      << "as far as it is known";
}

TEST(CliBatch, WithoutAGoodLineNothingIsLoaded) {
  const ProgramResult result = Batch("nonsense\n{\"prompt\": 1}\n", {}, "nodevice");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(JsonLines(result.out).size(), 2U) << result.err;
  EXPECT_PRED2(Contains, Cli({"run", "-m", "toy", "--batch", "-"}).err, "no prompt");
}

// The first goes on for longest: the others wait for it to be written, not to be computed.
TEST(CliBatch, ALineThatIsFinishedFirstWaitsForThoseBeforeIt) {
  std::string input;
  for (int i = 0; i < 20; ++i)
    input += fmt::format("{{\"prompt\": \"abcdefgh\", \"max_tokens\": {}}}\n", i == 0 ? 10 : 1);
  const ProgramResult result = Batch(input, {"--json-lines"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  std::vector<Json> answers;
  std::vector<size_t> tokens_of;
  for (const Json& line : JsonLines(result.out)) {
    if (line.contains("finish")) {
      EXPECT_EQ(line["index"], answers.size());
      answers.push_back(line);
    } else {
      tokens_of.push_back(line["index"]);
    }
  }
  ASSERT_EQ(answers.size(), 20U);
  EXPECT_EQ(answers[0]["text"], "8:abcdefgh");
  EXPECT_EQ(answers[1]["text"], "8");
  ASSERT_EQ(tokens_of.size(), 29U);
  const auto last_of_first = std::find(tokens_of.rbegin(), tokens_of.rend(), 0U).base() - tokens_of.begin();
  EXPECT_GT(last_of_first, 10) << "the first was alone";
  EXPECT_LT(std::find(tokens_of.begin(), tokens_of.end(), 1U) - tokens_of.begin(), last_of_first);
}

TEST(CliBatch, ALineThatFailsWhileItIsComputedIsAnsweredWithItsError) {
  const ProgramResult result = Batch(
      "{\"prompt\": \"abc\"}\n{\"prompt\": \"a!\", \"id\": 7}\n{\"prompt\": \"abcd\"}\n", {}, "nobos-breaks");
  EXPECT_EQ(result.exit_code, 1);
  const std::vector<Json> lines = JsonLines(result.out);
  ASSERT_EQ(lines.size(), 3U) << result.out;
  EXPECT_EQ(lines[0]["text"], "3:abc");
  EXPECT_EQ(
      lines[1],
      Json({{"index", 1},
            {"id", 7},
            {"error", {{"status", "io error"}, {"message", "standard input: line 2: the disk is full"}}}}));
  EXPECT_EQ(lines[2]["text"], "4:abcd");
  EXPECT_PRED2(Contains, result.err, "kvrun: standard input: line 2: the disk is full\n");
  EXPECT_PRED2(Contains, result.err, "prompts  2 of 3 answered\n");
}

TEST(CliBatch, APromptThatFillsTheContextIsOneThatCannotBeAnswered) {
  const ProgramResult result =
      Batch("{\"prompt\": \"abcdefgh\"}\n{\"prompt\": \"abcdef\"}\n", {"--ctx", "8", "-n", "-1"});
  EXPECT_EQ(result.exit_code, 1);
  const std::vector<Json> lines = JsonLines(result.out);
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[0]["error"]["status"], "context full");
  EXPECT_EQ(lines[1]["text"], "6:");
  EXPECT_EQ(lines[1]["finish"], "context_full");
}

TEST(CliBatch, ALimitThatTheContextHasNoRoomForEndsWithTheContext) {
  const auto finish = [](const char* limit) {
    return JsonLines(Batch("{\"prompt\": \"abcdef\"}\n", {"--ctx", "8", "-n", limit}).out).at(0)["finish"];
  };
  EXPECT_EQ(finish("1"), "length");
  EXPECT_EQ(finish("2"), "length");
  EXPECT_EQ(finish("3"), "context_full");
}

TEST(CliBatch, LinesWithoutASeedDrawDifferently) {
  const ProgramResult result =
      Batch("{\"prompt\": \"a\"}\n{\"prompt\": \"a\"}\n{\"prompt\": \"a\", \"seed\": 40}\n",
            {"--temp", "0.5", "--seed", "40"});
  const std::vector<Json> lines = JsonLines(result.out);
  ASSERT_EQ(lines.size(), 3U);
  for (const auto& [i, seed] : {std::pair(0, "s=40;"), std::pair(1, "s=41;"), std::pair(2, "s=40;")})
    EXPECT_PRED2(Contains, lines[static_cast<size_t>(i)].value("text", ""), seed);
}

TEST(CliBatch, InterruptedItSaysWhatThereIs) {
  const TemporaryFolder folder;
  const std::string lines =
      folder.Write("lines", "{\"prompt\": \"a\", \"max_tokens\": 1}\n{}\n{\"prompt\": \"b\"}\n{}\n");
  RunningProgram program(KVRUN_FAKE_PROGRAM,
                         {"run", "-m", "nobos-slow-endless", "--batch", lines, "-n", "-1", "--ctx", "4000"},
                         {});
  ASSERT_TRUE(program.WaitForOutput("\"index\":1,"));
  ASSERT_TRUE(program.WaitForOutput("length"));
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  program.Signal(SIGINT);
  const ProgramResult result = program.Finish();
  EXPECT_EQ(result.exit_code, 130);
  const std::vector<Json> answers = JsonLines(result.out);
  ASSERT_EQ(answers.size(), 3U) << result.out;
  EXPECT_EQ(answers[0]["finish"], "length");
  EXPECT_TRUE(answers[1].contains("error"));
  EXPECT_EQ(answers[2]["finish"], "cancelled");
  EXPECT_TRUE(answers[2].value("text", "").starts_with("x")) << result.out;
  EXPECT_PRED2(Contains, result.err, "prompts  1 of 4 answered\n");
  EXPECT_PRED2(Contains, result.err, "end      interrupted\n");
}

TEST(CliBatch, WhatItCannotHaveIsRefusedByName) {
  for (const std::vector<std::string>& option :
       {std::vector<std::string>{"--profile"}, std::vector<std::string>{"--session-key", "auto"}}) {
    const ProgramResult result = Batch("{\"prompt\": \"a\"}", option);
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_TRUE(result.err.starts_with("kvrun: " + option[0] + " ")) << result.err;
  }
  EXPECT_EQ(Cli({"run", "-m", "nobos", "--batch", "-"},
                {{"KVRUN_PROFILE=1", "KVRUN_SESSION_KEY=auto"}, "{\"prompt\": \"a\"}", ""})
                .exit_code,
            0);
}

TEST(CliBatch, WhatIsSaidOfTheKvCacheIsSaidOnce) {
  const ProgramResult result = Batch("{\"prompt\": \"a\"}\n{\"prompt\": \"b\"}\n{\"prompt\": \"c\"}\n",
                                     {"--kv-method", "kvswap", "-v"});
  for (const std::string text : {"in memory, the rest on flash", "a token attends to 8 of 15 entries"}) {
    EXPECT_PRED2(Contains, result.err, text);
    EXPECT_EQ(result.err.find(text), result.err.rfind(text)) << result.err;
  }
}

// More bad ones than a group has places, at the ends and between.
TEST(CliBatch, AnswersAndErrorsAreInTheirLinesOrder) {
  std::string input;
  for (int i = 0; i < 60; ++i) input += i % 3 == 1 ? "{\"prompt\": \"p\"}\n" : "{}\n";
  const ProgramResult result = Batch(input, {"-q"});
  EXPECT_EQ(result.exit_code, 1);
  const std::vector<Json> lines = JsonLines(result.out);
  ASSERT_EQ(lines.size(), 60U);
  for (size_t i = 0; i < lines.size(); ++i) {
    EXPECT_EQ(lines[i]["index"], i);
    EXPECT_EQ(lines[i].contains("error"), i % 3 != 1) << i;
  }
}

}  // namespace
}  // namespace kvrun
