// Signals and progress.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <chrono>
#include <cmath>
#include <iterator>
#include <regex>
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

TEST(CliSignals, StopAnAnswerCleanly) {
  for (const int signal : {SIGINT, SIGTERM}) {
    RunningProgram program(KVRUN_FAKE_PROGRAM, {"run", "-m", "nobos-slow-endless", "-p", "x", "-n", "0"}, {});
    ASSERT_TRUE(program.WaitForOutput("xxx"));
    program.Signal(signal);
    const ProgramResult result = program.Finish();
    EXPECT_EQ(result.exit_code, 130);
    EXPECT_TRUE(result.out.starts_with("xxx"));
    EXPECT_PRED2(Contains, result.err, "end      interrupted");
    EXPECT_PRED2(Contains, result.err, "speed    ");
  }
}

// The library hears of it, so that no driver that is being tried is blamed; two of them end the program as
// ever.
TEST(CliSignals, BlameNoDriver) {
  for (const auto& [signal, exit_code] :
       {std::pair(SIGINT, 130), std::pair(SIGTERM, 130), std::pair(SIGHUP, 128 + SIGHUP),
        std::pair(SIGQUIT, 128 + SIGQUIT)}) {
    ProgramInput input;
    input.environment = {"FAKE_LOUD_TRIALS=1"};
    input.before_program = [] {
      const rlimit no_core = {0, 0};
      return setrlimit(RLIMIT_CORE, &no_core) == 0;
    };
    RunningProgram program(KVRUN_FAKE_PROGRAM, {"run", "-m", "nobos-slow-endless", "-p", "x", "-n", "0"},
                           input);
    ASSERT_TRUE(program.WaitForOutput("xxx"));
    program.Signal(signal);
    const ProgramResult result = program.Finish();
    EXPECT_EQ(result.exit_code, exit_code);
    EXPECT_PRED2(Contains, result.err, "the toy's trials are interrupted");
  }
}

TEST(CliSignals, JsonStaysOneObject) {
  RunningProgram program(KVRUN_FAKE_PROGRAM,
                         {"run", "-m", "nobos-slow-endless-loud", "-p", "x", "-n", "0", "--json"}, {});
  ASSERT_TRUE(program.WaitForOutput("the toy decodes"));
  program.Signal(SIGINT);
  const ProgramResult result = program.Finish();
  EXPECT_EQ(result.exit_code, 130);
  EXPECT_EQ(Json::parse(result.out)["finish"], "cancelled");
}

TEST(CliSignals, StopPrefillAndLoading) {
  for (const char* phase : {"loading", "prefill"}) {
    RunningProgram program(KVRUN_FAKE_PROGRAM,
                           {"run", "-m", "slow", "-p", std::string(4000, 'x'), "--progress", "always"}, {});
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
  program.Type("x");
  ASSERT_TRUE(program.WaitForRead());
  program.Signal(SIGINT);
  const ProgramResult result = program.Finish();
  EXPECT_EQ(result.exit_code, 130);
  // What the signal itself kills ends with 130 too.
  EXPECT_EQ(result.err, "kvrun: interrupted\n");
  EXPECT_EQ(result.out, "");
}

// A pipe that nobody has opened on its other side. Standard input is read first, and its end followed at
// once: the signal comes most likely while the pipe is waited for, and ends the program also where it comes
// before.
void ExpectInterruptedAtPipe(const std::vector<std::string>& arguments) {
  RunningProgram program(KVRUN_FAKE_PROGRAM, arguments, {});
  program.Type("1 2 3");
  ASSERT_TRUE(program.WaitForRead());
  program.CloseInput();
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  program.Signal(SIGINT);
  const ProgramResult result = program.Finish();
  EXPECT_EQ(result.exit_code, 130) << arguments[0];
  EXPECT_EQ(result.err, "kvrun: interrupted\n") << arguments[0];
}

TEST(CliSignals, StopWaitingForThePipesOtherSide) {
  const TemporaryFolder folder;
  const std::string pipe = folder.Path("pipe");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  ExpectInterruptedAtPipe({"run", "-m", "toy", "-f", "-", "-f", pipe});
  ExpectInterruptedAtPipe({"logits", "-m", "toy", "--ids", "-", "--out", pipe});
}

TEST(CliSignals, APipeThatIsOpenedLateIsReadToItsEnd) {
  const TemporaryFolder folder;
  const std::string pipe = folder.Path("pipe");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  RunningProgram program(KVRUN_FAKE_PROGRAM, {"run", "-m", "nobos-transcript", "-f", pipe, "-q"}, {});
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(RunShell("{ printf late; sleep 0.1; printf ' text'; } >" + pipe).exit_code, 0);
  EXPECT_EQ(program.Finish().out, "[late text]\n");
}

// Each line of prefill that says how much is left: by the tokens and the rate in the same line, whatever the
// machine's speed.
TEST(CliProgress, ShowsAmountRateAndWhatIsLeft) {
  const ProgramResult result =
      Cli({"run", "-m", "slow", "-p", std::string(100, 'x'), "--progress", "always"});
  EXPECT_PRED2(Contains, result.err, "loading: 10.0 MiB of 10.0 MiB, 100 %, ");
  EXPECT_PRED2(Contains, result.err, "MiB/s");
  const std::regex line(
      "prefill: (\\d+) of 101, (\\d+) %, ([0-9.]+) token/s, (?:(\\d+) s|\\S+ (?:min|h)) left\n");
  size_t n_lines = 0;
  for (std::sregex_iterator i(result.err.begin(), result.err.end(), line), end; i != end; ++i, ++n_lines) {
    const double done = std::stod((*i)[1]);
    EXPECT_EQ(std::stod((*i)[2]), std::floor(done * 100 / 101)) << i->str();
    const double left_s = (101 - done) / std::stod((*i)[3]);
    if (!(*i)[4].matched) continue;  // more than a minute
    EXPECT_NEAR(std::stod((*i)[4]), left_s, 0.6 + 0.1 * left_s) << i->str();
  }
  EXPECT_GE(n_lines, 1U) << "two seconds at least, and a line after each\n" << result.err;
  EXPECT_PRED2(Contains, result.err, "prefill: 101 of 101, 100 %");
  const ProgramResult silent = Cli({"run", "-m", "toy", "-p", "x"});
  EXPECT_EQ(silent.err.find("loading"), std::string::npos) << "no terminal, no progress";
}

}  // namespace
}  // namespace kvrun
