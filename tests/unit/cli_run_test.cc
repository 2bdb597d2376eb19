// kvrun run, of one prompt.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "tests/support/cli_fixture.h"

namespace kvrun {
namespace {

using testing::Cli;
using testing::Contains;
using testing::Json;
using testing::JsonLines;

TEST(CliRun, TextGoesToStdoutAndStatisticsToStderr) {
  const ProgramResult result = Cli({"run", "-m", "toy", "-p", "hello"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, "6:<bos>hello\n");
  for (const char* part : {"\nspeed    prompt 6 tokens at ", ", answer 12 tokens at ", "\nmemory   KV ",
                           " in all\nend      the model ended its text\n"}) {
    EXPECT_PRED2(Contains, result.err, part);
  }
}

TEST(CliRun, StatisticsAreThreeLinesAndTheRestWithVerbose) {
  const auto lines = [](const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"run", "-m", "toy", "-p", "hello"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const std::string err = Cli(arguments).err;
    const size_t at = err.find("\nspeed ");
    return at == err.npos ? std::string() : err.substr(at + 1);
  };
  const std::string brief = lines({});
  EXPECT_EQ(std::count(brief.begin(), brief.end(), '\n'), 3) << brief;
  EXPECT_FALSE(Contains(brief, "Fake auto")) << brief;
  const std::string all = lines({"-v"});
  EXPECT_PRED2(Contains, all, "device   Fake auto");
  EXPECT_PRED2(Contains, all, "weights 1.0 MiB");
  EXPECT_EQ(lines({"-q", "-v"}), "");
  EXPECT_EQ(lines({"--json", "-v"}), "");
}

TEST(CliRun, TheLastLineSaysWhyTheAnswerEnded) {
  const auto end = [](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "run");
    const std::string err = Cli(arguments).err;
    return err.substr(std::min(err.rfind("end      "), err.size()));
  };
  EXPECT_EQ(end({"-m", "toy", "-p", "hello", "-n", "2"}),
            "end      the limit of 2 tokens is reached (-n); -n -1 goes on until the model ends\n");
  EXPECT_EQ(end({"-m", "toy", "-p", "hello", "-n", "1"}),
            "end      the limit of 1 token is reached (-n); -n -1 goes on until the model ends\n");
  EXPECT_EQ(end({"-m", "toy", "-p", "hello", "--stop", ":"}), "end      a text of --stop was reached\n");
  EXPECT_EQ(end({"-m", "endless", "-p", "hello", "-n", "-1", "-c", "20"}),
            "end      the context of 20 tokens is full; --ctx N makes it larger\n");
}

TEST(CliRun, NumbersTakeTheFormsThatPeopleWrite) {
  const auto stats = [](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"run", "-m", "toy", "-p", "hello", "--json"});
    const ProgramResult result = Cli(arguments);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return Json::parse(result.out, nullptr, false);
  };
  EXPECT_EQ(stats({"-c", "1k"})["memory"]["kv"], stats({"--ctx", "1024"})["memory"]["kv"]);
  EXPECT_EQ(stats({"-c", "2K"})["memory"]["kv"], stats({"--ctx", "2048"})["memory"]["kv"]);
  EXPECT_EQ(stats({"-n", "-1"})["text"], stats({"-n", "0"})["text"]);
  for (const char* bad : {"k", "1.5k", "8kk", "8 k", "-1k", "99999999999m"})
    EXPECT_EQ(Cli({"run", "-m", "toy", "-p", "x", "-c", bad}).exit_code, 2) << bad;
  EXPECT_EQ(Cli({"run", "-m", "toy", "-p", "x", "-n", "-2"}).exit_code, 2);
}

TEST(CliRun, ARandomSeedIsPrintedAndAnother) {
  const auto seed = [](const std::string& err) {
    const std::string before = "kvrun: note: the seed is ";
    const size_t at = err.find(before);
    return at == err.npos ? "" : err.substr(at + before.size(), err.find(';', at) - at - before.size());
  };
  const ProgramResult first = Cli({"run", "-m", "toy", "-p", "x", "--temp", "1", "--seed", "-1"});
  const ProgramResult second = Cli({"run", "-m", "toy", "-p", "x", "--temp", "1", "--seed", "-1"});
  EXPECT_NE(seed(first.err), "") << first.err;
  EXPECT_NE(seed(first.err), seed(second.err));
  const ProgramResult again = Cli({"run", "-m", "toy", "-p", "x", "--temp", "1", "--seed", seed(first.err)});
  EXPECT_EQ(again.out, first.out);
  EXPECT_EQ(Cli({"run", "-m", "toy", "-p", "x", "--seed", "-2"}).exit_code, 2);
}

TEST(CliRun, AContextBeyondTrainingIsSaidBeforeLoading) {
  const ProgramResult beyond = Cli({"run", "-m", "toy", "-p", "x", "-c", "8k", "--progress", "always"});
  EXPECT_EQ(beyond.exit_code, 0);
  const size_t at = beyond.err.find("kvrun: note: 8192 tokens are beyond 4096\n");
  EXPECT_LT(at, beyond.err.find("loading")) << beyond.err;
  EXPECT_FALSE(Contains(Cli({"run", "-m", "toy", "-p", "x", "-c", "4k"}).err, "are beyond"));
  EXPECT_FALSE(Contains(Cli({"run", "-m", "toy", "-p", "x", "-c", "8k", "-q"}).err, "are beyond"));
  const TemporaryFolder folder;
  const std::string text = folder.Write("text", std::string(5000, 'a'));
  EXPECT_PRED2(Contains, Cli({"eval", "-m", "toy", "-f", text}).err, " tokens are beyond 4096\n");
}

TEST(CliRun, ThreadsAndExactActivationsReachTheEngine) {
  const std::vector<std::string> run = {"run", "-m", "toy", "-p", "hello"};
  const ProgramResult neither = Cli(run);
  EXPECT_FALSE(Contains(neither.err, "threads") || Contains(neither.err, "float activations")) << neither.err;
  std::vector<std::string> with_both = run;
  with_both.insert(with_both.end(), {"-v", "--device", "host", "--threads", "3", "--exact-activations"});
  const ProgramResult both = Cli(with_both);
  for (const char* part : {"Fake host", "note: 3 threads", "note: float activations"}) {
    EXPECT_PRED2(Contains, both.err, part);
  }
  const ProgramResult variables = Cli(run, {{"KVRUN_THREADS=1024", "KVRUN_EXACT_ACTIVATIONS=1"}, "", ""});
  EXPECT_PRED2(Contains, variables.err, "note: 1024 threads");
  EXPECT_PRED2(Contains, variables.err, "note: float activations");
  EXPECT_FALSE(Contains(variables.err, "measured again"));
  EXPECT_PRED2(Contains, Cli(run, {{"KVRUN_REMEASURE=1"}, "", ""}).err, "note: devices are measured again");
  const ProgramResult bench = Cli({"bench", "-m", "toy", "-p", "8", "--threads", "2", "--exact-activations"});
  EXPECT_PRED2(Contains, bench.err, "note: 2 threads");
  for (const char* threads : {"1025", "-1", "many"}) {
    const ProgramResult refused = Cli(run, {{fmt::format("KVRUN_THREADS={}", threads)}, "", ""});
    EXPECT_EQ(refused.exit_code, 2) << threads;
    EXPECT_PRED2(Contains, refused.err, "KVRUN_THREADS");
  }
}

TEST(CliRun, PenaltiesReachTheLibrary) {
  const std::vector<std::string> run = {"run", "-m", "toy", "-p", "hello"};
  std::vector<std::string> with_both = run;
  with_both.insert(with_both.end(), {"--presence-penalty", "0.5", "--frequency-penalty", "-1.25"});
  EXPECT_EQ(Cli(with_both).out, "6:pp=0.5,fp=-1.25;<bos>hello\n");
  EXPECT_EQ(Cli(run, {{"KVRUN_PRESENCE_PENALTY=2"}, "", ""}).out, "6:pp=2,fp=0;<bos>hello\n");
  for (const char* option : {"--presence-penalty", "--frequency-penalty"}) {
    for (const char* bad : {"2.5", "-2.5", "nan", "much"}) {
      std::vector<std::string> refused = run;
      refused.insert(refused.end(), {option, bad});
      const ProgramResult result = Cli(refused);
      EXPECT_EQ(result.exit_code, 2) << bad;
      EXPECT_PRED2(Contains, result.err, option);
    }
  }
}

TEST(CliRun, JsonLinesComeTokenByTokenAndEndAsJsonDoes) {
  const std::vector<std::string> arguments = {"run", "-m", "nobos", "-p", "a\xc3\xa9", "-n", "5"};
  std::vector<std::string> streamed = arguments;
  streamed.push_back("--json-lines");
  const ProgramResult result = Cli(streamed);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const std::vector<Json> lines = JsonLines(result.out);
  // "3:a" and a character of two tokens: the first of them has no text yet.
  ASSERT_EQ(lines.size(), 6U) << result.out;
  EXPECT_EQ(lines[0], Json({{"text", "3"}, {"token", '3'}}));
  EXPECT_EQ(lines[3], Json({{"text", ""}, {"token", 0xc3}}));
  EXPECT_EQ(lines[4], Json({{"text", "\xc3\xa9"}, {"token", 0xa9}}));
  std::vector<std::string> at_once = arguments;
  at_once.push_back("--json");
  const Json whole = Json::parse(Cli(at_once).out);
  for (const char* key : {"text", "tokens", "finish", "prompt_tokens"}) EXPECT_EQ(lines[5][key], whole[key]);
  EXPECT_EQ(lines[5].size(), whole.size());
  // What was held back to the end is text without a token.
  const std::vector<Json> held =
      JsonLines(Cli({"run", "-m", "nobos", "-p", "a\xc3\xa9", "-n", "4", "--json-lines"}).out);
  ASSERT_EQ(held.size(), 6U);
  EXPECT_TRUE(held[4]["token"].is_null());
}

TEST(CliRun, FailuresAreALineOfJsonLinesToo) {
  const ProgramResult failed = Cli({"run", "-m", "missing", "-p", "x", "--json-lines"});
  EXPECT_EQ(failed.exit_code, 1);
  EXPECT_EQ(Json::parse(failed.out, nullptr, false)["error"]["status"], "not found") << failed.out;
  for (const std::vector<std::string>& bad :
       std::vector<std::vector<std::string>>{{"run", "-m", "toy", "--json-lines"},
                                             {"run", "-m", "toy", "-p", "x", "--json-lines", "--no-such"}}) {
    const ProgramResult refused = Cli(bad);
    EXPECT_EQ(refused.exit_code, 2);
    EXPECT_TRUE(Json::parse(refused.out, nullptr, false).contains("error")) << refused.out;
  }
}

TEST(CliRun, LogprobsAreInJsonAlone) {
  const Json object =
      Json::parse(Cli({"run", "-m", "nobos", "-p", "ab", "-n", "3", "--json", "--logprobs", "2"}).out);
  ASSERT_EQ(object["logprobs"].size(), 3U);
  EXPECT_EQ(object["logprobs"][0], Json::parse(R"({"token": 50, "text": "2", "logprob": -0.5, "top": [
                {"token": 50, "text": "2", "logprob": -0.5}, {"token": 51, "text": "3", "logprob": -1.5}]})"));
  const std::vector<Json> lines =
      JsonLines(Cli({"run", "-m", "nobos", "-p", "ab", "-n", "1", "--json-lines", "--logprobs", "1"}).out);
  EXPECT_EQ(lines[0], Json::parse(R"({"text": "2", "token": 50, "logprob": -0.5,
                                      "top": [{"token": 50, "text": "2", "logprob": -0.5}]})"));
  EXPECT_FALSE(Json::parse(Cli({"run", "-m", "nobos", "-p", "ab", "--json"}).out).contains("logprobs"));
  const ProgramResult text = Cli({"run", "-m", "nobos", "-p", "ab", "--logprobs", "2"});
  EXPECT_EQ(text.exit_code, 2);
  EXPECT_PRED2(Contains, text.err, "--logprobs goes into JSON");
  EXPECT_EQ(Cli({"run", "-m", "nobos", "-p", "ab", "--json", "--logprobs", "21"}).exit_code, 2);
}

TEST(CliRun, QuietSaysNothingBesidesTheText) {
  const ProgramResult result = Cli({"run", "-m", "toy", "-p", "hello", "--quiet"});
  EXPECT_EQ(result.out, "6:<bos>hello\n");
  EXPECT_EQ(result.err, "");
}

TEST(CliRun, TheTextEndsWithOneLineEnd) {
  const std::vector<std::string> run = {"run", "-m", "nobos", "-q", "-p"};
  const auto out = [&](const std::string& prompt, const std::vector<std::string>& more = {}) {
    std::vector<std::string> arguments = run;
    arguments.push_back(prompt);
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Cli(arguments).out;
  };
  EXPECT_EQ(out("ab"), "2:ab\n");
  EXPECT_EQ(out("ab\n"), "3:ab\n") << "it has one already";
  EXPECT_EQ(out("ab\n\n"), "4:ab\n\n");
  EXPECT_EQ(Json::parse(out("ab", {"--json"}))["text"], "2:ab") << "as it was generated";
  const std::vector<Json> lines = JsonLines(out("ab", {"--json-lines"}));
  EXPECT_EQ(lines.back()["text"], "2:ab");
  EXPECT_EQ(lines.size(), 5U);
}

TEST(CliRun, JsonIsOneObject) {
  const ProgramResult result = Cli({"run", "-m", "nobos", "-p", "abc", "--json", "--profile", "-n", "4"});
  const std::vector<Json> lines = JsonLines(result.out);
  ASSERT_EQ(lines.size(), 1U) << result.out;
  const Json& object = lines[0];
  EXPECT_EQ(object["text"], "3:ab");
  EXPECT_EQ(object["tokens"], Json({'3', ':', 'a', 'b'}));
  EXPECT_EQ(object["finish"], "length");
  EXPECT_EQ(object["prompt_tokens"], 3);
  EXPECT_EQ(object["prefill_tps"], 100.0);
  EXPECT_EQ(object["decode_tps"], 10.0);
  EXPECT_EQ(object["ttft_ms"], 5.0);
  EXPECT_EQ(object["device"], "Fake auto");
  EXPECT_EQ(object["memory"]["weights"], 1048576);
  EXPECT_EQ(object["operations"][0]["name"], "matvec");
}

TEST(CliRun, JsonSurvivesTextThatIsNotUtf8) {
  const ProgramResult result = Cli({"run", "-m", "nobos", "-p", "a\xC3", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(Json::parse(result.out)["text"], "2:a\xEF\xBF\xBD");
}

TEST(CliRun, TheQuestionFollowsTheFile) {
  const TemporaryFolder folder;
  const std::string file = folder.Write("text", "F\n");
  EXPECT_EQ(Cli({"run", "-m", "nobos-transcript", "-p", "Q", "-f", file}).out, "[F\n\n\nQ]\n");
  EXPECT_EQ(Cli({"run", "-m", "nobos-transcript", "-f", file}).out, "[F\n]\n");
}

TEST(CliRun, SeveralFilesAreReadInTheirOrder) {
  const TemporaryFolder folder;
  const std::string a = folder.Write("a", "A\n");
  const std::string b = folder.Write("b", "B");
  const ProgramInput typed{{}, "typed", ""};
  EXPECT_EQ(Cli({"run", "-m", "nobos-transcript", "-f", b, "-f", a}).out, "[B\n\nA\n]\n");
  EXPECT_EQ(Cli({"run", "-m", "nobos-transcript", "-f", a, "-p", "Q", "-f", "-", "--file", b}, typed).out,
            "[A\n\n\ntyped\n\nB\n\nQ]\n");
  const ProgramResult ids = Cli({"tokenize", "-m", "toy", "-f", a, "-f", b});
  EXPECT_EQ(ids.out, "65 10 10 10 66\n") << ids.err;
}

TEST(CliRun, StandardInputIsReadOnce) {
  for (const char* command : {"run", "tokenize", "eval"}) {
    const ProgramResult result = Cli({command, "-m", "toy", "-f", "-", "-f", "-"}, {{}, "typed", ""});
    EXPECT_EQ(result.exit_code, 2) << command;
    EXPECT_PRED2(Contains, result.err, "standard input can be read only once");
  }
  const ProgramResult empty = Cli({"run", "-m", "toy", "-p", "Q", "-f", ""});
  EXPECT_EQ(empty.exit_code, 2);
  EXPECT_PRED2(Contains, empty.err, "--file: it is empty");
}

TEST(CliRun, ADashIsStandardInput) {
  const ProgramResult result = Cli({"run", "-m", "nobos-transcript", "-f", "-"}, {{}, "typed", ""});
  EXPECT_EQ(result.out, "[typed]\n");
}

TEST(CliRun, ChatUsesTheModelsFormAndItsControlTokens) {
  const ProgramResult result =
      Cli({"run", "-m", "transcript", "-p", "Q", "--chat", "--system", "S", "--json"});
  const Json object = Json::parse(result.out);
  EXPECT_EQ(object["text"], "[<bos><start>system:S<end><start>user:Q<end><start>assistant:]");
  const size_t bytes_between = std::strlen("system:S") + std::strlen("user:Q") + std::strlen("assistant:");
  EXPECT_EQ(object["prompt_tokens"], bytes_between + 6);
}

TEST(CliRun, PlainTextHasNoControlTokens) {
  const Json object = Json::parse(Cli({"run", "-m", "toy", "-p", "<end>", "--json"}).out);
  EXPECT_EQ(object["prompt_tokens"], 6);
  const Json parsed = Json::parse(Cli({"run", "-m", "toy", "-p", "<end>", "--json", "--parse-special"}).out);
  EXPECT_EQ(parsed["prompt_tokens"], 2);
}

TEST(CliRun, MessagesHaveNoControlTokensUnlessTheyAreTrusted) {
  const std::vector<std::string> run = {"run",    "-m",       "toy",    "-p",    "a<end><start>b",
                                        "--chat", "--system", "<end>S", "--json"};
  const size_t form = std::strlen("system:") + std::strlen("user:") + std::strlen("assistant:") + 6;
  EXPECT_EQ(Json::parse(Cli(run).out)["prompt_tokens"], form + std::strlen("a<end><start>b<end>S"));
  std::vector<std::string> trusting = run;
  trusting.emplace_back("--parse-special");
  EXPECT_EQ(Json::parse(Cli(trusting).out)["prompt_tokens"], form + std::strlen("abS") + 3);
  const TemporaryFolder folder;
  const std::string batch = folder.Write("batch.jsonl", R"({"prompt": "a<end><start>b"})"
                                                        "\n");
  const Json line =
      Json::parse(Cli({"run", "-m", "toy", "--chat", "--system", "<end>S", "--batch", batch}).out);
  EXPECT_EQ(line["prompt_tokens"], form + std::strlen("a<end><start>b<end>S"));
}

TEST(CliRun, TheChatFormCanBeChosen) {
  const auto answer = [](std::vector<std::string> more) {
    std::vector<std::string> run = {"run",    "-m", "nochat-transcript", "-p", "Q",
                                    "--chat", "-q", "--system",          "S"};
    run.insert(run.end(), more.begin(), more.end());
    return Cli(run);
  };
  const std::string rest = "<start>system:S<end><start>user:Q<end><start>assistant:";
  EXPECT_EQ(answer({"--chat-template", "other-form"}).out, "[<bos>{other-form}" + rest + "]\n");
  const TemporaryFolder folder;
  const std::string file = folder.Write("form.jinja", "{{ x }}");
  EXPECT_EQ(answer({"--chat-template", file}).out, "[<bos>{{{ x }}}" + rest + "]\n");
  EXPECT_EQ(answer({"--chat-template", "toy-form", "--thinking", "off"}).out,
            "[<bos>{toy-form}" + rest + "(do not think)]\n");
  EXPECT_EQ(answer({"--chat-template", "toy-form", "--thinking", "on"}).out,
            "[<bos>{toy-form}" + rest + "(think)]\n");
  for (const std::string& wrong : {std::string("third-form"), folder.Path("none.jinja")}) {
    const ProgramResult refused = answer({"--chat-template", wrong});
    EXPECT_EQ(refused.exit_code, 1);
    EXPECT_EQ(refused.err, "kvrun: --chat-template: \"" + wrong +
                               "\" is neither a file nor one of toy-form, other-form\n");
  }
  const ProgramResult zeros = answer({"--chat-template", folder.Write("zeros", std::string(3, '\0'))});
  EXPECT_EQ(zeros.exit_code, 1);
  EXPECT_PRED2(Contains, zeros.err, "is not a Jinja template");
}

TEST(CliRun, OptionsOfTheChatFormNeedAChat) {
  for (const char* option : {"--system", "--chat-template", "--thinking"}) {
    const ProgramResult result = Cli({"run", "-m", "toy", "-p", "x", option, "on"});
    EXPECT_EQ(result.exit_code, 2) << option;
    EXPECT_PRED2(Contains, result.err, std::string(option) + " needs --chat");
  }
}

TEST(CliRun, BytesThatTheVocabularyLacksAreCounted) {
  EXPECT_PRED2(Contains, Cli({"run", "-m", "lossy", "-p", "a\xc3\xa9\xc3"}).err,
               "kvrun: note: 3 bytes of the prompt are not in the model's vocabulary");
  EXPECT_PRED2(Contains, Cli({"run", "-m", "lossy", "-p", "a", "--chat", "--system", "\xff"}).err,
               "kvrun: note: 1 byte of the system message is not in the model's vocabulary");
  const ProgramResult tokenize = Cli({"tokenize", "-m", "lossy", "-p", "\xc3\xa9"});
  EXPECT_EQ(tokenize.err,
            "kvrun: note: 2 bytes of the text are not in the model's vocabulary; the model does "
            "not see them\n");
  const ProgramResult chat = Cli({"chat", "-m", "lossy"}, {{}, "one\n\xc3\xa9\n", ""});
  EXPECT_PRED2(Contains, chat.err, "note: 2 bytes of the message are not in the model's vocabulary");
  EXPECT_EQ(Cli({"run", "-m", "lossy", "-p", "\xc3", "--quiet"}).err, "");
  EXPECT_FALSE(Contains(Cli({"run", "-m", "toy", "-p", "\xc3"}).err, "vocabulary"));
}

TEST(CliRun, UnknownChatFormFails) {
  const ProgramResult result = Cli({"run", "-m", "nochat", "-p", "Q", "--chat"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.err, "kvrun: the chat form of this model is not known\n");
}

TEST(CliRun, SamplerOptionsArrive) {
  const ProgramResult result =
      Cli({"run", "-m", "nobos", "-p", "x", "--temp", "0.5", "--top-k", "7", "--top-p", "0.9", "--min-p",
           "0.1", "--repeat-penalty", "1.5", "--repeat-window", "9", "--seed", "18446744073709551615"});
  EXPECT_EQ(result.out, "1:t=0.5,k=7,p=0.9,m=0.1,r=1.5,w=9,s=18446744073709551615;x\n");
}

TEST(CliRun, StopStringsEndTheText) {
  const ProgramResult result =
      Cli({"run", "-m", "nobos", "-p", "hello", "--json", "--stop", "zz", "--stop", "llo"});
  EXPECT_EQ(Json::parse(result.out)["text"], "5:he");
  EXPECT_EQ(Json::parse(result.out)["finish"], "stop");
}

TEST(CliRun, IgnoreEndGoesOn) {
  EXPECT_EQ(Cli({"run", "-m", "nobos", "-p", "x", "--ignore-end", "-n", "6"}).out, "1:x!!!\n");
}

TEST(CliRun, ContextIsWhatTheJobNeedsUnlessGiven) {
  const auto kv_bytes = [](const std::vector<std::string>& extra) {
    std::vector<std::string> arguments = {"run", "-m", "nobos", "-p", "12345", "-n", "10", "--json"};
    arguments.insert(arguments.end(), extra.begin(), extra.end());
    return Json::parse(Cli(arguments).out)["memory"]["kv"].get<int>();
  };
  EXPECT_EQ(kv_bytes({}), 15 * 4);
  EXPECT_EQ(kv_bytes({"--kv-type", "f32"}), 15 * 8);
  EXPECT_EQ(kv_bytes({"--ctx", "100"}), 100 * 4);
  EXPECT_EQ(kv_bytes({"-n", "100000"}), 4096 * 4);
  EXPECT_EQ(kv_bytes({"-n", "0"}), 4096 * 4);
}

TEST(CliRun, ContextFullIsAnEndAndNotAFailure) {
  const ProgramResult result = Cli({"run", "-m", "nobos-endless", "-p", "123", "--ctx", "8", "--json"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(Json::parse(result.out)["finish"], "context_full");
}

TEST(CliRun, APromptLongerThanTheContextFails) {
  const ProgramResult given = Cli({"run", "-m", "toy", "-p", "123456789", "--ctx", "5"});
  EXPECT_EQ(given.exit_code, 1);
  EXPECT_PRED2(Contains, given.err, "kvrun: the prompt has 10 tokens, more than the context of 5");
  const ProgramResult trained = Cli({"run", "-m", "small", "-p", std::string(64, 'x')});
  EXPECT_EQ(trained.exit_code, 1);
  EXPECT_PRED2(Contains, trained.err, "65 tokens, more than the 64");
}

TEST(CliRun, AnEmptyPromptNeedsABeginning) {
  EXPECT_EQ(Cli({"run", "-m", "toy", "-p", ""}).exit_code, 0);
  const ProgramResult result = Cli({"run", "-m", "nobos", "-p", ""});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_PRED2(Contains, result.err, "the prompt is empty");
}

TEST(CliRun, PromptsMayLookLikeOptionsOrLists) {
  EXPECT_EQ(Cli({"run", "-m", "nobos-transcript", "-p", "--temp"}).out, "[--temp]\n");
  EXPECT_EQ(Cli({"run", "-m", "nobos-transcript", "-p", "[a,b]"}).out, "[[a,b]]\n");
  EXPECT_EQ(Cli({"run", "-m", "nobos-transcript", "-p", "{}"}).out, "[{}]\n");
}

}  // namespace
}  // namespace kvrun
