// Colour is for terminals alone. `script` (of Debian's bsdutils) gives the program one.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "tests/support/cli_fixture.h"

namespace kvrun {
namespace {

using testing::Contains;

std::string OnTerminal(const std::string& arguments, const std::vector<std::string>& environment) {
  std::string variables = "-u TERM -u NO_COLOR SHELL=/bin/sh";
  for (const std::string& variable : environment) variables += " " + variable;
  return RunShell(fmt::format("env {} script -q -c \"{} {}\" /dev/null </dev/null", variables,
                              ShellWords(KVRUN_FAKE_PROGRAM), arguments))
      .out;
}

TEST(CliColour, IsForTerminalsWithoutNoColor) {
  if (::access("/usr/bin/script", X_OK) != 0) GTEST_SKIP() << "no /usr/bin/script";
  const std::string red = "\x1b[31m";
  const std::string green = "\x1b[32m";
  EXPECT_PRED2(Contains, OnTerminal("rum", {"TERM=xterm"}), red + "kvrun: there is no command");
  EXPECT_PRED2(Contains, OnTerminal("doctor", {"TERM=xterm"}), green + "1 of 1 self-test passed");
  EXPECT_PRED2(Contains, OnTerminal("doctor", {"TERM=xterm", "FAKE_BAD_KERNEL=1"}), red + "FAIL");
  EXPECT_PRED2(Contains, OnTerminal("doctor", {"TERM=xterm", "NO_COLOR="}), green) << "empty: not set";
  for (const std::vector<std::string>& environment :
       {std::vector<std::string>{"TERM=xterm", "NO_COLOR=1"}, {"TERM=dumb"}, {}}) {
    for (const char* arguments : {"rum", "doctor", "run -m toy -p x"})
      EXPECT_FALSE(Contains(OnTerminal(arguments, environment), "\x1b[3")) << arguments;
  }
  EXPECT_FALSE(Contains(OnTerminal("doctor --json", {"TERM=xterm"}), "\x1b[3"));
}

TEST(CliColour, IsNotForPipes) {
  const ProgramInput terminal{{"TERM=xterm"}, "", ""};
  EXPECT_FALSE(Contains(testing::Cli({"rum"}, terminal).err, "\x1b"));
  EXPECT_FALSE(Contains(testing::Cli({"doctor"}, terminal).out, "\x1b"));
}

}  // namespace
}  // namespace kvrun
