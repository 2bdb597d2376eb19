// What the program says when it fails, and options from the environment.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/cli_fixture.h"

namespace kvrun {
namespace {

using testing::Cli;
using testing::Contains;
using testing::Json;

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
      {"run", "-m", "toy", "-p", "x", "-n", "-2"},
      {"run", "-m", "toy", "-p", "x", "-n", "99999999999"},
      {"run", "-m", "toy", "-p", "x", "--temp", "warm"},
      {"run", "-m", "toy", "-p", "x", "--temp", "nan"},
      {"run", "-m", "toy", "-p", "x", "--top-p", "1.5"},
      {"run", "-m", "toy", "-p", "x", "--kv-type", "bad8"},
      {"run", "-m", "toy", "-p", "x", "--stop", ""},
      {"run", "-m", "toy", "-p", "x", "--batch", "file"},
      {"run", "-m", "toy", "-p", "x", "--system", "S"},
      {"tokenize", "-m", "toy"},
      {"logits", "-m", "toy", "--ids", "file"},
      {"logits", "-m", "toy", "--out", "file"},
  };
  for (const auto& arguments : bad) {
    const ProgramResult result = Cli(arguments);
    EXPECT_EQ(result.exit_code, 2) << ::testing::PrintToString(arguments);
    EXPECT_EQ(result.out, "") << ::testing::PrintToString(arguments);
    EXPECT_TRUE(result.err.starts_with("kvrun: ")) << result.err;
  }
}

// Wherever --json stands, and whoever finds the error: the command line's parser, an option, the command.
TEST(CliFailure, BadUsageIsAnObjectWithJson) {
  const std::vector<std::vector<std::string>> bad = {
      {"run", "-m", "toy", "-p", "x", "--no-such-option", "--json"},
      {"run", "-m", "toy", "--json", "-p"},
      {"run", "-m", "toy", "-p", "x", "--temp", "warm", "--json"},
      {"run", "-m", "toy", "-p", "x", "--json", "--kv-type", "bad8"},
      {"run", "-m", "toy", "--json"},
      {"fly", "--json"},
  };
  for (const auto& arguments : bad) {
    SCOPED_TRACE(::testing::PrintToString(arguments));
    const ProgramResult result = Cli(arguments);
    EXPECT_EQ(result.exit_code, 2);
    const Json error = Json::parse(result.out, nullptr, false).value("error", Json::object());
    EXPECT_EQ(error.value("status", ""), "invalid argument") << result.out;
    const std::string message = error.value("message", "");
    EXPECT_FALSE(message.empty());
    EXPECT_TRUE(result.err.starts_with("kvrun: " + message + "\nSee `kvrun ")) << result.err;
  }
  const ProgramResult variable = Cli({"run", "-m", "toy"}, {{"KVRUN_TEMP=warm", "KVRUN_JSON=1"}, "", ""});
  EXPECT_EQ(variable.exit_code, 2);
  EXPECT_PRED2(Contains, variable.out, "KVRUN_TEMP");
}

TEST(CliFailure, AWordThatIsNotKnownIsNamedWithWhatWasMeant) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"rum"}, "kvrun: there is no command \"rum\": did you mean run?\nSee `kvrun --help`.\n"},
      {{"rum", "-m", "toy", "-p", "x"}, "there is no command \"rum\": did you mean run?\n"},
      {{"help", "run"}, "kvrun: the help of run is `kvrun run --help`\n"},
      {{"fly"}, "there is no command \"fly\": the commands are run, chat, serve, tokenize,"},
      {{}, "no command is named: name one of run, chat,"},
      {{"-m", "toy"}, "\"-m\" is not an option of the program itself: name a command first (run, chat,"},
      {{"-m", "toy", "run"}, "\"-m\" stands before the command: options follow it, as in kvrun run -m\n"},
      {{"run", "--modle", "toy"},
       "\"--modle\" is not an option of kvrun run: did you mean --model?\nSee `kvrun run "
       "--help`.\n"},
      {{"run", "--top_k=4"}, "\"--top_k\" is not an option of kvrun run: did you mean --top-k?\n"},
      {{"run", "-Z", "5", "8"}, "\"-Z\" is not an option of kvrun run\n"},
      {{"run", "-m", "toy", "-p", "once", "upon"},
       "\"upon\" is not an option: kvrun run takes options only; a text of several words is put in quotes\n"},
      {{"run", "-m", "toy", "-p"}, "--prompt needs a value: --prompt TEXT\n"},
      {{"run", "-m"}, "--model needs a value: --model FILE\n"},
      {{"run", "-p", "x", "--batch", "b"}, "cannot be given together: leave one of them out\n"},
  };
  for (const auto& [arguments, part] : cases) {
    const ProgramResult result = Cli(arguments);
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_EQ(result.out, "");
    EXPECT_PRED2(Contains, result.err, part);
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 2) << result.err;
  }
}

TEST(CliFailure, AFileThatCannotBeReadIsNamed) {
  const ProgramResult absent = Cli({"run", "-m", "toy", "-f", "/no/such/file"});
  EXPECT_EQ(absent.exit_code, 1);
  EXPECT_EQ(absent.err, "kvrun: cannot read /no/such/file: No such file or directory\n");
  EXPECT_EQ(Cli({"run", "-m", "toy", "-f", "/"}).exit_code, 1);
}

// Whatever a text is of: what is quoted whole hides what to do.
TEST(CliFailure, ALongTextIsCutInItsMiddle) {
  const std::string text(100000, 'q');
  const std::vector<std::vector<std::string>> long_ones = {
      {text},
      {"run", text},
      {"run", "--" + text},
      {"run", "-m", "toy", "-p", "x", "--temp", text},
      {"run", "-m", "toy", "-p", "x", "--kv-type", "bad" + text},
      {"run", "-m", "toy", "-p", "x", "--progress", text},
      {"run", "-m", "missing" + text, "-p", "x"},
      {"run", "-m", "toy", "-f", text},
      {"bench", "-m", "toy", "-d", text},
  };
  for (const auto& arguments : long_ones) {
    const ProgramResult result = Cli(arguments);
    SCOPED_TRACE(result.err.substr(0, 200));
    EXPECT_NE(result.exit_code, 0);
    EXPECT_LT(result.err.size(), 900U);
    EXPECT_PRED2(Contains, result.err, " bytes left out) ...");
  }
  const ProgramResult number = Cli({"run", "-m", "toy", "-p", "x", "--temp", text, "--json"});
  EXPECT_PRED2(Contains, number.err, "\" is not a number from 0 to 100\n");
  EXPECT_LT(number.out.size(), 900U);
  std::string umlauts;
  for (int i = 0; i < 2000; ++i) umlauts += "\xC3\xA4";
  for (const std::string& shifted : {umlauts, "a" + umlauts}) {
    const ProgramResult result = Cli({"run", "-m", "toy", "-p", "x", "--temp", shifted, "--json"});
    EXPECT_FALSE(Json::parse(result.out, nullptr, false).is_discarded());
    EXPECT_FALSE(Contains(result.out, "\xEF\xBF\xBD")) << "cut within a character";
  }
}

// Of a device that never ends: each is a device or a hole, so that nothing is read for long.
TEST(CliFailure, AFileWithoutEndIsRefused) {
  const TemporaryFolder folder;
  const std::string endless = "/dev/zero";
  const ProgramResult form =
      Cli({"run", "-m", "toy", "--chat", "-p", "x", "--chat-template", endless, "--json"});
  EXPECT_EQ(form.exit_code, 1);
  EXPECT_EQ(form.err,
            "kvrun: cannot read /dev/zero: it has more than 1 MiB, far more than a chat template has: name a "
            "file that is one\n");
  EXPECT_EQ(Json::parse(form.out)["error"]["status"], "invalid argument");
  const ProgramResult configs =
      Cli({"eval", "-m", "toy", "--ids", "-", "--configs", endless}, {{}, "1 2", ""});
  EXPECT_EQ(configs.exit_code, 1);
  EXPECT_PRED2(Contains, configs.err,
               "cannot read /dev/zero: it has more than 1 MiB, far more than a list of");
  const std::string hole = folder.Write("hole", "");
  ASSERT_EQ(::truncate(hole.c_str(), off_t{4} << 30), 0);
  for (const auto& arguments : std::vector<std::vector<std::string>>{
           {"run", "-m", "toy", "-f", hole},
           {"tokenize", "-m", "toy", "-p", "x", "-f", "/dev/null", "-f", hole},
           {"run", "-m", "toy", "--batch", hole},
           {"logits", "-m", "toy", "--nll", folder.Path("out"), "--ids", hole}}) {
    const ProgramResult result = Cli(arguments);
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_PRED2(Contains, result.err, "cannot read " + hole + ": it has more than ");
    EXPECT_PRED2(Contains, result.err, ": name a smaller file, or ");
  }
}

TEST(CliFailure, AFullStdoutIsSaid) {
  for (const std::vector<std::string>& arguments : {std::vector<std::string>{"run", "-m", "toy", "-p", "x"},
                                                    {"run", "-m", "toy", "-p", "x", "--json"},
                                                    {"tokenize", "-m", "toy", "-p", "x"},
                                                    {"info", "-m", "toy"},
                                                    {"--help"},
                                                    {"run", "--help"}}) {
    const ProgramResult result = Cli(arguments, {{}, "", "/dev/full"});
    EXPECT_EQ(result.exit_code, 1) << ::testing::PrintToString(arguments);
    EXPECT_PRED2(Contains, result.err, "cannot write to standard output: No space left on device");
  }
}

TEST(CliFailure, AClosedPipeEndsQuietly) {
  const std::string command =
      fmt::format("{{ {} run -m slow-endless -p x -n 500 --quiet; echo \"code $?\" >&2; }} | head -c 1",
                  ShellWords(KVRUN_FAKE_PROGRAM));
  const ProgramResult result = RunShell(command);
  EXPECT_EQ(result.out, "x");
  EXPECT_EQ(result.err, "code 1\n");
}

TEST(CliFailure, AClosedStdoutIsSaid) {
  const ProgramResult result =
      RunShell(fmt::format("exec {} run -m toy -p x --quiet >&-", ShellWords(KVRUN_FAKE_PROGRAM)));
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_PRED2(Contains, result.err, "cannot write to standard output");
}

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
  EXPECT_EQ(result.out, "1:\n");
  EXPECT_EQ(result.exit_code, 0) << result.err;
}

TEST(CliEnvironment, ABadValueNamesTheVariable) {
  for (const char* entry : {"KVRUN_TEMP=warm", "KVRUN_CTX=-1", "KVRUN_JSON=maybe", "KVRUN_KV_TYPE=bad8"}) {
    const ProgramResult result = Cli({"run", "-m", "toy", "-p", "x"}, {{entry}, "", ""});
    EXPECT_EQ(result.exit_code, 2);
    const std::string text(entry);
    EXPECT_PRED2(Contains, result.err, text.substr(0, text.find('=')));
    EXPECT_PRED2(Contains, result.err, text.substr(text.find('=') + 1));
  }
}

// One variable, which is a file for one command and numbers, or on and off, for another.
TEST(CliEnvironment, WhatAnotherCommandTakesIsRefusedWithTheCommandsName) {
  const auto run = [](std::vector<std::string> arguments, const std::string& entry) {
    const bool is_kvrun = arguments[0] == "run" || arguments[0] == "eval";
    return RunProgram(is_kvrun ? KVRUN_FAKE_PROGRAM : KVADAPT_FAKE_PROGRAM, arguments, {{entry}, "", ""});
  };
  const TemporaryFolder folder;
  const std::string text = folder.Write("text", "hello");
  const ProgramResult numbers =
      run({"tune", "-m", "nobos", "-f", text, "-o", folder.Path("o")}, "KVRUN_BATCH=p.jsonl");
  EXPECT_EQ(numbers.exit_code, 2);
  EXPECT_PRED2(Contains, numbers.err, "kvadapt: KVRUN_BATCH (--batch of kvadapt tune): \"p.jsonl\" is not");
  const ProgramResult file = run({"run", "-m", "toy"}, "KVRUN_BATCH=1,4");
  EXPECT_EQ(file.exit_code, 1);
  EXPECT_PRED2(
      Contains, file.err,
      "cannot read 1,4: No such file or directory (the environment variable KVRUN_BATCH sets --batch of "
      "kvrun run)\n");
  EXPECT_PRED2(Contains, run({"run", "-m", "toy", "-p", "x"}, "KVRUN_PROFILE=p.json").err,
               "KVRUN_PROFILE (--profile of kvrun run): \"p.json\" is neither 1 (on) nor 0 (off)");
  EXPECT_EQ(run({"run", "-m", "toy", "-p", "x"}, "KVRUN_BATCH=1,4").exit_code, 0) << "-p excludes it";
  const ProgramResult inspected = run({"inspect"}, "KVRUN_FILE=" + text);
  EXPECT_EQ(inspected.exit_code, 1);
  EXPECT_PRED2(Contains, inspected.err,
               "kvrun's files (the environment variable KVRUN_FILE sets --file of kvadapt inspect)\n");
  const std::string none = folder.Path("none");
  EXPECT_FALSE(Contains(run({"eval", "-m", "toy", "-f", none}, "KVRUN_FILE=" + none).err, "KVRUN"))
      << "not from it";
  EXPECT_FALSE(Contains(run({"run", "-m", "toy", "-f", none}, "KVRUN_SYSTEM=no-one").err, "KVRUN"))
      << "a part of a word";
}

// The library speaks of the option; the person set a variable.
TEST(CliEnvironment, AMessageOfAnOptionNamesTheVariableThatSetIt) {
  const ProgramInput input{{"KVRUN_CTX=10"}, "", ""};
  EXPECT_EQ(
      Cli({"run", "-m", "toy", "-p", "a long prompt"}, input).err,
      "kvrun: the prompt has 14 tokens, more than the context of 10: give --ctx 270, or shorten the text "
      "(the environment variable KVRUN_CTX sets --ctx of kvrun run)\n");
  EXPECT_FALSE(
      Contains(Cli({"run", "-m", "toy", "-p", "a long prompt", "-c", "11"}, input).err, "KVRUN_CTX"));
  const ProgramInput both{{"KVRUN_PROMPT=x", "KVRUN_BATCH=b"}, "", ""};
  EXPECT_PRED2(
      Contains, Cli({"run", "-m", "toy"}, both).err,
      "(the environment variable KVRUN_PROMPT sets --prompt of kvrun run: unset KVRUN_PROMPT to leave "
      "it out; the environment variable KVRUN_BATCH sets --batch of kvrun run: unset KVRUN_BATCH to "
      "leave it out)");
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

}  // namespace
}  // namespace kvrun
