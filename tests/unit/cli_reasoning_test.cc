// What a model thinks, as the commands show it. The toy "pondering" thinks "Hm: 1 + 1." before each answer.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "tests/support/cli_fixture.h"

namespace kvrun {
namespace {

using testing::Cli;
using testing::Contains;
using testing::Json;
using testing::JsonLines;

constexpr const char* kThoughts = "Hm: 1 + 1.";

std::vector<std::string> Arguments(const std::vector<std::string>& more) {
  std::vector<std::string> arguments = {"run", "-m", "pondering-transcript", "-p", "Q", "-q"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

std::string Answer(const std::string& thinking = "") {
  return fmt::format("[<bos><start>system:be good<end><start>user:Q<end><start>assistant:{}]", thinking);
}

std::string Marked(const std::string& thoughts) { return fmt::format("<think>\n{}\n</think>", thoughts); }

TEST(CliReasoning, StandsBetweenMarksWhereTheOutputIsNoTerminal) {
  EXPECT_EQ(Cli(Arguments({"--chat"})).out, Marked(kThoughts) + "\n\n" + Answer() + "\n");
  EXPECT_EQ(Cli(Arguments({"--chat", "--thinking", "off"})).out, Answer("(do not think)") + "\n");
  EXPECT_EQ(Cli(Arguments({"--chat", "-n", "12"})).out, Marked("Hm: ") + "\n") << "it never ended";
}

TEST(CliReasoning, IsHiddenWhereThatIsAsked) {
  EXPECT_EQ(Cli(Arguments({"--chat", "--thinking", "hide"})).out, Answer() + "\n");
  EXPECT_EQ(Cli(Arguments({"--chat", "--thinking", "hide", "-n", "12"})).out, "\n");
  EXPECT_EQ(Cli({"chat", "-m", "pondering-transcript", "-q", "--thinking", "hide"}, {{}, "Q\n", ""}).out,
            Answer() + "\n");
  const ProgramResult wrong = Cli(Arguments({"--chat", "--thinking", "hidden"}));
  EXPECT_EQ(wrong.exit_code, 2);
  EXPECT_PRED2(Contains, wrong.err, "hide");
}

TEST(CliReasoning, IsApartInJson) {
  const Json object = Json::parse(Cli(Arguments({"--chat", "--json"})).out);
  EXPECT_EQ(object["text"], Answer());
  EXPECT_EQ(object["reasoning"], kThoughts);
  EXPECT_EQ(object["tokens"].size(), Marked(kThoughts).size() + 2 + Answer().size()) << "of both";
  const Json hidden = Json::parse(Cli(Arguments({"--chat", "--json", "--thinking", "hide"})).out);
  EXPECT_EQ(hidden["text"], Answer());
  EXPECT_FALSE(hidden.contains("reasoning"));
  const Json none = Json::parse(Cli(Arguments({"--chat", "--json", "--thinking", "off"})).out);
  EXPECT_FALSE(none.contains("reasoning"));
}

TEST(CliReasoning, IsOfChatsAlone) {
  const Json object = Json::parse(Cli(Arguments({"--json"})).out);
  EXPECT_EQ(object["text"], Marked(kThoughts) + "\n\n[<bos>Q]");
  EXPECT_FALSE(object.contains("reasoning"));
}

struct Streamed {
  std::string text;
  std::string reasoning;
  std::vector<int32_t> tokens;
};

Streamed Join(const std::vector<Json>& lines) {
  Streamed joined;
  for (const Json& line : lines) {
    if (line.contains("finish")) continue;
    EXPECT_TRUE(!line.contains("reasoning") || line["reasoning"] == true) << line;
    (line.contains("reasoning") ? joined.reasoning : joined.text) += line["text"].get<std::string>();
    if (!line["token"].is_null()) joined.tokens.push_back(line["token"]);
  }
  return joined;
}

TEST(CliReasoning, IsSaidOfEachPieceAsItComes) {
  const std::vector<Json> lines = JsonLines(Cli(Arguments({"--chat", "--json-lines"})).out);
  const Streamed joined = Join(lines);
  EXPECT_EQ(joined.text, Answer());
  EXPECT_EQ(joined.reasoning, kThoughts);
  EXPECT_EQ(Json(joined.tokens), lines.back()["tokens"]) << "each once";
  EXPECT_EQ(lines.back()["reasoning"], kThoughts);
  const Streamed hidden =
      Join(JsonLines(Cli(Arguments({"--chat", "--json-lines", "--thinking", "hide"})).out));
  EXPECT_EQ(hidden.text, Answer());
  EXPECT_EQ(hidden.reasoning, "");
}

TEST(CliReasoning, OfABatchIsThatOfItsChats) {
  const std::string lines = R"({"prompt": "Q"})"
                            "\n"
                            R"({"messages": [{"role": "user", "content": "Q"}]})"
                            "\n";
  const std::vector<std::string> run = {"run", "-m", "pondering-transcript", "-q", "--batch", "-"};
  const std::vector<Json> answers = JsonLines(Cli(run, {{}, lines, ""}).out);
  ASSERT_EQ(answers.size(), 2U);
  EXPECT_EQ(answers[0]["text"], Marked(kThoughts) + "\n\n[<bos>Q]");
  EXPECT_FALSE(answers[0].contains("reasoning"));
  EXPECT_EQ(answers[1]["text"], Answer());
  EXPECT_EQ(answers[1]["reasoning"], kThoughts);
  std::vector<std::string> hiding = run;
  hiding.insert(hiding.end(), {"--chat", "--thinking", "hide", "--json-lines"});
  const std::string hidden = Cli(hiding, {{}, lines, ""}).out;
  EXPECT_FALSE(Contains(hidden, "reasoning")) << hidden;
  EXPECT_FALSE(Contains(hidden, "\"Hm")) << hidden;
}

TEST(CliReasoning, OfPartsIsNotJoined) {
  const TemporaryFolder folder;
  const std::string document = folder.Write("long.txt", std::string(600, 'x'));
  const auto ask = [&](const std::string& model) {
    const ProgramResult result = Cli({"run", "-m", model, "-f", document, "-p", "Why?", "--chat", "--long",
                                      "split", "--ctx", "500", "-n", "60", "--json"});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return Json::parse(result.out);
  };
  const Json object = ask("pondering");
  EXPECT_EQ(object["reasoning"], kThoughts);
  ASSERT_EQ(object["parts"].size(), 2U);
  for (const Json& part : object["parts"]) {
    EXPECT_EQ(part["reasoning"], kThoughts);
    EXPECT_FALSE(Contains(part["text"], "Hm"));
  }
  const Json without = ask("toy");
  EXPECT_EQ(object["text"], without["text"]);
  EXPECT_EQ(object["prompt_tokens"], without["prompt_tokens"]) << "of the answers alone";
}

// As the toy's template has it.
TEST(CliReasoning, OfEarlierAnswersIsNotReadAgain) {
  const std::string first = "<bos><start>system:be good<end><start>user:one<end><start>assistant:";
  const std::string second = first + "[" + first + "]<end><start>user:two<end><start>assistant:";
  const ProgramResult result =
      Cli({"chat", "-m", "pondering-transcript", "-q", "--thinking", "hide"}, {{}, "one\ntwo\n", ""});
  EXPECT_EQ(result.out, "[" + first + "]\n[" + second + "]\n");
}

TEST(CliReasoning, IsNotSaved) {
  const TemporaryFolder folder;
  const std::string path = folder.Path("saved.md");
  const ProgramResult result =
      Cli({"chat", "-m", "pondering", "-q", "--temp", "0"}, {{}, "one\n/save " + path + "\n", ""});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_PRED2(Contains, result.out, Marked(kThoughts));
  const std::string saved = ReadWholeFile(path);
  EXPECT_PRED2(Contains, saved, "## Assistant");
  EXPECT_FALSE(Contains(saved, "Hm")) << saved;
}

std::string OnTerminal(const std::string& arguments, const std::string& environment) {
  return RunShell(fmt::format("env -u TERM -u NO_COLOR SHELL=/bin/sh {} script -q -c \"{} {}\" /dev/null "
                              "</dev/null",
                              environment, ShellWords(KVRUN_FAKE_PROGRAM), arguments))
      .out;
}

TEST(CliReasoning, IsDimmedOnATerminalWithColours) {
  if (::access("/usr/bin/script", X_OK) != 0) GTEST_SKIP() << "no /usr/bin/script";
  const std::string run = "run -m pondering -p Q -q --chat --thinking auto";
  const std::string dimmed = OnTerminal(run, "TERM=xterm");
  EXPECT_PRED2(Contains, dimmed, "\x1b[2mH\x1b[0m");
  EXPECT_FALSE(Contains(dimmed, "<think>")) << dimmed;
  EXPECT_PRED2(Contains, dimmed, "\x1b[0m\r\n\r\n") << "then the answer";
  const std::string plain = OnTerminal(run, "TERM=xterm NO_COLOR=1");
  EXPECT_FALSE(Contains(plain, "\x1b[2m")) << plain;
  EXPECT_PRED2(Contains, plain, "<think>\r\nHm: 1 + 1.\r\n</think>\r\n\r\n");
}

}  // namespace
}  // namespace kvrun
