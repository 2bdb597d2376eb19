// What tests run programs with.
#include "tests/support/program_runner.h"

#include <gtest/gtest.h>

#include <string>

namespace kvrun {
namespace {

TEST(ProgramRunner, AProgramThatEndsWithoutReadingEndsNoTest) {
  RunningProgram program("/bin/echo", {"said"}, {});
  ASSERT_TRUE(program.WaitForOutput("said"));
  EXPECT_FALSE(program.WaitForOutput("never")) << "it has ended";
  program.Type("not read\n");
  const ProgramResult result = program.Finish();
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.out, "said\n");
}

TEST(ProgramRunner, BrokenPipesEndTheProgramsAsEver) {
  EXPECT_EQ(RunShell("sh -c 'kill -PIPE $$'; echo $?").out, "141\n");
}

}  // namespace
}  // namespace kvrun
