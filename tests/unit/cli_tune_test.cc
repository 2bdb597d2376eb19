// kvadapt tune: what reaches offline/, and what is said and written of its answer.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "offline/device_profile.h"
#include "tests/support/cli_fixture.h"

namespace kvrun {
namespace {

using testing::Contains;
using testing::Json;

class CliTune : public ::testing::Test {
 protected:
  static ProgramResult Tune(const std::vector<std::string>& more, const ProgramInput& input = {}) {
    std::vector<std::string> arguments = {"tune"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return RunProgram(KVADAPT_FAKE_PROGRAM, arguments, input);
  }
  // With what must be given, and --force, as what the toy writes does not begin as kvrun's results do.
  ProgramResult Run(const std::vector<std::string>& more, const std::string& model = "nobos") const {
    std::vector<std::string> arguments = {"-m", model,      "-f",   text_,    "-o",
                                          out_, "--budget", "1/13", "--force"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Tune(arguments);
  }
  std::string Written() const { return ReadWholeFile(out_); }
  // The text alone, where nothing was written.
  size_t NewFiles() const {
    return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(folder_.Path("")), {})) - 1;
  }

  TemporaryFolder folder_;
  std::string out_ = folder_.Path("kvrun.toml");
  std::string text_ = folder_.Write("text", std::string(2000, 'a'));
};

TEST_F(CliTune, OptionsReachTheSearch) {
  ASSERT_EQ(Run({}).exit_code, 0);
  EXPECT_EQ(Written(),
            "budget 1/13 kl 0 minutes 7 checks 0 adapter  folder  ids 2000 ctx 8192 batch 1 from \n");
  ASSERT_EQ(Run({"--ctx", "256,300", "--batch", "4,1", "--max-kl", "0.5", "--minutes", "0.25", "--check", "7",
                 "--kv-dir", "/there"})
                .exit_code,
            0);
  EXPECT_EQ(Written(),
            "budget 1/13 kl 0.5 minutes 0.25 checks 7 adapter  folder /there ids 1200 ctx 256 300 batch 4 1 "
            "from \n")
      << "four pieces of the longest context are read, and no more";
}

TEST_F(CliTune, TheAdapterIsNamedFromTheConfigsFolder) {
  const std::string near = folder_.Write("near.gguf", "x");
  ASSERT_EQ(Run({"--kv-adapter", near}).exit_code, 0);
  EXPECT_PRED2(Contains, Written(), "adapter " + near + " folder");
  EXPECT_TRUE(Written().ends_with("from near.gguf\n")) << Written();
  const TemporaryFolder elsewhere;
  const std::string far = std::filesystem::canonical(elsewhere.Write("far.gguf", "x")).string();
  ASSERT_EQ(Run({"--kv-adapter", far}).exit_code, 0);
  EXPECT_TRUE(Written().ends_with("from " + far + "\n")) << Written();
}

TEST_F(CliTune, AnAdapterThatNoConfigCanNameIsRefusedBeforeTheSearch) {
  const std::string folder = folder_.Path("no UTF-8: \xff");
  std::filesystem::create_directory(folder);
  const std::string adapter = folder + "/a.gguf";
  std::ofstream(adapter) << "x";
  const ProgramResult refused = Run({"--kv-adapter", adapter});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_PRED2(Contains, refused.err, "a config cannot name an adapter whose path is not UTF-8");
  EXPECT_FALSE(std::filesystem::exists(out_));
  const std::string beside = folder + "/kvrun.toml";
  ASSERT_EQ(
      Tune({"-m", "nobos", "-f", text_, "-o", beside, "--budget", "1/13", "--kv-adapter", adapter}).exit_code,
      0);
  EXPECT_TRUE(ReadWholeFile(beside).ends_with("from a.gguf\n")) << "without its folder";
}

TEST_F(CliTune, TheReportNamesChoiceAndNeighbours) {
  const ProgramResult result = Run({"--ctx", "256"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  for (const char* part :
       {"256 tokens x 1 sequence",
        "; wanted: a KL of at most 0.0209, and faster than what kvrun chooses by the budget\n",
        "chosen         5.00 ms predicted     5.50 measured",
        "by budget      6.00 ms predicted     6.50 measured", "--kv-group 4", "bounded by compute", "group 8",
        "slower", "type f16", "does not fit"}) {
    EXPECT_PRED2(Contains, result.out, part);
  }
  EXPECT_TRUE(result.out.ends_with(out_ + ": for kvrun --config, 1 solution\n")) << result.out;
  EXPECT_FALSE(Contains(result.out, "front of")) << "only where --pareto asks";
  EXPECT_FALSE(Contains(result.out, "predictions checked"));
  EXPECT_EQ(NewFiles(), 1U);
  const std::string front = Run({"--pareto"}).out;
  EXPECT_PRED2(Contains, front, "front of the 2 points measured, with predicted times; hidden: ");
  EXPECT_PRED2(Contains, front, "\n       5.00 ms  KL 0.0100  hidden 100 %");
  const std::string plot = std::filesystem::path(out_).replace_extension(".svg").string();
  EXPECT_TRUE(ReadWholeFile(plot).starts_with("<svg")) << "beside the config";
  EXPECT_EQ(Json::parse(Run({"--pareto", "--json"}).out)["plot"], plot);
  const ProgramResult checked = Run({"--check", "1"});
  EXPECT_PRED2(Contains, checked.out, "11.00 ms   10.00 ms    1.00   1.100");
  EXPECT_PRED2(Contains, checked.out, "the worst is off by 10.0 %");
}

TEST_F(CliTune, JsonIsOneObject) {
  const ProgramResult result = Run({"--json", "--check", "1", "-q"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  const Json json = Json::parse(result.out);
  EXPECT_EQ(json["path"], out_);
  ASSERT_EQ(json["solutions"].size(), 1U);
  const Json& solution = json["solutions"][0];
  EXPECT_EQ(solution["chosen"]["options"], Json({{"group", "4"}}));
  EXPECT_EQ(solution["chosen"]["measured_ms"], 5.5);
  EXPECT_EQ(solution["own"]["predicted_ms"], 6.0);
  EXPECT_EQ(solution["bound"], "compute");
  EXPECT_EQ(solution["rejected"][0]["kl"], 0.02);
  EXPECT_TRUE(solution["rejected"][1]["predicted_ms"].is_null()) << "it does not fit";
  EXPECT_EQ(solution["measured"].size(), 2U);
  EXPECT_EQ(solution["front"], Json::array({1}));
  EXPECT_EQ(json["checks"][0]["predicted_ms"], 11.0);
  EXPECT_EQ(json["unreached"], Json::array());
  EXPECT_EQ(Json::parse(Run({"--json", "--budget", "1/15"}).out)["unreached"],
            Json({"not within the toy's limit at 4096 tokens"}));
  EXPECT_EQ(json["checks"][0]["hit_rate"], 1.0);
  EXPECT_EQ(Run({"-q", "--budget", "1/15"}).err, "kvadapt: not within the toy's limit at 4096 tokens\n");
}

TEST_F(CliTune, TextsInAFolderAreNotReplaced) {
  const std::string folder = folder_.Path("texts");
  std::filesystem::create_directory(folder);
  const std::string book = folder + "/book.txt";
  std::ofstream(book) << "a book";
  const std::vector<std::string> most = {"-m", "nobos", "-f", folder, "--budget", "1/13"};
  const auto run = [&](std::vector<std::string> more) {
    more.insert(more.begin(), most.begin(), most.end());
    return Tune(more);
  };
  const ProgramResult refused = run({"-o", folder + "/../texts/book.txt"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_PRED2(Contains, refused.err,
               "book.txt would be replaced, and lies in " + folder + ", which is read");
  EXPECT_EQ(run({"-o", out_, "--plot", book}).exit_code, 2);
  EXPECT_EQ(ReadWholeFile(book), "a book");
  EXPECT_EQ(run({"-o", folder + "/kvrun.toml", "--plot", folder + "/front.svg"}).exit_code, 0);
  std::ofstream(folder + "/kvrun.toml") << "# Options of the KV cache for one model on one machine: ..\n";
  EXPECT_EQ(run({"-o", folder + "/kvrun.toml", "--plot", folder + "/front.svg"}).exit_code, 0)
      << "an earlier run's results are";
}

TEST_F(CliTune, WhatCannotBeWrittenIsSaid) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  const ProgramResult full = Tune({"-m", "nobos", "-f", text_, "-o", "/dev/full", "--budget", "1/13"});
  EXPECT_EQ(full.exit_code, 1);
  EXPECT_EQ(
      full.err.substr(full.err.find("kvadapt: cannot")),
      "kvadapt: cannot write /dev/full: No space left on device; what was found is on standard output\n");
  EXPECT_TRUE(full.out.starts_with("budget 1/13")) << full.out;
  const ProgramResult json =
      Tune({"-m", "nobos", "-f", text_, "-o", "/dev/full", "--budget", "1/13", "--json", "-q"});
  EXPECT_PRED2(Contains, Json::parse(json.out)["error"]["message"].get<std::string>(),
               "No space left on device; what was found: budget 1/13");
  const ProgramResult plot = Run({"--plot", "/dev/full"});
  EXPECT_EQ(plot.exit_code, 1);
  EXPECT_PRED2(Contains, plot.out, "by budget");
  EXPECT_PRED2(Contains, plot.err, "cannot write /dev/full");
  const ProgramResult both = Run({"--plot", "/dev/full", "--json"});
  EXPECT_EQ(both.exit_code, 1);
  const Json report = Json::parse(both.out.substr(0, both.out.find('\n')), nullptr, false);
  EXPECT_EQ(report["solutions"].size(), 1U) << "it is not lost: " << both.out;
  EXPECT_PRED2(Contains, Written(), "budget 1/13");
}

TEST_F(CliTune, PlotsAreDrawn) {
  const std::string plot = folder_.Path("front.svg");
  ASSERT_EQ(Run({"--plot", plot, "--ctx", "256"}).exit_code, 0);
  const std::string svg = ReadWholeFile(plot);
  for (const char* part : {"<svg", ">256 x 1, all<", ">256 x 1, front<", ">256 x 1, chosen<", "KL"})
    EXPECT_PRED2(Contains, svg, part);
  EXPECT_EQ(NewFiles(), 2U) << "nothing is left beside config and plot";
}

TEST_F(CliTune, OptionsAreVariablesToo) {
  const ProgramInput input{{"KVRUN_MODEL=nobos", "KVRUN_FILE=" + text_, "KVRUN_OUTPUT=" + out_,
                            "KVRUN_BUDGET=5MiB", "KVRUN_CTX=512", "KVRUN_BATCH=2", "KVRUN_MINUTES=3",
                            "KVRUN_MAX_KL=0.25", "KVRUN_CHECK=2", "KVRUN_QUIET=1"},
                           "",
                           ""};
  const ProgramResult result = Tune({}, input);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  EXPECT_PRED2(Contains, Written(), "budget 5MiB kl 0.25 minutes 3 checks 2");
  EXPECT_PRED2(Contains, Written(), "ctx 512 batch 2");
}

TEST_F(CliTune, WhatWasNotReachedIsSaid) {
  EXPECT_FALSE(Contains(Run({}).err, "note: at"));
  EXPECT_PRED2(Contains, Run({"--budget", "1/14"}).out,
               "chooses by the budget: nothing else that was tried is\n");
  EXPECT_PRED2(Contains, Run({"--budget", "1/14"}).err,
               "note: at 8192 tokens x 1 none of 2 points tried is both faster than what kvrun chooses from "
               "the budget "
               "alone and as good (3 not on other parts of the text): ");
  EXPECT_PRED2(Contains, Run({"--budget", "1/15"}).err, "kvadapt: not within the toy's limit at 4096");
  EXPECT_PRED2(Contains, Run({"--budget", "1/15"}).err,
               "nothing that was tried keeps --max-kl where all parts of the texts count");
}

TEST_F(CliTune, WhatFailedAfterSomethingWasDoneIsAFailureAndTheConfigIsThere) {
  for (const std::vector<std::string>& more :
       {std::vector<std::string>{}, {"--json"}, {"--plot", folder_.Path("front.svg")}}) {
    std::vector<std::string> arguments = {"--budget", "1/17", "-q"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const ProgramResult result = Run(arguments);
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_EQ(result.err, "kvadapt: not within the toy's limit at 4096 tokens\n");
    EXPECT_PRED2(Contains, Written(), "budget 1/17");
  }
  EXPECT_EQ(Run({"--budget", "1/15"}).exit_code, 0) << "a limit that was not reached is no failure";
}

TEST_F(CliTune, WhetherItWasConfirmedOnOtherTextIsSaid) {
  EXPECT_PRED2(Contains, Run({}).out,
               "on those of the search 0.0100, by budget 0.0200; on others 0.0120, by budget 0.0240\n");
  EXPECT_PRED2(Contains, Run({"--budget", "1/16"}).out, "nothing was confirmed on another");
  const Json solution = Json::parse(Run({"--json"}).out)["solutions"][0];
  EXPECT_EQ(solution["held_out_kl"], 0.012);
  EXPECT_EQ(solution["own_held_out_kl"], 0.024);
  EXPECT_EQ(solution["is_own"], false);
  EXPECT_EQ(solution["is_within_limit"], true);
  EXPECT_EQ(solution["n_refused"], 3);
}

// The bound is one of what stands beside it: the mean over all parts.
TEST_F(CliTune, NoKlThatIsShownIsAboveItsBound) {
  const std::string text = Run({}).out;
  EXPECT_PRED2(Contains, text, "wanted: a KL of at most 0.0209,");
  EXPECT_PRED2(Contains, text, "KL 0.0110  top-1 90.0 %");
  EXPECT_PRED2(Contains, text, "KL 0.0220  top-1 90.0 %");
  const Json solution = Json::parse(Run({"--json"}).out)["solutions"][0];
  EXPECT_EQ(solution["kl"], 0.011);
  EXPECT_EQ(solution["own_kl"], 0.022);
  EXPECT_EQ(solution["kl_limit"], 0.0209);
  EXPECT_EQ(solution["search_kl_limit"], 0.015);
  EXPECT_PRED2(Contains, Run({"--max-kl", "0.04"}).out, "; wanted: a KL of at most 0.04\n");
  EXPECT_PRED2(Contains, Run({"--max-kl", "0.04", "--budget", "1/15"}).out,
               "; wanted: a KL of at most 0.04, which nothing that was tried keeps\n");
}

TEST_F(CliTune, TheFormerNameOfMaxKlIsAnsweredWithTheNewOne) {
  const ProgramResult refused = Run({"--quality-floor", "0.04"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_PRED2(Contains, refused.err, "kvadapt: --quality-floor: it is called --max-kl now\n");
  EXPECT_FALSE(std::filesystem::exists(out_));
  const std::string help = Tune({"--help"}).out;
  EXPECT_PRED2(Contains, help, "--max-kl");
  EXPECT_FALSE(Contains(help, "--quality-floor"));
}

TEST_F(CliTune, WhatThereWasNoTimeForIsSaid) {
  const ProgramResult result = Run({"--budget", "1/18"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_PRED2(Contains, result.err, "note: 2 seconds are too few\n");
  EXPECT_PRED2(Contains, result.err,
               "note: there was no time for the quality at 8192 tokens; more --minutes have\n");
  EXPECT_PRED2(Contains, result.out, "KL not measured");
  EXPECT_PRED2(Contains, result.out, "there was no time to measure quality on texts");
  EXPECT_FALSE(Contains(result.out, "wanted"));
  const Json json = Json::parse(Run({"--budget", "1/18", "--json", "-q"}).out);
  EXPECT_EQ(json["left_out"], Json({"the quality at 8192 tokens"}));
  EXPECT_TRUE(json["solutions"][0]["kl"].is_null());
  EXPECT_TRUE(json["solutions"][0]["chosen"]["kl"].is_null());
  EXPECT_PRED2(Contains, Run({"--budget", "1/19"}).out,
               "there was no time to confirm it on other parts of the texts");
}

TEST_F(CliTune, ProgressReachesTheEnd) {
  EXPECT_PRED2(Contains, Run({"--progress", "always"}).err, "searching, seconds: 2 of 2, 100 %\n");
}

TEST_F(CliTune, WhatQualityIsMeasuredOnIsSaid) {
  const ProgramResult result = Run({"--ctx", "256"});
  EXPECT_PRED2(Contains, result.err, "quality is measured on 1 text, 1024 tokens");
  EXPECT_FALSE(Contains(result.err, "--tokens")) << "tune has no such option: " << result.err;
  EXPECT_PRED2(Contains, Run({"--progress", "always"}).err, "searching");
  EXPECT_EQ(Run({"-q"}).err, "");
}

TEST_F(CliTune, BadUsageIsSaid) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"-m", "toy", "-o", out_}, "no budget is given"},
      {{"-m", "toy", "--budget", "1/13"}, "-o kvrun.toml"},
      {{"-o", out_, "--budget", "1/13"}, "no model is named"},
      {{"-m", "toy", "-o", out_, "--budget", "1/13", "--plot", out_}, "would hold two results"},
      {{"-m", "toy", "-o", out_, "--budget", "1/13", "--plot", folder_.Path(".") + "/kvrun.toml"},
       "would hold two results"},
      {{"-m", "toy", "-o", text_, "--budget", "1/13", "-f", text_},
       "would replace " + text_ + ", which is read"},
      {{"-m", "toy", "-o", out_, "--budget", "3 fortnights"}, "--budget: the toy knows no fortnights"},
      {{"-m", "toy", "-o", out_, "--budget", "1/13", "--ctx", "255"}, "--ctx"},
      {{"-m", "toy", "-o", out_, "--budget", "1/13", "--ctx", "256,"}, "--ctx"},
      {{"-m", "toy", "-o", out_, "--budget", "1/13", "--batch", "17"}, "--batch"},
      {{"-m", "toy", "-o", out_, "--budget", "1/13", "--batch", "0"}, "--batch"},
      {{"-m", "toy", "-o", out_, "--budget", "1/13", "--max-kl", "-1"}, "--max-kl"},
      {{"-m", "toy", "-o", out_, "--budget", "1/13", "--max-kl", "nan"}, "--max-kl"},
      {{"-m", "toy", "-o", out_, "--budget", "1/13", "--minutes", "0"}, "--minutes"},
      {{"-m", "toy", "-o", out_, "--budget", "1/13", "--check", "-1"}, "--check"},
      {{"-m", "toy", "-o", out_, "--budget", "1/13", "--unknown"}, "--unknown"},
  };
  for (const auto& [arguments, part] : cases) {
    const ProgramResult result = Tune(arguments);
    EXPECT_EQ(result.exit_code, 2) << part;
    EXPECT_EQ(result.out, "") << part;
    EXPECT_PRED2(Contains, result.err, part);
  }
  EXPECT_EQ(NewFiles(), 0U);
}

TEST_F(CliTune, AnOutputThatCannotBeWrittenIsRefusedBeforeAnything) {
  const std::string missing = folder_.Path("no/such");
  const std::pair<std::vector<std::string>, std::string> cases[] = {
      {{"-o", missing}, "kvadapt: cannot write " + missing + ": No such file or directory\n"},
      {{"-o", folder_.Path("")}, "kvadapt: cannot write " + folder_.Path("") + ": Is a directory\n"},
      {{"-o", out_, "--plot", missing}, "kvadapt: cannot write " + missing + ": No such file or directory\n"},
  };
  for (const auto& [arguments, message] : cases) {
    std::vector<std::string> all = {"-m", "toy", "-f", text_, "--budget", "1/13", "--progress", "always"};
    all.insert(all.end(), arguments.begin(), arguments.end());
    const ProgramResult result = Tune(all);
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_EQ(result.err, message) << "neither a text is read nor a model loaded before";
    EXPECT_EQ(result.out, "");
  }
  EXPECT_EQ(NewFiles(), 0U);
}

TEST_F(CliTune, FailuresAreOneLineAndLeaveNoFile) {
  const std::pair<std::vector<std::string>, std::string> cases[] = {
      {{"-m", "missing"}, "not found"},
      {{"-m", "nodevice"}, "not found"},
      {{"-m", "toy", "--budget", "nothing"}, "out of memory"},
      {{"-m", "toy", "-f", folder_.Path("none")}, "not found"},
      {{"-m", "toy", "--device-profile", folder_.Path("none")}, "not found"},
  };
  for (const auto& [arguments, status] : cases) {
    std::vector<std::string> all = {"--json", "-q", "-o", out_, "--plot", folder_.Path("plot")};
    const bool has_budget = std::count(arguments.begin(), arguments.end(), "--budget") > 0;
    if (!has_budget) all.insert(all.end(), {"--budget", "1/13"});
    const bool has_text = std::count(arguments.begin(), arguments.end(), "-f") > 0;
    if (!has_text) all.insert(all.end(), {"-f", text_});
    all.insert(all.end(), arguments.begin(), arguments.end());
    const ProgramResult result = Tune(all);
    EXPECT_EQ(result.exit_code, 1) << status;
    EXPECT_EQ(Json::parse(result.out, nullptr, false)["error"]["status"], status) << result.out;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  }
  EXPECT_EQ(NewFiles(), 0U);
  folder_.Write("kvrun.toml", "before");
  EXPECT_EQ(Run({"--budget", "nothing"}).exit_code, 1);
  EXPECT_EQ(Written(), "before") << "what was there stays";
}

class CliTuneProfile : public CliTune {
 protected:
  // As the toy's kvadapt probe would write it here.
  offline::DeviceProfile Profile() const {
    offline::DeviceProfile profile;
    profile.machine = {"", "", "Toy CPU", 2, "toyfs on toy", "0"};
    profile.storage = {"/there", 4096, {{"io_uring", true, 4096, 1, 1e8, 40, 80}}};
    return profile;
  }
  ProgramResult With(const offline::DeviceProfile& profile) const {
    return Run({"--device-profile", folder_.Write("profile.json", offline::ProfileToJson(profile))});
  }
};

TEST_F(CliTuneProfile, OfThisMachineIsTaken) {
  const ProgramResult result = With(Profile());
  EXPECT_EQ(result.exit_code, 0) << result.err;
}

TEST_F(CliTuneProfile, OfAnotherMachineIsRefused) {
  offline::DeviceProfile profile = Profile();
  profile.machine.cpu = "Other CPU";
  const ProgramResult cpu = With(profile);
  EXPECT_EQ(cpu.exit_code, 1);
  EXPECT_PRED2(Contains, cpu.err, "was measured on Other CPU with toyfs on toy, and this is Toy CPU");
  EXPECT_PRED2(Contains, cpu.err, "run kvadapt probe here");
  profile = Profile();
  profile.machine.storage = "otherfs on tape";
  EXPECT_PRED2(Contains, With(profile).err, "otherfs on tape");
  profile = Profile();
  profile.storage.rates.clear();
  EXPECT_PRED2(Contains, With(profile).err, "says nothing of storage");
  const ProgramResult bad = Run({"--device-profile", text_});
  EXPECT_EQ(bad.exit_code, 1);
  EXPECT_PRED2(Contains, bad.err, text_);
  EXPECT_FALSE(std::filesystem::exists(out_));
}

TEST_F(CliTune, CtrlCEndsItAndLeavesNoFile) {
  const std::vector<std::string> arguments = {"tune", "-m",       "slownobos", "-f",         text_,   "-o",
                                              out_,   "--budget", "1/13",      "--progress", "always"};
  RunningProgram program(KVADAPT_FAKE_PROGRAM, arguments, {});
  ASSERT_TRUE(program.WaitForOutput("searching"));
  program.Signal(SIGINT);
  const ProgramResult result = program.Finish();
  EXPECT_EQ(result.exit_code, 130);
  EXPECT_EQ(result.out, "");
  EXPECT_PRED2(Contains, result.err, "kvadapt: interrupted");
  EXPECT_EQ(NewFiles(), 0U);
}

}  // namespace
}  // namespace kvrun
