// Signals and progress.
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <string>
#include <thread>
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

}  // namespace
}  // namespace kvrun
