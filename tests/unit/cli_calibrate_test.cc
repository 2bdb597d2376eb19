// kvadapt calibrate: what reaches the library, and what is said of its answer.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/support/cli_fixture.h"

namespace kvrun {
namespace {

using testing::Contains;
using testing::Json;

class CliCalibrate : public ::testing::Test {
 protected:
  // With -m MODEL and -o out_; with --force, as what the toy writes does not begin as kvrun's results do.
  std::vector<std::string> Arguments(const std::string& model, const std::vector<std::string>& more) const {
    std::vector<std::string> arguments = {"calibrate", "-m", model, "-o", out_, "--force"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
  ProgramResult Run(const std::vector<std::string>& more, const ProgramInput& input = {},
                    const std::string& model = "nobos") const {
    return RunProgram(KVADAPT_FAKE_PROGRAM, Arguments(model, more), input);
  }
  std::string Written() const { return ReadWholeFile(out_); }
  size_t FilesInFolder() const {
    return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(folder_.Path("")), {}));
  }

  TemporaryFolder folder_;
  std::string out_ = folder_.Path("adapter.gguf");
  std::string ab_ = folder_.Write("ab", "ab");
  std::string c_ = folder_.Write("c", "c");
};

TEST_F(CliCalibrate, TextsAndOptionsReachTheLibrary) {
  ASSERT_EQ(Run({"-f", ab_, "-f", c_}).exit_code, 0);
  EXPECT_EQ(Written(), "kind query-centred rank 0 ctx 0 device auto | 97 98 | 99");
  ASSERT_EQ(
      Run({"-f", "-", "--kind", "plain", "--rank", "9", "--ctx", "512", "--device", "gpu"}, {{}, "d", ""})
          .exit_code,
      0);
  EXPECT_EQ(Written(), "kind plain rank 9 ctx 512 device gpu | 100");
  ASSERT_EQ(Run({"-f", c_}, {}, "toy").exit_code, 0);
  EXPECT_PRED2(Contains, Written(), "| 256 99") << "each text begins as the model's file asks";
}

TEST_F(CliCalibrate, IdsAreTakenAsTheyAre) {
  const std::string ids = folder_.Write("ids", "5 6\n7");
  ASSERT_EQ(Run({"--ids", ids}, {}, "toy").exit_code, 0);
  EXPECT_PRED2(Contains, Written(), "| 5 6 7");
  ASSERT_EQ(Run({"--ids", ids, "--tokens", "2"}).exit_code, 0);
  EXPECT_TRUE(Written().ends_with("| 5 6")) << Written();
  const ProgramResult few = Run({"--ids", ids, "--tokens", "4"});
  EXPECT_EQ(few.exit_code, 1);
  EXPECT_EQ(few.err, "kvadapt: " + ids + " has 3 token ids, fewer than --tokens 4\n");
}

// The toy's time is 17 minutes, of which three are the default.
TEST_F(CliCalibrate, TimeIsLimitedUnlessTokensAreNamedAndWhatItIsShortOfIsSaid) {
  const std::string text = folder_.Write("text", std::string(140, 'x'));
  const ProgramResult limited = Run({"-f", text, "--progress", "always"}, {}, "hours slow nobos");
  ASSERT_EQ(limited.exit_code, 0) << limited.err;
  EXPECT_PRED2(
      Contains, limited.err,
      "kvadapt: note: this takes about 3.0 minutes; without a limit it would take about 17.0 minutes "
      "(--minutes 19)\n");
  EXPECT_LT(limited.err.find("note: this takes"), limited.err.find("calibrating: ")) << "before it starts";
  EXPECT_PRED2(Contains, limited.err, "calibrating: 70 of 70, 100 %");
  EXPECT_PRED2(Contains, limited.err, " min left\n") << "with the hour that comes later, cut by the limit";
  for (const char* what : {"70 of 140 tokens", "12 of 20 settings of reuse rates", "shares of layers"}) {
    EXPECT_PRED2(Contains, limited.err,
                 "kvadapt: note: there was no time for " + std::string(what) + "; more --minutes have\n");
  }
  EXPECT_PRED2(Contains, limited.out, "; from 70 tokens in 1 piece\n");
  EXPECT_PRED2(Contains, Written(), "ctx 64") << "shorter pieces";
  const Json json = Json::parse(Run({"-f", text, "--json", "-q"}, {}, "hours nobos").out);
  EXPECT_EQ(json["left_out"].size(), 3U) << json;
  EXPECT_EQ(Run({"-f", text, "-q"}, {}, "hours nobos").err, "");

  const ProgramResult whole = Run({"-f", text, "--tokens", "140"}, {}, "hours nobos");
  EXPECT_PRED2(Contains, whole.err, "kvadapt: note: this takes about 17.0 minutes\n");
  EXPECT_FALSE(Contains(whole.err, "no time for")) << whole.err;
  EXPECT_PRED2(Contains, whole.out, "; from 140 tokens in 1 piece\n");
  EXPECT_PRED2(Contains, Written(), "ctx 0");
  const ProgramResult asked = Run({"-f", text, "--tokens", "140", "--minutes", "0.5"}, {}, "hours nobos");
  EXPECT_PRED2(Contains, asked.err, "this takes about 30 seconds; without a limit it");
  EXPECT_PRED2(Contains, Run({"-f", text}).err, "kvadapt: note: this takes about 1.7 minutes\n");
}

TEST_F(CliCalibrate, TheEnergyHasATable) {
  const ProgramResult result = Run({"-f", ab_, "-f", c_});
  EXPECT_EQ(result.out,
            "  rank  energy kept     lowest  in layer\n"
            "     4     9.88 %     9.76 %  1\n"
            "     8    19.76 %    19.51 %  1\n"
            "    12    29.63 %    29.27 %  1\n"
            "    16    39.51 %    39.02 %  1\n"
            "    24    59.27 %    58.54 %  1\n"
            "    32    79.02 %    78.05 %  1\n"
            "    40    98.78 %    97.56 %  1\n"
            "reuse rates with lru, 384 entries selected (M groups), by groups kept (C)\n"
            "  group    C = M   1.25 M    1.5 M      2 M      3 M      4 M\n"
            "     16   60.4 %        -        -   70.4 %        -        -\n"
            "shares of the slots by layer, of the mean (where its cut costs more, a layer has more)\n"
            "      0  1.50  0.50\n" +
                out_ + ": query-centred, rank 40, 2 layers, 56 B; from 3 tokens in 2 pieces\n");
  EXPECT_PRED2(Contains, Run({"-f", ab_, "--rank", "3"}).out,
               "lowest  in layer\n     3    87.50 %    75.00 %  1\n");
  EXPECT_PRED2(Contains, Run({"-f", c_}).out, "; from 1 token in 1 piece\n");
}

// Of the longest text.
TEST_F(CliCalibrate, ReuseRatesAreMeasuredUnlessSaidOtherwise) {
  const Json measured = Json::parse(Run({"-f", c_, "-f", ab_, "--ctx", "512", "--json"}).out);
  EXPECT_EQ(measured["reuse"]["n_ctx"], 2);
  EXPECT_EQ(measured["reuse"]["rates"].size(), 8U);
  EXPECT_EQ(measured["reuse"]["rates"][0]["ctx"], 512);
  EXPECT_PRED2(Contains, Run({"-f", c_}).out, "\nno reuse rates: too short\n");
  EXPECT_FALSE(Json::parse(Run({"-f", ab_, "--no-reuse-rates", "--json"}).out).contains("reuse"));
  EXPECT_EQ(measured["reuse"]["layers"][1]["share"], 0.5);
  EXPECT_TRUE(Json::parse(Run({"-f", ab_, "--no-layer-shares", "--json"}).out)["reuse"]["layers"].empty());
  EXPECT_FALSE(Contains(Run({"-f", ab_, "--no-reuse-rates"}).out, "reuse"));
  EXPECT_PRED2(Contains, Run({"-f", ab_, "--progress", "always"}).err, "evaluating (reuse rates): 2 of 2");
}

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

TEST_F(CliCalibrate, JsonIsTheLibrarysObjectAndThePath) {
  const ProgramResult result = Run({"-f", ab_, "--rank", "2", "--json"});
  const Json object = Json::parse(result.out);
  EXPECT_EQ(object["path"], out_);
  EXPECT_EQ(object["n_tokens"], 2);
  EXPECT_EQ(object["layers"][0]["energy"], Json({0.5, 1.0}));
  EXPECT_EQ(object["fingerprint"], "0123");
}

TEST_F(CliCalibrate, OptionsAreVariablesToo) {
  const ProgramInput input{{"KVRUN_FORCE=1", "KVRUN_MODEL=nobos", "KVRUN_FILE=" + ab_, "KVRUN_KIND=centred",
                            "KVRUN_RANK=7", "KVRUN_CTX=64", "KVRUN_OUTPUT=" + out_, "KVRUN_QUIET=1"},
                           "",
                           ""};
  ASSERT_EQ(RunProgram(KVADAPT_FAKE_PROGRAM, {"calibrate"}, input).exit_code, 0);
  EXPECT_EQ(Written(), "kind centred rank 7 ctx 64 device auto | 97 98");
  const std::string ids = folder_.Write("ids", "5 6");
  ASSERT_EQ(RunProgram(KVADAPT_FAKE_PROGRAM, {"calibrate", "--ids", ids, "--kind", "query"}, input).exit_code,
            0);
  EXPECT_EQ(Written(), "kind query rank 7 ctx 64 device auto | 5 6");
  const ProgramResult bad = Run({"-f", ab_}, {{"KVRUN_KIND=svd"}, "", ""});
  EXPECT_EQ(bad.exit_code, 2);
  EXPECT_PRED2(Contains, bad.err,
               "kvadapt: KVRUN_KIND (--kind of kvadapt calibrate): \"svd\" is not one of plain, centred, "
               "query, query-centred");
  const ProgramResult help = RunProgram(KVADAPT_FAKE_PROGRAM, {"calibrate", "--help"});
  for (const char* name : {"--file", "--ids", "--tokens", "--kind", "--rank", "--output"})
    EXPECT_PRED2(Contains, help.out, name);
}

TEST_F(CliCalibrate, BadUsageIsSaid) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"-m", "toy", "-f", ab_}, "-o ADAPTER.gguf"},
      {{"-m", "toy", "-f", ab_, "-o", out_, "--plot", out_}, "would hold two results"},
      {{"-m", "toy", "-f", ab_, "-o", out_, "--dump-gram", out_}, "would hold two results"},
      {{"-f", ab_, "-o", out_}, "no model is named"},
      {{"-m", "toy", "-f", ab_, "--ids", ab_, "-o", out_}, "--ids"},
      {{"-m", "toy", "-f", ab_, "--tokens", "some", "-o", out_}, "--tokens"},
      {{"-m", "toy", "-f", ab_, "--kind", "svd", "-o", out_}, "--kind"},
      {{"-m", "toy", "-f", ab_, "--rank", "-1", "-o", out_}, "--rank"},
      {{"-m", "toy", "-f", ab_, "--ctx", "all", "-o", out_}, "--ctx"},
  };
  for (const auto& [arguments, part] : cases) {
    std::vector<std::string> all = {"calibrate"};
    all.insert(all.end(), arguments.begin(), arguments.end());
    const ProgramResult result = RunProgram(KVADAPT_FAKE_PROGRAM, all);
    EXPECT_EQ(result.exit_code, 2) << part;
    EXPECT_EQ(result.out, "") << part;
    EXPECT_TRUE(result.err.starts_with("kvadapt: ")) << result.err;
    EXPECT_PRED2(Contains, result.err, part);
  }
  EXPECT_FALSE(std::filesystem::exists(out_));
}

// - is standard input, and never an output.
TEST_F(CliCalibrate, AnOutputIsAFileWithAName) {
  const std::vector<std::string> cases[] = {
      {"calibrate", "-m", "toy", "-f", "-", "-o", "-"},
      {"calibrate", "-m", "toy", "-f", ab_, "-o", out_, "--plot", "-"},
      {"tune", "-m", "toy", "-f", ab_, "--budget", "1GiB", "-o", "-"},
      {"probe", "-m", "toy", "-o", "-"},
  };
  for (const std::vector<std::string>& arguments : cases) {
    const ProgramResult result = RunProgram(KVADAPT_FAKE_PROGRAM, arguments, {{}, "text", ""});
    EXPECT_EQ(result.exit_code, 2) << arguments[0];
    EXPECT_TRUE(result.err.starts_with("kvadapt: an output is a file, and - is no file's name here"))
        << result.err;
  }
}

TEST_F(CliCalibrate, AnOutputThatCannotBeWrittenFailsBeforeLoading) {
  const std::pair<std::string, std::string> cases[] = {
      {"/no/such/folder/x", "kvadapt: cannot write /no/such/folder/x: No such file or directory\n"},
      {"/dev/null", "kvadapt: cannot write /dev/null: it is there and not a file: name another\n"},
  };
  for (const auto& [path, message] : cases) {
    const ProgramResult result = RunProgram(
        KVADAPT_FAKE_PROGRAM, {"calibrate", "-m", "toy", "-f", ab_, "--progress", "always", "-o", path});
    EXPECT_EQ(result.exit_code, 1) << path;
    EXPECT_EQ(result.err, message);
  }
}

TEST_F(CliCalibrate, FailuresAreOneLineAndLeaveNoFile) {
  const size_t n_files = FilesInFolder();
  for (const char* model : {"missing", "corrupt", "nodevice", "devicefail"}) {
    const ProgramResult result = Run({"-f", ab_, "--quiet", "--json"}, {}, model);
    EXPECT_EQ(result.exit_code, 1) << model;
    EXPECT_TRUE(Json::parse(result.out)["error"].contains("status")) << result.out;
    EXPECT_EQ(result.err.find('\n'), result.err.size() - 1) << result.err;
    EXPECT_EQ(FilesInFolder(), n_files) << model;
  }
}

TEST_F(CliCalibrate, ProgressIsShown) {
  EXPECT_PRED2(Contains, Run({"-f", ab_, "--progress", "always"}).err, "calibrating: 2 of 2, 100 %");
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

TEST_F(CliCalibrate, FoldersAreReadInTheirOrder) {
  namespace fs = std::filesystem;
  const std::string texts = folder_.Path("texts");
  fs::create_directories(texts + "/b/.git");
  fs::create_directories(texts + "/empty");
  folder_.Write("texts/c", "33");
  folder_.Write("texts/b/2", "2\xc3\xa9");
  folder_.Write("texts/a", "1");
  folder_.Write("texts/b/.git/x", "no");
  folder_.Write("texts/.hidden", "no");
  folder_.Write("texts/none", "");
  folder_.Write("texts/zero", std::string("a\0b", 3));
  folder_.Write("texts/latin", "\xe9\xe8\xe9");
  folder_.Write("texts/z-copy", "33");
  fs::create_symlink(texts, texts + "/b/round");
  fs::create_symlink(texts + "/a", texts + "/link");
  const ProgramResult result = Run({"-f", texts, "-f", c_});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(Written().ends_with(" | 49 50 195 169 51 51 | 99")) << Written();
  EXPECT_PRED2(
      Contains, result.err,
      "kvadapt: note: 4 texts, 7 tokens; skipped: 2 copies, 1 empty, 2 hidden, 1 link to a folder, 2 "
      "not text\n");
  EXPECT_EQ(Run({"-f", texts, "-q"}).err, "");
  const ProgramResult nothing = Run({"-f", texts + "/empty"});
  EXPECT_EQ(nothing.exit_code, 1);
  EXPECT_PRED2(Contains, nothing.err, "kvadapt: there is no text in what was named: 0 texts, 0 tokens\n");
  const ProgramResult named = Run({"-f", texts + "/zero"});
  EXPECT_EQ(named.exit_code, 1);
  EXPECT_EQ(
      named.err,
      "kvadapt: " + texts +
          "/zero is not text: it has zero bytes, or is mostly not UTF-8; convert text of another encoding "
          "to UTF-8 (iconv -f UTF-16 -t UTF-8), or name another file\n");
  const ProgramResult empty = Run({"-f", ab_, "-f", texts + "/none", "-q"});
  EXPECT_EQ(empty.exit_code, 1);
  EXPECT_EQ(empty.err, "kvadapt: " + texts + "/none is empty: give a text\n");
  EXPECT_EQ(Run({"-f", "-", "-q"}).err, "kvadapt: standard input is empty: give a text\n");
}

// A "coarse" model's tokens have 64 KiB.
TEST_F(CliCalibrate, ATextThatIsTooLargeIsSaidToBe) {
  const std::string most(size_t{64} << 20, 'x');
  const std::string whole = folder_.Write("whole", most);
  EXPECT_FALSE(Contains(Run({"-f", whole}, {}, "coarse nobos").err, "alone are read"));
  const std::string large = folder_.Write("large", most + "x");
  const ProgramResult result = Run({"-f", large, "-f", c_}, {}, "coarse nobos");
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_PRED2(Contains, result.err,
               "kvadapt: note: 2 texts, 1025 tokens; of " + large +
                   " the first 64 MiB alone are read: split larger texts, and name the parts\n");
}

TEST_F(CliCalibrate, NoMoreThanSoManyTokensAreRead) {
  const ProgramResult result = Run({"-f", ab_, "-f", ab_, "-f", c_, "--tokens", "3"});
  EXPECT_TRUE(Written().ends_with(" | 97 98 | 97")) << Written();
  EXPECT_PRED2(Contains, result.err,
               "kvadapt: note: 2 texts, 3 tokens; the rest is not read: --tokens N takes more\n");
  EXPECT_EQ(Run({"-f", ab_, "--tokens", "2"}).err.find("texts"), std::string::npos) << "nothing is left out";
  // The toy's tokens are bytes.
  Run({"-f", folder_.Write("large", std::string(400000, 'x')), "--json"});
  const std::string written = Written();
  EXPECT_EQ(std::count(written.begin() + static_cast<std::ptrdiff_t>(written.find('|')), written.end(), ' '),
            131072);
  Run({"-f", "-", "--tokens", "90000"}, {{}, std::string(200000, 'y'), ""});
  const std::string piped = Written();
  EXPECT_EQ(std::count(piped.begin() + static_cast<std::ptrdiff_t>(piped.find('|')), piped.end(), ' '),
            90000);
}

TEST_F(CliCalibrate, DebiansTextsAreTheDefault) {
  const std::string first = "/usr/share/common-licenses/Apache-2.0";
  if (!std::filesystem::exists(first)) GTEST_SKIP() << "no " << first;
  const ProgramResult result = Run({"--tokens", "400"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_PRED2(Contains, result.err,
               "kvadapt: note: no texts are named; of Debian's own: 1 text, 400 tokens");
  std::string expected = " |";
  for (const char byte : ReadWholeFile(first).substr(0, 400)) expected += " " + std::to_string(int{byte});
  EXPECT_TRUE(Written().ends_with(expected)) << Written();
}

TEST_F(CliCalibrate, PlotAndSumsAreWrittenToo) {
  const std::string plot = folder_.Path("plot.svg");
  const std::string sums = folder_.Path("sums.gguf");
  ASSERT_EQ(Run({"-f", ab_, "--plot", plot, "--dump-gram", sums}).exit_code, 0);
  EXPECT_TRUE(ReadWholeFile(plot).starts_with("<svg")) << ReadWholeFile(plot);
  EXPECT_PRED2(Contains, ReadWholeFile(plot), "Energy of keys kept by rank, query-centred");
  EXPECT_EQ(ReadWholeFile(sums), "sums");
  for (const char* option : {"--plot", "--dump-gram"}) {
    const ProgramResult result = Run({"-f", ab_, option, "/no/such/folder/x", "--progress", "always"});
    EXPECT_EQ(result.exit_code, 1) << option;
    EXPECT_EQ(result.err, "kvadapt: cannot write /no/such/folder/x: No such file or directory\n");
  }
  const size_t n_files = FilesInFolder();
  Run({"-f", ab_, "--plot", folder_.Path("other.svg")}, {}, "devicefail");
  EXPECT_EQ(FilesInFolder(), n_files);
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

TEST_F(CliCalibrate, TheProgramNamesItself) {
  EXPECT_EQ(RunProgram(KVADAPT_FAKE_PROGRAM, {"--version"}).out, "kvadapt 0.1.0 (fake)\n");
  EXPECT_PRED2(Contains, RunProgram(KVADAPT_FAKE_PROGRAM, {"--help"}).out, "calibrate");
}

}  // namespace
}  // namespace kvrun
