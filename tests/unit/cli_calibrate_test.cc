// kvadapt calibrate: what reaches the library, and what is said of its answer.
#include <gtest/gtest.h>
#include <signal.h>

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
  // With -m MODEL and -o out_.
  std::vector<std::string> Arguments(const std::string& model, const std::vector<std::string>& more) const {
    std::vector<std::string> arguments = {"calibrate", "-m", model, "-o", out_};
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
            "     16   60.4 %        -        -   70.4 %        -        -\n" +
                out_ + ": query-centred, rank 40, 2 layers, 56 B; from 3 tokens in 2 pieces\n");
  EXPECT_PRED2(Contains, Run({"-f", ab_, "--rank", "3"}).out,
               "lowest  in layer\n     3    87.50 %    75.00 %  1\n");
}

// Of the longest text.
TEST_F(CliCalibrate, ReuseRatesAreMeasuredUnlessSaidOtherwise) {
  const Json measured = Json::parse(Run({"-f", c_, "-f", ab_, "--ctx", "512", "--json"}).out);
  EXPECT_EQ(measured["reuse"]["n_ctx"], 2);
  EXPECT_EQ(measured["reuse"]["rates"].size(), 8U);
  EXPECT_EQ(measured["reuse"]["rates"][0]["ctx"], 512);
  EXPECT_PRED2(Contains, Run({"-f", c_}).out, "\nno reuse rates: too short\n");
  EXPECT_FALSE(Json::parse(Run({"-f", ab_, "--no-reuse-rates", "--json"}).out).contains("reuse"));
  EXPECT_FALSE(Contains(Run({"-f", ab_, "--no-reuse-rates"}).out, "reuse"));
  EXPECT_PRED2(Contains, Run({"-f", ab_, "--progress", "always"}).err, "evaluating (reuse rates): 2 of 2");
}

TEST_F(CliCalibrate, WithoutReuseRatesTheAdapterStays) {
  const ProgramResult result = Run({"-f", ab_, "--quiet"}, {}, "unread");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.err, "kvadapt: " + out_ +
                            " is complete but for its reuse rates, which --no-reuse-rates leaves out\n"
                            "kvadapt: the device was lost\n");
  EXPECT_PRED2(Contains, Written(), "kind query-centred");
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
  const ProgramInput input{{"KVRUN_MODEL=nobos", "KVRUN_FILE=" + ab_, "KVRUN_KIND=centred", "KVRUN_RANK=7",
                            "KVRUN_CTX=64", "KVRUN_OUTPUT=" + out_, "KVRUN_QUIET=1"},
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
               "kvadapt: KVRUN_KIND: \"svd\" is not one of plain, centred, query, query-centred");
  const ProgramResult help = RunProgram(KVADAPT_FAKE_PROGRAM, {"calibrate", "--help"});
  for (const char* name :
       {"KVRUN_FILE", "KVRUN_IDS", "KVRUN_TOKENS", "KVRUN_KIND", "KVRUN_RANK", "KVRUN_OUTPUT"})
    EXPECT_PRED2(Contains, help.out, name);
}

TEST_F(CliCalibrate, BadUsageIsSaid) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"-m", "toy", "-f", ab_}, "-o ADAPTER.gguf"},
      {{"-m", "toy", "-o", out_}, "give texts"},
      {{"-f", ab_, "-o", out_}, "no model is named"},
      {{"-m", "toy", "-f", ab_, "--ids", ab_, "-o", out_}, "--ids"},
      {{"-m", "toy", "-f", ab_, "--tokens", "3", "-o", out_}, "--tokens"},
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

TEST_F(CliCalibrate, ProgressIsShownAndCtrlCLeavesNoFile) {
  EXPECT_PRED2(Contains, Run({"-f", ab_, "--progress", "always"}).err, "calibrating: 2 of 2, 100 %");
  std::filesystem::remove(out_);
  const size_t n_files = FilesInFolder();
  RunningProgram program(
      KVADAPT_FAKE_PROGRAM,
      Arguments("slow", {"-f", folder_.Write("ab", std::string(1000, 'x')), "--progress", "always"}), {});
  ASSERT_TRUE(program.WaitForOutput("calibrating"));
  program.Signal(SIGINT);
  const ProgramResult result = program.Finish();
  EXPECT_EQ(result.exit_code, 130);
  EXPECT_PRED2(Contains, result.err, "kvadapt: interrupted");
  EXPECT_EQ(FilesInFolder(), n_files);
}

TEST_F(CliCalibrate, TheProgramNamesItself) {
  EXPECT_EQ(RunProgram(KVADAPT_FAKE_PROGRAM, {"--version"}).out, "kvadapt 0.1.0 (fake)\n");
  EXPECT_PRED2(Contains, RunProgram(KVADAPT_FAKE_PROGRAM, {"--help"}).out, "calibrate");
}

}  // namespace
}  // namespace kvrun
