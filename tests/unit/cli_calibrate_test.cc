// kvadapt calibrate: what reaches the library, and what is said of its answer.
#include <gtest/gtest.h>

#include <cstddef>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/cli_calibrate_fixture.h"
#include "tests/support/cli_fixture.h"

namespace kvrun {
namespace {

using testing::CliCalibrate;
using testing::Contains;
using testing::Json;

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

TEST_F(CliCalibrate, TheProgramNamesItself) {
  EXPECT_EQ(RunProgram(KVADAPT_FAKE_PROGRAM, {"--version"}).out, "kvadapt 0.1.0 (fake)\n");
  EXPECT_PRED2(Contains, RunProgram(KVADAPT_FAKE_PROGRAM, {"--help"}).out, "calibrate");
}

}  // namespace
}  // namespace kvrun
