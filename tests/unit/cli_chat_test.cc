// kvrun chat.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <string>
#include <vector>

#include "tests/support/cli_fixture.h"

namespace kvrun {
namespace {

using testing::Cli;
using testing::Contains;

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
  program.Type("/help\n");
  ASSERT_TRUE(program.WaitForOutput("/reset starts over")) << "it has gone on to the next line";
  program.Signal(SIGINT);
  EXPECT_EQ(program.Finish().exit_code, 130);
}

}  // namespace
}  // namespace kvrun
