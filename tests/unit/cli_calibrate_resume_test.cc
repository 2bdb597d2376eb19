// kvadapt calibrate: what is kept of a run that fails or is interrupted, and how the same command goes on
// from it.
#include <gtest/gtest.h>
#include <signal.h>

#include <cstddef>
#include <filesystem>
#include <string>

#include "tests/support/cli_calibrate_fixture.h"
#include "tests/support/cli_fixture.h"

namespace kvrun {
namespace {

using testing::CliCalibrate;
using testing::Contains;
using testing::Json;

TEST_F(CliCalibrate, WithoutReuseRatesANewAdapterStays) {
  const size_t n_files = FilesInFolder();
  const ProgramResult result = Run({"-f", ab_, "--quiet"}, {}, "unread nobos");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.err, "kvadapt: reuse rates could not be measured: the device was lost; " + out_ +
                            " is the new adapter without reuse rates: take it as it is, or measure them: the "
                            "same command goes on from " +
                            out_ + ".partial\n");
  EXPECT_PRED2(Contains, Written(), "kind query-centred");
  EXPECT_EQ(FilesInFolder(), n_files + 2) << "the adapter and its sums";
}

// The sums are there until the rates are too.
TEST_F(CliCalibrate, WhatHasNoReuseRatesYetIsGoneOnFrom) {
  const std::string partial = out_ + ".partial";
  const std::string text = folder_.Write("text", std::string(1000, 'x'));
  ASSERT_EQ(Run({"-f", text, "-q"}, {}, "unread nobos").exit_code, 1);
  const ProgramResult again = Run({"-f", text, "--restart", "-q"}, {}, "unread nobos");
  EXPECT_PRED2(Contains, again.err, "the same command without --restart goes on from " + partial + "\n");
  ASSERT_TRUE(std::filesystem::exists(partial));
  const ProgramResult rated = Run({"-f", text, "--progress", "always"});
  EXPECT_EQ(rated.exit_code, 0);
  EXPECT_PRED2(Contains, rated.err, "note: going on from " + partial + "\n");
  EXPECT_PRED2(Contains, rated.err, "calibrating: 1000 of 1000, 100 %\n");
  EXPECT_FALSE(Contains(rated.err, "calibrating: 0 of")) << rated.err;
  EXPECT_PRED2(Contains, rated.out, "reuse rates with lru");
  EXPECT_FALSE(std::filesystem::exists(partial));
}

// What comes after the adapter may fail without rates too.
TEST_F(CliCalibrate, APlotThatFailsTakesNoAdapterAway) {
  const ProgramResult result = Run({"-f", ab_, "--no-reuse-rates", "--plot", "/dev/full"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_PRED2(Contains, result.err, "/dev/full: No space left on device");
  EXPECT_TRUE(result.err.ends_with("; " + out_ + " is the new adapter; the same command goes on from " +
                                   out_ + ".partial\n"))
      << result.err;
  EXPECT_PRED2(Contains, Written(), "kind query-centred");
  ASSERT_EQ(Run({"-f", ab_, "--no-reuse-rates"}).exit_code, 0);
  EXPECT_FALSE(std::filesystem::exists(out_ + ".partial"));
}

// What is there is replaced by a complete adapter alone.
TEST_F(CliCalibrate, WithoutReuseRatesTheOldAdapterStaysAsItWas) {
  folder_.Write("adapter.gguf", "old");
  const std::string unrated = out_ + ".unrated";
  const std::string what = out_ + " is as it was before, and " + unrated +
                           " is the new adapter without reuse rates: rename it to take it, or measure them: "
                           "the same command goes on from " +
                           out_ + ".partial";
  const ProgramResult failed = Run({"-f", ab_, "--quiet", "--json"}, {}, "unread nobos");
  EXPECT_EQ(failed.exit_code, 1);
  EXPECT_EQ(failed.err, "kvadapt: reuse rates could not be measured: the device was lost; " + what + "\n");
  EXPECT_EQ(Json::parse(failed.out)["error"]["message"],
            "reuse rates could not be measured: the device was lost; " + what);
  EXPECT_EQ(Written(), "old");
  EXPECT_PRED2(Contains, ReadWholeFile(unrated), "kind query-centred");

  const std::string text = folder_.Write("text", std::string(10000, 'x'));
  RunningProgram program(
      KVADAPT_FAKE_PROGRAM,
      Arguments("idle nobos", {"-f", text, "--kind", "plain", "--restart", "--progress", "always"}), {});
  ASSERT_TRUE(program.WaitForOutput("evaluating (reuse rates)"));
  program.Signal(SIGINT);
  const ProgramResult stopped = program.Finish();
  EXPECT_EQ(stopped.exit_code, 130);
  std::string what_then = what;
  what_then.replace(what.find(" goes on"), 0, " without --restart");
  EXPECT_TRUE(stopped.err.ends_with("kvadapt: interrupted; " + what_then + "\n")) << stopped.err;
  EXPECT_EQ(stopped.err.find("kvadapt: ", stopped.err.find("evaluating")), stopped.err.rfind("kvadapt: "))
      << "one message";
  EXPECT_EQ(Written(), "old");
  EXPECT_PRED2(Contains, ReadWholeFile(unrated), "kind plain");

  ASSERT_EQ(Run({"-f", ab_, "--plot", "/dev/full", "--restart"}).exit_code, 1);
  EXPECT_EQ(Run({"-f", ab_, "--plot", "/dev/full", "--quiet"}).err,
            "kvadapt: cannot write /dev/full: No space left on device; " + what + "\n");
  EXPECT_EQ(Written(), "old");
  ASSERT_EQ(Run({"-f", ab_}).exit_code, 0);
  EXPECT_PRED2(Contains, Written(), "kind query-centred");
  EXPECT_FALSE(std::filesystem::exists(unrated));
}

TEST_F(CliCalibrate, TheOldOnesPlaceAndModeAreTaken) {
  namespace fs = std::filesystem;
  fs::create_directory(folder_.Path("far"));
  const std::string old = folder_.Write("far/old", "old");
  fs::permissions(old, fs::perms::owner_read | fs::perms::owner_write);
  fs::create_symlink(old, out_);
  ASSERT_EQ(Run({"-f", ab_}, {}, "unread nobos").exit_code, 1);
  EXPECT_EQ(ReadWholeFile(old), "old");
  EXPECT_PRED2(Contains, ReadWholeFile(old + ".unrated"), "kind query-centred");
  EXPECT_EQ(fs::status(old + ".unrated").permissions(), fs::status(old).permissions());
  ASSERT_EQ(Run({"-f", ab_}).exit_code, 0);
  EXPECT_TRUE(fs::is_symlink(out_));
  EXPECT_PRED2(Contains, ReadWholeFile(old), "kind query-centred");
  EXPECT_EQ(fs::status(old).permissions(), fs::perms::owner_read | fs::perms::owner_write);
  EXPECT_FALSE(fs::exists(old + ".unrated"));
}

// Names that are written meanwhile are checked as the others are.
TEST_F(CliCalibrate, NothingElseIsLostMeanwhile) {
  const std::string unrated = folder_.Write("adapter.gguf.unrated", "precious");
  const ProgramResult refused = Run({"-f", ab_, "--progress", "always"});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_TRUE(refused.err.starts_with("kvadapt: " + unrated + " is there and no adapter")) << refused.err;
  EXPECT_EQ(refused.err.find('\n'), refused.err.size() - 1) << refused.err;
  EXPECT_EQ(ReadWholeFile(unrated), "precious");
  EXPECT_EQ(Run({"-f", ab_, "--no-reuse-rates"}).exit_code, 0);
  EXPECT_EQ(ReadWholeFile(unrated), "precious");
  const ProgramResult read = Run({"-f", unrated});
  EXPECT_EQ(read.exit_code, 2);
  EXPECT_PRED2(Contains, read.err, unrated + " would replace " + unrated + ", which is read");
  const std::string partial = folder_.Write("adapter.gguf.partial", "0");
  EXPECT_EQ(Run({"-f", partial}).exit_code, 2);
  EXPECT_EQ(Run({"-f", ab_, "--dump-gram", unrated}).exit_code, 2);
}

TEST_F(CliCalibrate, CtrlCKeepsWhatTheSameCommandGoesOnFrom) {
  const std::string partial = out_ + ".partial";
  const std::string text = folder_.Write("text", std::string(10000, 'x'));
  RunningProgram program(KVADAPT_FAKE_PROGRAM, Arguments("slow", {"-f", text, "--progress", "always"}), {});
  ASSERT_TRUE(program.WaitForOutput("token/s"));
  program.Signal(SIGINT);
  const ProgramResult result = program.Finish();
  EXPECT_EQ(result.exit_code, 130);
  EXPECT_PRED2(Contains, result.err, "kvadapt: interrupted; the same command goes on from " + partial + "\n");
  EXPECT_FALSE(std::filesystem::exists(out_));
  ASSERT_TRUE(std::filesystem::exists(partial));
  folder_.Write("adapter.gguf.partial", "9990");
  const ProgramResult second = Run({"-f", text, "--progress", "always"});
  EXPECT_EQ(second.exit_code, 0);
  EXPECT_PRED2(Contains, second.err, "kvadapt: note: going on from " + partial + "\n");
  EXPECT_PRED2(Contains, second.err, "calibrating: 9990 of 10000, 99 %\n");
  EXPECT_FALSE(std::filesystem::exists(partial));
  folder_.Write("adapter.gguf.partial", "9990");
  const ProgramResult anew = Run({"-f", text, "--restart", "--progress", "always"});
  EXPECT_PRED2(Contains, anew.err, "note: starting anew");
  EXPECT_PRED2(Contains, anew.err, "calibrating: 0 of 10000");
}

TEST_F(CliCalibrate, AnotherCommandsProgressIsNotLost) {
  folder_.Write("adapter.gguf.partial", "1 2");
  const std::string message = "kvadapt: " + out_ + ".partial is another calibration's\n";
  EXPECT_EQ(Run({"-f", c_, "-q"}).err, message) << "one message";
  const ProgramResult refused = Run({"-f", c_});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_TRUE(refused.err.ends_with(message)) << refused.err;
  EXPECT_EQ(ReadWholeFile(out_ + ".partial"), "1 2");
  // One that was interrupted before it replaced what is another's goes on from nothing.
  RunningProgram program(KVADAPT_FAKE_PROGRAM,
                         Arguments("devicefail nobos", {"-f", c_, "--restart", "--progress", "always"}), {});
  EXPECT_TRUE(program.Finish().err.ends_with("kvadapt: the device was lost\n"));
  EXPECT_EQ(Run({"-f", c_, "--restart"}).exit_code, 0);
}

// What is left is told from what this run did, not from what came with the checkpoint.
TEST_F(CliCalibrate, TheTimeLeftIsSensibleAfterGoingOn) {
  const std::string text = folder_.Write("text", std::string(1000, 'x'));
  folder_.Write("adapter.gguf.partial", "940");
  const ProgramResult result = Run({"-f", text, "--progress", "always"}, {}, "slow nobos");
  const size_t end = result.err.find(" token/s, ");
  ASSERT_NE(end, std::string::npos) << result.err;
  const size_t begin = result.err.rfind(' ', end - 1) + 1;
  EXPECT_LE(std::stod(result.err.substr(begin, end - begin)), 50.0) << "20 ms a token\n" << result.err;
  EXPECT_PRED2(Contains, result.err, " left");
}

// Of the final names; what is done is kept.
TEST_F(CliCalibrate, AFullDiskIsSaidWithWhatIsKept) {
  const std::string kept = "the same command goes on from " + out_ + ".partial\n";
  const std::string sums = folder_.Path("sums.gguf");
  const ProgramResult full = Run({"-f", ab_, "--dump-gram", sums, "-q"}, {}, "fullsums nobos");
  EXPECT_EQ(full.exit_code, 1);
  EXPECT_EQ(full.err, "kvadapt: cannot write " + sums + ": no room; " + kept);
  EXPECT_PRED2(Contains, Run({"-f", ab_, "--dump-gram", sums}).err, "note: going on from");
  // Of all files, those that take the messages too, but these are short.
  const std::string plot = folder_.Path("plot.svg");
  std::string command = "ulimit -f 1; trap '' XFSZ; exec " + ShellWords(KVADAPT_FAKE_PROGRAM);
  for (const std::string& argument : Arguments("nobos", {"-f", ab_, "--plot", plot, "-q"})) {
    command += " '" + argument + "'";
  }
  const ProgramResult limited = RunShell(command);
  EXPECT_EQ(limited.exit_code, 1);
  EXPECT_TRUE(limited.err.starts_with("kvadapt: cannot write " + plot +
                                      ": File too large: free space there or name another file; "))
      << limited.err;
}

}  // namespace
}  // namespace kvrun
