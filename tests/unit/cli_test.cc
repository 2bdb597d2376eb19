// The command-line program, run as a person runs it, with a toy in the library's place
// (tests/support/fake_kvrun.cc says what the toy does: its answer is "LENGTH:" and the end of its context).
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include <nlohmann/json.hpp>

#include "tests/support/program_runner.h"

namespace kvrun {
namespace {

using Json = nlohmann::json;

bool Contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

ProgramResult Cli(const std::vector<std::string>& arguments, const ProgramInput& input = {}) {
  return RunProgram(KVRUN_FAKE_PROGRAM, arguments, input);
}

std::vector<Json> JsonLines(const std::string& text) {
  std::vector<Json> lines;
  for (size_t start = 0; start < text.size();) {
    const size_t end = text.find('\n', start);
    lines.push_back(Json::parse(text.substr(start, end - start), nullptr, false));
    start = end + 1;
  }
  return lines;
}

std::vector<float> Floats(const std::string& path) {
  const std::string bytes = ReadWholeFile(path);
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(float));
  return values;
}

size_t FilesIn(const std::string& folder) {
  return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(folder), {}));
}

// ---- run ------------------------------------------------------------------------------------------------

TEST(CliRun, TextGoesToStdoutAndStatisticsToStderr) {
  const ProgramResult result = Cli({"run", "-m", "toy", "-p", "hello"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, "6:<bos>hello");
  for (const char* part : {"Fake auto", "CPU", "prefill", "decode", "weights 1.0 MiB", "finish   end"}) {
    EXPECT_PRED2(Contains, result.err, part);
  }
}

TEST(CliRun, QuietSaysNothingBesidesTheText) {
  const ProgramResult result = Cli({"run", "-m", "toy", "-p", "hello", "--quiet"});
  EXPECT_EQ(result.out, "6:<bos>hello");
  EXPECT_EQ(result.err, "");
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
  EXPECT_EQ(Cli({"run", "-m", "nobos-transcript", "-p", "Q", "-f", file}).out, "[F\n\n\nQ]");
  EXPECT_EQ(Cli({"run", "-m", "nobos-transcript", "-f", file}).out, "[F\n]");
}

TEST(CliRun, ADashIsStandardInput) {
  const ProgramResult result = Cli({"run", "-m", "nobos-transcript", "-f", "-"}, {{}, "typed", ""});
  EXPECT_EQ(result.out, "[typed]");
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
  EXPECT_EQ(result.out, "1:t=0.5,k=7,p=0.9,m=0.1,r=1.5,w=9,s=18446744073709551615;x");
}

TEST(CliRun, StopStringsEndTheText) {
  const ProgramResult result =
      Cli({"run", "-m", "nobos", "-p", "hello", "--json", "--stop", "zz", "--stop", "llo"});
  EXPECT_EQ(Json::parse(result.out)["text"], "5:he");
  EXPECT_EQ(Json::parse(result.out)["finish"], "stop");
}

TEST(CliRun, IgnoreEndGoesOn) {
  EXPECT_EQ(Cli({"run", "-m", "nobos", "-p", "x", "--ignore-end", "-n", "6"}).out, "1:x!!!");
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
  EXPECT_EQ(Cli({"run", "-m", "nobos-transcript", "-p", "--temp"}).out, "[--temp]");
  EXPECT_EQ(Cli({"run", "-m", "nobos-transcript", "-p", "[a,b]"}).out, "[[a,b]]");
  EXPECT_EQ(Cli({"run", "-m", "nobos-transcript", "-p", "{}"}).out, "[{}]");
}

// ---- failures -------------------------------------------------------------------------------------------

TEST(CliFailure, IsOneLineAndExitCodeOne) {
  for (const char* model : {"missing", "corrupt", "nodevice", "devicefail"}) {
    const ProgramResult result = Cli({"run", "-m", model, "-p", "x", "--quiet"});
    EXPECT_EQ(result.exit_code, 1) << model;
    EXPECT_EQ(result.out, "");
    EXPECT_TRUE(result.err.starts_with("kvrun: ")) << result.err;
    EXPECT_EQ(result.err.find('\n'), result.err.size() - 1) << result.err;
  }
}

TEST(CliFailure, IsAnObjectWithJson) {
  const ProgramResult result = Cli({"run", "-m", "corrupt", "-p", "x", "--json"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(Json::parse(result.out),
            Json({{"error", {{"status", "corrupt"}, {"message", "corrupt: bad magic"}}}}));
  EXPECT_EQ(result.err, "kvrun: corrupt: bad magic\n");
}

TEST(CliFailure, BadUsageIsExitCodeTwo) {
  const std::vector<std::vector<std::string>> bad = {
      {},
      {"fly"},
      {"run"},
      {"run", "-m", "toy"},
      {"run", "-p", "x"},
      {"run", "-m", "toy", "-p"},
      {"run", "-m", "toy", "-p", "x", "--no-such-option"},
      {"run", "-m", "toy", "-p", "x", "stray"},
      {"run", "-m", "toy", "-p", "x", "-n", "-1"},
      {"run", "-m", "toy", "-p", "x", "-n", "99999999999"},
      {"run", "-m", "toy", "-p", "x", "--temp", "warm"},
      {"run", "-m", "toy", "-p", "x", "--temp", "nan"},
      {"run", "-m", "toy", "-p", "x", "--top-p", "1.5"},
      {"run", "-m", "toy", "-p", "x", "--kv-type", "f8"},
      {"run", "-m", "toy", "-p", "x", "--stop", ""},
      {"run", "-m", "toy", "-p", "x", "--batch", "file"},
      {"run", "-m", "toy", "-p", "x", "--system", "S"},
      {"tokenize", "-m", "toy"},
      {"logits", "-m", "toy", "--ids", "file"},
      {"logits", "-m", "toy", "--out", "file"},
  };
  for (const auto& arguments : bad) {
    const ProgramResult result = Cli(arguments);
    EXPECT_EQ(result.exit_code, 2) << testing::PrintToString(arguments);
    EXPECT_EQ(result.out, "") << testing::PrintToString(arguments);
    EXPECT_TRUE(result.err.starts_with("kvrun: ")) << result.err;
  }
}

TEST(CliFailure, AFileThatCannotBeReadIsNamed) {
  const ProgramResult absent = Cli({"run", "-m", "toy", "-f", "/no/such/file"});
  EXPECT_EQ(absent.exit_code, 1);
  EXPECT_EQ(absent.err, "kvrun: cannot read /no/such/file: No such file or directory\n");
  EXPECT_EQ(Cli({"run", "-m", "toy", "-f", "/"}).exit_code, 1);
}

TEST(CliFailure, AFullStdoutIsSaid) {
  for (const std::vector<std::string>& arguments : {std::vector<std::string>{"run", "-m", "toy", "-p", "x"},
                                                    {"run", "-m", "toy", "-p", "x", "--json"},
                                                    {"tokenize", "-m", "toy", "-p", "x"},
                                                    {"info", "-m", "toy"},
                                                    {"--help"},
                                                    {"run", "--help"}}) {
    const ProgramResult result = Cli(arguments, {{}, "", "/dev/full"});
    EXPECT_EQ(result.exit_code, 1) << testing::PrintToString(arguments);
    EXPECT_PRED2(Contains, result.err, "cannot write to standard output: No space left on device");
  }
}

TEST(CliFailure, AClosedPipeEndsQuietly) {
  const std::string command =
      fmt::format("{{ {} run -m slow-endless -p x -n 500 --quiet; echo \"code $?\" >&2; }} | head -c 1",
                  KVRUN_FAKE_PROGRAM);
  const ProgramResult result = RunProgram("/bin/sh", {"-c", command});
  EXPECT_EQ(result.out, "x");
  EXPECT_EQ(result.err, "code 1\n");
}

TEST(CliFailure, AClosedStdoutIsSaid) {
  const ProgramResult result =
      RunProgram("/bin/sh", {"-c", fmt::format("exec {} run -m toy -p x --quiet >&-", KVRUN_FAKE_PROGRAM)});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_PRED2(Contains, result.err, "cannot write to standard output");
}

// ---- environment ----------------------------------------------------------------------------------------

TEST(CliEnvironment, GivesEveryKindOfOption) {
  const ProgramResult result =
      Cli({"run"}, {{"KVRUN_MODEL=nobos", "KVRUN_PROMPT=x", "KVRUN_TEMP=0.5", "KVRUN_SEED=3", "KVRUN_JSON=1",
                     "KVRUN_STOP=;", "KVRUN_CTX=100", "KVRUN_KV_TYPE=f32", "KVRUN_DEVICE=cpu7"},
                    "",
                    ""});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Json object = Json::parse(result.out);
  EXPECT_EQ(object["text"], "1:t=0.5,k=0,p=1,m=0,r=1,w=64,s=3");
  EXPECT_EQ(object["device"], "Fake cpu7");
  EXPECT_EQ(object["memory"]["kv"], 800);
}

TEST(CliEnvironment, TheCommandLineWins) {
  const ProgramResult result =
      Cli({"run", "-m", "nobos", "-p", "y", "--json=false", "-n", "2"},
          {{"KVRUN_MODEL=missing", "KVRUN_PROMPT=x", "KVRUN_JSON=1", "KVRUN_MAX_TOKENS=1"}, "", ""});
  EXPECT_EQ(result.out, "1:");
  EXPECT_EQ(result.exit_code, 0) << result.err;
}

TEST(CliEnvironment, ABadValueNamesTheVariable) {
  for (const char* entry : {"KVRUN_TEMP=warm", "KVRUN_CTX=-1", "KVRUN_JSON=maybe", "KVRUN_KV_TYPE=f8"}) {
    const ProgramResult result = Cli({"run", "-m", "toy", "-p", "x"}, {{entry}, "", ""});
    EXPECT_EQ(result.exit_code, 2);
    const std::string text(entry);
    EXPECT_PRED2(Contains, result.err, text.substr(0, text.find('=')));
    EXPECT_PRED2(Contains, result.err, text.substr(text.find('=') + 1));
  }
}

TEST(CliEnvironment, OptionsOfOtherCommandsDoNotMatter) {
  EXPECT_EQ(Cli({"devices"}, {{"KVRUN_TEMP=warm"}, "", ""}).exit_code, 0);
  EXPECT_EQ(Cli({"run", "-m", "toy", "-p", "x"}, {{"KVRUN_TEMP="}, "", ""}).exit_code, 0);
}

TEST(CliEnvironment, AnExcludedVariableGivesWay) {
  const TemporaryFolder folder;
  const std::string batch = folder.Write("batch", "{\"prompt\": \"x\"}\n");
  EXPECT_EQ(Cli({"run", "-m", "toy", "--batch", batch}, {{"KVRUN_PROMPT=y"}, "", ""}).exit_code, 0);
}

TEST(CliEnvironment, HelpNamesTheVariables) {
  const ProgramResult result = Cli({"run", "--help"});
  EXPECT_EQ(result.exit_code, 0);
  for (const char* name : {"KVRUN_MODEL", "KVRUN_TOP_K", "KVRUN_KV_TYPE", "KVRUN_JSON", "KVRUN_BATCH"}) {
    EXPECT_PRED2(Contains, result.out, name);
  }
}

// ---- batch ----------------------------------------------------------------------------------------------

TEST(CliBatch, AnswersInOrderInGroupsOfSixteen) {
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
    EXPECT_FALSE(lines[i].contains("device"));
  }
  EXPECT_PRED2(Contains, result.err, "prompts  17 to 20 of 20");
}

TEST(CliBatch, JsonAddsTheStatistics) {
  const ProgramResult result =
      Cli({"run", "-m", "nobos", "--batch", "-", "--json"}, {{}, "{\"prompt\": \"a\"}", ""});
  const std::vector<Json> lines = JsonLines(result.out);
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_EQ(lines[0]["decode_tps"], 10.0);
}

TEST(CliBatch, ABadLineIsNamed) {
  const std::string good = "{\"prompt\": \"a\"}\n";
  for (const char* bad : {"nonsense", "[1]", "{}", "{\"prompt\": 1}", "\"prompt\""}) {
    const ProgramResult result = Cli({"run", "-m", "toy", "--batch", "-"}, {{}, good + "\n" + bad, ""});
    EXPECT_EQ(result.exit_code, 1) << bad;
    EXPECT_EQ(result.out, "");
    EXPECT_PRED2(Contains, result.err, "standard input: line 3");
  }
  EXPECT_PRED2(Contains, Cli({"run", "-m", "toy", "--batch", "-"}).err, "no prompt");
  const ProgramResult too_long =
      Cli({"run", "-m", "toy", "--batch", "-", "--ctx", "3"}, {{}, good + "{\"prompt\": \"abcdef\"}", ""});
  EXPECT_PRED2(Contains, too_long.err, "line 2: the prompt has 7 tokens");
}

// ---- signals and progress -------------------------------------------------------------------------------

TEST(CliSignals, StopAnAnswerCleanly) {
  for (const int signal : {SIGINT, SIGTERM}) {
    RunningProgram program(KVRUN_FAKE_PROGRAM, {"run", "-m", "nobos-slow-endless", "-p", "x", "-n", "0"}, {});
    ASSERT_TRUE(program.WaitForOutput("xxx"));
    program.Signal(signal);
    const ProgramResult result = program.Finish();
    EXPECT_EQ(result.exit_code, 130);
    EXPECT_TRUE(result.out.starts_with("xxx"));
    EXPECT_PRED2(Contains, result.err, "finish   cancelled");
    EXPECT_PRED2(Contains, result.err, "decode");
  }
}

TEST(CliSignals, JsonStaysOneObject) {
  RunningProgram program(KVRUN_FAKE_PROGRAM,
                         {"run", "-m", "nobos-slow-endless", "-p", "x", "--json", "--progress", "always"},
                         {});
  ASSERT_TRUE(program.WaitForOutput("prefill: 1 of 1"));
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  program.Signal(SIGINT);
  const ProgramResult result = program.Finish();
  EXPECT_EQ(result.exit_code, 130);
  EXPECT_EQ(Json::parse(result.out)["finish"], "cancelled");
}

TEST(CliSignals, StopPrefillAndLoading) {
  for (const char* phase : {"loading", "prefill"}) {
    RunningProgram program(KVRUN_FAKE_PROGRAM,
                           {"run", "-m", "slow", "-p", std::string(1000, 'x'), "--progress", "always"}, {});
    ASSERT_TRUE(program.WaitForOutput(phase));
    program.Signal(SIGINT);
    const ProgramResult result = program.Finish();
    EXPECT_EQ(result.exit_code, 130) << phase;
    EXPECT_PRED2(Contains, result.err, "kvrun: interrupted");
    EXPECT_EQ(result.out, "");
  }
}

TEST(CliSignals, StopWaitingForStandardInput) {
  RunningProgram program(KVRUN_FAKE_PROGRAM, {"run", "-m", "toy", "-f", "-"}, {});
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  program.Signal(SIGINT);
  EXPECT_EQ(program.Finish().exit_code, 130);
}

TEST(CliProgress, ShowsAmountRateAndWhatIsLeft) {
  const ProgramResult result =
      Cli({"run", "-m", "slow", "-p", std::string(100, 'x'), "--progress", "always"});
  EXPECT_PRED2(Contains, result.err, "loading: 10.0 MiB of 10.0 MiB, 100 %, ");
  EXPECT_PRED2(Contains, result.err, "MiB/s");
  EXPECT_PRED2(Contains, result.err, "token/s, 1 s left");
  EXPECT_PRED2(Contains, result.err, "prefill: 101 of 101, 100 %");
  const ProgramResult silent = Cli({"run", "-m", "toy", "-p", "x"});
  EXPECT_EQ(silent.err.find("loading"), std::string::npos) << "no terminal, no progress";
}

// ---- chat -----------------------------------------------------------------------------------------------

TEST(CliChat, EveryTurnSeesTheWholeConversationOnce) {
  const ProgramResult result =
      Cli({"chat", "-m", "transcript", "--quiet"}, {{}, "one\n\ntwo\n/reset\nthree\n/exit\nnever", ""});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const std::string first = "<bos><start>system:be good<end><start>user:one<end><start>assistant:";
  const std::string second = first + "[" + first + "]<end><start>user:two<end><start>assistant:";
  const std::string third = "<bos><start>system:be good<end><start>user:three<end><start>assistant:";
  EXPECT_EQ(result.out, fmt::format("[{}]\n[{}]\n[{}]\n", first, second, third));
}

TEST(CliChat, AnAnswerThatWasCutIsFollowedByTheEndOfItsTurn) {
  // The answers are the lengths of the context: 32, then 3 of the answer, its end and 22 of the next turn.
  const ProgramResult length =
      Cli({"chat", "-m", "toy", "--quiet", "-n", "3", "--system", "S"}, {{}, "one\ntwo", ""});
  EXPECT_EQ(length.out, "32:\n57:\n");
  const ProgramResult stop =
      Cli({"chat", "-m", "toy", "--quiet", "--stop", ":", "--system", "S"}, {{}, "one\ntwo", ""});
  EXPECT_EQ(stop.out, "32\n56\n");
}

TEST(CliChat, AFullContextIsSaidAndResetHelps) {
  const ProgramResult result = Cli({"chat", "-m", "toy", "--ctx", "70", "--system", "S", "-n", "3"},
                                   {{}, "one\n" + std::string(200, 'x') + "\ntwo\n/reset\none\n", ""});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_PRED2(Contains, result.err, "does not fit");
  EXPECT_EQ(result.out, "32:\n57:\n32:\n") << "the message that did not fit counts as not said";
}

TEST(CliChat, InterruptStopsTheAnswerAndThenTheConversation) {
  RunningProgram program(KVRUN_FAKE_PROGRAM, {"chat", "-m", "slow-endless", "--quiet"}, {});
  program.Type("hello\n");
  ASSERT_TRUE(program.WaitForOutput("xxx"));
  program.Signal(SIGINT);
  ASSERT_TRUE(program.WaitForOutput("x\n"));
  program.Type("again\n");
  ASSERT_TRUE(program.WaitForOutput("x\nxxx"));
  program.Signal(SIGINT);
  ASSERT_TRUE(program.WaitForOutput("x\nxxx"));
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  program.Signal(SIGINT);
  EXPECT_EQ(program.Finish().exit_code, 130);
}

// ---- tokenize, logits -----------------------------------------------------------------------------------

TEST(CliTokenize, IdsOnOneLine) {
  const TemporaryFolder folder;
  const std::string file = folder.Write("text", "a\n");
  EXPECT_EQ(Cli({"tokenize", "-m", "toy", "-f", file}).out, "97 10\n");
  EXPECT_EQ(Cli({"tokenize", "-m", "toy", "-f", file, "--bos"}).out, "256 97 10\n");
  EXPECT_EQ(Cli({"tokenize", "-m", "toy", "-p", "<end>", "--special"}).out, "258\n");
  EXPECT_EQ(Cli({"tokenize", "-m", "toy", "-p", "a", "--json"}).out, "{\"tokens\":[97]}\n");
  EXPECT_EQ(Cli({"tokenize", "-m", "toy", "-f", "-"}, {{}, std::string("b\0", 2), ""}).out, "98 0\n");
  EXPECT_EQ(Cli({"tokenize", "-m", "toy", "-f", "-"}).out, "\n");
}

TEST(CliLogits, WritesRawRows) {
  const TemporaryFolder folder;
  const std::string ids = folder.Write("ids", " 1 2\n3\n");
  const std::string out = folder.Path("out.f32");
  ASSERT_EQ(Cli({"logits", "-m", "toy", "--ids", ids, "--out", out}).exit_code, 0);
  ASSERT_EQ(Floats(out).size(), 3U * 259);
  EXPECT_EQ(Floats(out)[259 + 2], 1.5F);
  ASSERT_EQ(Cli({"logits", "-m", "toy", "--ids", ids, "--out", out, "--last", "1"}).exit_code, 0);
  ASSERT_EQ(Floats(out).size(), 259U);
  EXPECT_EQ(Floats(out)[0], 1.0F);
}

TEST(CliLogits, WritesLikelihoodsOfTheNextTokens) {
  const TemporaryFolder folder;
  const std::string ids = folder.Write("ids", "1 2 3");
  const std::string out = folder.Path("out.f32");
  const std::string nll = folder.Path("nll.f32");
  const ProgramResult result =
      Cli({"logits", "-m", "toy", "--ids", ids, "--out", out, "--nll", nll, "--last", "1", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(Floats(out).size(), 259U);
  const std::vector<float> values = Floats(nll);
  ASSERT_EQ(values.size(), 2U);
  double sum = 0;
  for (int v = 0; v < 259; ++v) sum += std::exp((v % 7) / 2.0);
  EXPECT_NEAR(values[0], std::log(sum) - 1.0, 1e-5);  // of token 2 at position 0
  EXPECT_NEAR(Json::parse(result.out)["mean_nll"].get<double>(), (values[0] + values[1]) / 2.0, 1e-6);
}

TEST(CliLogits, BadIdsAreNamed) {
  const TemporaryFolder folder;
  const std::string out = folder.Path("out.f32");
  const auto error = [&](const std::string& text) {
    const ProgramResult result = Cli({"logits", "-m", "toy", "--ids", "-", "--out", out}, {{}, text, ""});
    EXPECT_EQ(result.exit_code, 1) << text;
    return result.err;
  };
  EXPECT_PRED2(Contains, error("1 2 x3"), "word 3 (\"x3\", at byte 4) is not a token id");
  EXPECT_PRED2(Contains, error("1 -2"), "word 2");
  EXPECT_PRED2(Contains, error("1 99999999999"), "word 2");
  EXPECT_PRED2(Contains, error("1 259"), "word 2 is the id 259, but the model has only 259 tokens");
  EXPECT_PRED2(Contains, error(" \n"), "no token id");
  EXPECT_EQ(FilesIn(folder.Path(".")), 0U);
}

TEST(CliLogits, AFileAppearsOnlyWhenItIsComplete) {
  const TemporaryFolder folder;
  const std::string out = folder.Write("out.f32", "old");
  EXPECT_EQ(Cli({"logits", "-m", "devicefail", "--ids", "-", "--out", out}, {{}, "1 2", ""}).exit_code, 1);
  EXPECT_EQ(ReadWholeFile(out), "old");
  EXPECT_EQ(FilesIn(folder.Path(".")), 1U);
}

TEST(CliLogits, FilesThatCannotBeWrittenAreNamed) {
  const ProgramResult full =
      Cli({"logits", "-m", "toy", "--ids", "-", "--out", "/dev/full"}, {{}, "1 2", ""});
  EXPECT_EQ(full.exit_code, 1);
  EXPECT_PRED2(Contains, full.err, "cannot write /dev/full: No space left on device");
  struct stat facts = {};
  ASSERT_EQ(stat("/dev/full", &facts), 0);
  EXPECT_TRUE(S_ISCHR(facts.st_mode)) << "a device must not be replaced by a file";
  const ProgramResult nowhere =
      Cli({"logits", "-m", "toy", "--ids", "-", "--nll", "/no/such/folder/x"}, {{}, "1 2", ""});
  EXPECT_EQ(nowhere.exit_code, 1);
  EXPECT_PRED2(Contains, nowhere.err, "cannot write /no/such/folder/x: No such file or directory");
}

// ---- devices, info, doctor, version ---------------------------------------------------------------------

TEST(CliDevices, AreListed) {
  EXPECT_PRED2(Contains, Cli({"devices"}).out, "0  Fake GPU");
  EXPECT_EQ(Json::parse(Cli({"devices", "--json"}).out)[0]["name"], "Fake GPU");
  const ProgramResult none = Cli({"devices"}, {{"FAKE_NO_DEVICE=1"}, "", ""});
  EXPECT_EQ(none.exit_code, 1);
  EXPECT_PRED2(Contains, none.err, "no Vulkan device");
}

TEST(CliInfo, ShowsShapesAndKvSize) {
  const ProgramResult result = Cli({"info", "-m", "toy", "--ctx", "100"});
  EXPECT_EQ(result.exit_code, 0);
  for (const char* part :
       {"n_layers", "F32", "1.0 KiB (f16), 2.0 KiB (f32)", "KV at 100 tokens", "100.0 KiB"}) {
    EXPECT_PRED2(Contains, result.out, part);
  }
  EXPECT_EQ(Json::parse(Cli({"info", "-m", "toy", "--json"}).out)["context"], 4096);
}

TEST(CliDoctor, FailsIfATestFails) {
  const ProgramResult good = Cli({"doctor"});
  EXPECT_EQ(good.exit_code, 0) << good.err;
  for (const char* part :
       {"Fake GPU", "max_binding_bytes", "tile", "pass  matvec_q4_1", "1 of 1 self-tests"}) {
    EXPECT_PRED2(Contains, good.out, part);
  }
  const ProgramResult bad = Cli({"doctor"}, {{"FAKE_BAD_KERNEL=1"}, "", ""});
  EXPECT_EQ(bad.exit_code, 1);
  EXPECT_PRED2(Contains, bad.out, "FAIL  matvec_q4_1: error 0.5");
  EXPECT_EQ(Json::parse(Cli({"doctor", "--json"}, {{"FAKE_BAD_KERNEL=1"}, "", ""}).out)["passed"], false);
  EXPECT_EQ(Cli({"doctor", "--device", "none"}).exit_code, 1);
  EXPECT_EQ(Cli({"doctor"}, {{"FAKE_NO_DEVICE=1"}, "", ""}).exit_code, 1);
}

TEST(CliVersion, IsPrinted) {
  EXPECT_EQ(Cli({"version"}).out, "kvrun 0.1.0 (fake)\n");
  EXPECT_EQ(Cli({"--version"}).out, "kvrun 0.1.0 (fake)\n");
}

}  // namespace
}  // namespace kvrun
