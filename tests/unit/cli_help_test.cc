// `--help`: groups, width, examples, and where variables are explained.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

#include "tests/support/cli_fixture.h"
#include "tests/support/reference_files.h"

namespace kvrun {
namespace {

using testing::Cli;
using testing::Contains;

ProgramResult Adapt(const std::vector<std::string>& arguments, const ProgramInput& input = {}) {
  return RunProgram(KVADAPT_FAKE_PROGRAM, arguments, input);
}

std::vector<std::string> Lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

size_t Count(const std::string& text, const std::string& part) {
  size_t n = 0;
  for (size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++n;
  return n;
}

const std::vector<std::string> kRunCommands = {"run",     "chat",   "serve",     "tokenize", "render",
                                               "logits",  "eval",   "bench",     "info",     "sessions",
                                               "devices", "doctor", "completion"};
const std::vector<std::string> kAdaptCommands = {"calibrate", "probe",  "tune",
                                                 "inspect",   "verify", "completion"};

TEST(CliHelp, OptionsStandInGroupsInTheirOrder) {
  const std::string help = Cli({"run", "--help"}).out;
  size_t before = 0;
  for (const char* group : {"\nModel and prompt:\n", "\nSampling:\n", "\nDevice:\n",
                            "\nContext and KV cache:\n", "\nOutput:\n", "\nExamples:\n"}) {
    const size_t at = help.find(group);
    ASSERT_NE(at, help.npos) << group << help;
    EXPECT_LT(before, at) << group;
    before = at;
  }
  const auto in_group = [&help](const std::string& option, const std::string& group) {
    const size_t at = help.find("\n" + group + ":\n") + 1;
    const size_t end = help.find("\n\n", at);
    return Contains(help.substr(at, end - at), option + " ");
  };
  EXPECT_TRUE(in_group("-p, --prompt", "Model and prompt"));
  EXPECT_TRUE(in_group("--top-k", "Sampling"));
  EXPECT_TRUE(in_group("--device", "Device"));
  EXPECT_TRUE(in_group("--kv-budget", "Context and KV cache"));
  EXPECT_TRUE(in_group("--json", "Output"));
  EXPECT_FALSE(Contains(help, "--kv-rank"));
  EXPECT_PRED2(Contains, help, "--help kv");
  EXPECT_LE(Count(help, "\n  -") + Count(help, "\n      --"), 50U) << "48 options, and two of help";
}

TEST(CliHelp, OfTheKvCacheHasWhatExpertsChoose) {
  const std::string help = Cli({"run", "--help", "kv"}).out;
  for (const char* option :
       {"--kv-budget", "--ctx", "--kv-rank", "--kv-shares", "--kv-precisions", "--kv-tmpfs"})
    EXPECT_PRED2(Contains, help, std::string(option)) << help;
  EXPECT_FALSE(Contains(help, "--top-k N")) << "the cache alone";
  EXPECT_FALSE(Contains(help, "--kv-moments")) << "nobody should choose it";
  EXPECT_FALSE(Contains(help, "oracle"));
  const std::string of_eval = Cli({"eval", "--help", "kv"}).out;
  EXPECT_PRED2(Contains, of_eval, "--kv-moments");
  const std::string all = Cli({"run", "--help", "all"}).out;
  EXPECT_PRED2(Contains, all, "\nKV cache, for experts:\n");
  EXPECT_PRED2(Contains, all, "--top-k N");
  EXPECT_EQ(Cli({"run", "--help", "whatever"}).out, Cli({"run", "--help"}).out);
}

// tests/data/options.txt has every option that a program ever had: what somebody has in a script goes on
// working.
TEST(CliHelp, EveryOptionThatThereWasIsTaken) {
  size_t n = 0;
  for (const std::string& line :
       Lines(testing::ReadFileOrDie(std::string(KVRUN_SOURCE_DIR) + "/tests/data/options.txt"))) {
    std::istringstream words(line);
    std::string program;
    std::string command;
    std::string option;
    words >> program >> command >> option;
    // Without a model, or a value, none gets far.
    const ProgramResult result = program == "kvrun" ? Cli({command, option}) : Adapt({command, option});
    EXPECT_FALSE(Contains(result.err, "is not an option of")) << line << result.err;
    ++n;
  }
  EXPECT_GE(n, 475U);
  EXPECT_PRED2(Contains, Cli({"run", "--no-such"}).err, "is not an option of");
}

TEST(CliHelp, IsAsWideAsTheTerminalAndNoWiderThanAHundred) {
  const auto widest = [](const std::string& columns, const std::string& command) {
    const ProgramInput input{
        columns.empty() ? std::vector<std::string>{} : std::vector<std::string>{"COLUMNS=" + columns}, "",
        ""};
    size_t most = 0;
    for (const std::string& line : Lines(Cli({command, "--help"}, input).out))
      most = std::max(most, line.size());
    return most;
  };
  for (const std::string& command : kRunCommands) {
    EXPECT_LE(widest("", command), 80U) << command;
    EXPECT_LE(widest("72", command), 72U) << command;
    EXPECT_LE(widest("1000", command), 100U) << command;
    EXPECT_LE(widest("wide", command), 80U) << command;
  }
  EXPECT_GT(widest("1000", "run"), 90U);
  EXPECT_GT(widest("72", "run"), 60U);
}

TEST(CliHelp, SaysTheRuleOfVariablesOnceAndAtTheEnd) {
  const auto check = [](const std::string& help) {
    SCOPED_TRACE(help);
    EXPECT_EQ(Count(help, "KVRUN_"), 1U);
    EXPECT_PRED2(Contains, help.substr(help.rfind("\n\n")), "--top-k is KVRUN_TOP_K");
  };
  for (const std::string& command : kRunCommands) check(Cli({command, "--help"}).out);
  for (const std::string& command : kAdaptCommands) check(Adapt({command, "--help"}).out);
  check(Cli({"--help"}).out);
}

TEST(CliHelp, EveryCommandHasTwoExamples) {
  for (const std::string& command : kRunCommands)
    EXPECT_EQ(Count(Cli({command, "--help"}).out, "\n  kvrun " + command), 2U) << command;
  for (const std::string& command : kAdaptCommands)
    EXPECT_EQ(Count(Adapt({command, "--help"}).out, "\n  kvadapt " + command), 2U) << command;
}

// The toy library has others.
std::string WithToyShape(std::string arguments) {
  const std::string shape = "Llama-3.1-8B";
  const size_t at = arguments.find(shape);
  return at == arguments.npos ? arguments : arguments.replace(at, shape.size(), "Toy-8B");
}

// Examples whose lines end with a backslash, where the terminal is narrow, in one line each.
std::string Joined(std::string help) {
  const std::string end = " \\\n     ";
  for (size_t at = help.find(end); at != help.npos; at = help.find(end, at)) help.replace(at, end.size(), "");
  return help;
}

// Their options exist, and what they combine is not refused.
TEST(CliHelp, ExamplesAreUnderstood) {
  const TemporaryFolder folder;  // some write files
  const auto check = [&folder](const std::string& program, const std::string& command,
                               const std::string& help) {
    size_t n = 0;
    for (const std::string& line : Lines(Joined(help))) {
      if (!line.starts_with("  kv")) continue;
      ++n;
      const std::string arguments = WithToyShape(line.substr(line.find(" " + command) + 1));
      // A server goes on until it is told to end.
      const std::string for_a_while = command == "serve" ? "KVRUN_PORT=0 timeout -s TERM 2 " : "";
      const ProgramResult result = RunShell("cd \"$(mktemp -d -p " + folder.Path("") + ")\" && " +
                                            for_a_while + ShellWords(program) + " " + arguments);
      EXPECT_NE(result.exit_code, 2) << line << "\n" << result.err;
    }
    EXPECT_EQ(n, 2U) << help;
  };
  for (const std::string& command : kRunCommands)
    check(KVRUN_FAKE_PROGRAM, command, Cli({command, "--help"}).out);
  for (const std::string& command : kAdaptCommands)
    check(KVADAPT_FAKE_PROGRAM, command, Adapt({command, "--help"}).out);
}

TEST(CliHelp, OfTheProgramListsCommandsExamplesAndExitCodes) {
  const std::string help = Cli({"--help"}).out;
  for (const std::string& command : kRunCommands)
    EXPECT_EQ(Count(help, "\n  " + command + "  "), 1U) << command << "\n" << help;
  EXPECT_PRED2(Contains, help, "Usage: kvrun COMMAND [OPTIONS]\n");
  EXPECT_PRED2(Contains, help, "\nExamples:\n  kvrun chat -m ");
  EXPECT_PRED2(Contains, help, "Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted.\n");
}

}  // namespace
}  // namespace kvrun
