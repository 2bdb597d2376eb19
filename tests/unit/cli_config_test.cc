// --config and --force-config: how a config's options reach the library, what is said, what is refused.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/cli_fixture.h"

namespace kvrun {
namespace {

using testing::Cli;
using testing::Contains;
using testing::Json;

size_t Count(const std::string& text, const std::string& part) {
  size_t n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

class CliConfig : public ::testing::Test {
 protected:
  std::string Write(const Json& config) const { return folder_.Write("c.toml", config.dump()); }

  ProgramResult Run(const Json& config, const std::vector<std::string>& more = {},
                    const ProgramInput& input = {}) const {
    std::vector<std::string> arguments = {"run", "-m", "nobos",    "-p",         "hello",
                                          "-n",  "10", "--config", Write(config)};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Cli(arguments, input);
  }
  std::string Path() const { return folder_.Path("c.toml"); }

  const Json kConfig = {{"options", {{"method", "kvswap"}, {"budget", "1000"}, {"group", "8"}}},
                        {"notes", {"the driver is another"}},
                        {"device", "Fake auto"},
                        {"model", "nobos"}};
  TemporaryFolder folder_;
};

TEST_F(CliConfig, ItsOptionsReachTheLibraryAndThePlanIsSaidBeforeLoading) {
  const ProgramResult result = Run(kConfig, {"--progress", "always"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, "5:hello\n");
  const std::string plan =
      "kvrun: KV cache: 1 sequences of 15 tokens, asked 1x15@default, budget 1000, group 8, method kvswap\n";
  EXPECT_PRED2(Contains, result.err, plan);
  EXPECT_LT(result.err.find(plan), result.err.find("loading"));
  EXPECT_PRED2(Contains, Run(kConfig, {"--json"}).out, R"("method":"kvswap")");  // the session has them, too
}

TEST_F(CliConfig, ANoteIsSaidOnceAndNotWithQuiet) {
  const ProgramResult result = Run(kConfig);
  EXPECT_EQ(Count(result.err, "kvrun: note: " + Path() + ": the driver is another\n"), 1U) << result.err;
  const ProgramResult quiet = Run(kConfig, {"-q"});
  EXPECT_EQ(quiet.exit_code, 0);
  EXPECT_EQ(quiet.err, "");
}

TEST_F(CliConfig, ControlCharactersInANoteAreShownAsText) {
  Json config = kConfig;
  config["notes"] = {"a \x1B[31m\nkvrun: forged"};
  EXPECT_PRED2(Contains, Run(config).err, "kvrun: note: " + Path() + ": a \\x1b[31m\\nkvrun: forged\n");
}

TEST_F(CliConfig, OptionsOnTheCommandLineAndVariablesTakeThePlaceOfSingleOnes) {
  const ProgramResult result = Run(kConfig, {"--kv-budget", "1/13", "--kv-rank", "7", "--kv-dir", "/flash"},
                                   {{"KVRUN_KV_GROUP=4"}, "", ""});
  EXPECT_PRED2(Contains, result.err,
               "asked 1x15@/flash, budget 1/13, dir /flash, group 4, method kvswap, rank 7\n");
}

TEST_F(CliConfig, WithAnotherMethodNoneOfItsOptionsIsTaken) {
  const ProgramResult result = Run(kConfig, {"--kv-method", "flexgen", "--kv-budget", "2000"});
  EXPECT_PRED2(Contains, result.err, "tokens, budget 2000, method flexgen\n");
  EXPECT_PRED2(
      Contains, result.err,
      ": it was tuned for the method kvswap, and flexgen is asked for: none of its options is taken\n");
  EXPECT_PRED2(Contains, Run(kConfig, {"--kv-method", "kvswap"}).err,
               "budget 1000, group 8, method kvswap\n");
}

TEST_F(CliConfig, ItIsAVariableToo) {
  const ProgramResult result =
      Cli({"run", "-m", "nobos", "-p", "hello", "-n", "10"}, {{"KVRUN_CONFIG=" + Write(kConfig)}, "", ""});
  EXPECT_PRED2(Contains, result.err, "budget 1000");
}

TEST_F(CliConfig, AnotherModelIsRefusedBeforeLoadingAndAnotherDeviceAfter) {
  Json config = kConfig;
  config["model"] = "other";
  const ProgramResult model = Run(config, {"--progress", "always"});
  EXPECT_EQ(model.exit_code, 1);
  EXPECT_EQ(model.err, "kvrun: " + Path() + ": it is of the model other\n");
  config = kConfig;
  config["device"] = "Other GPU";
  const ProgramResult device = Run(config, {"--json"});
  EXPECT_EQ(device.exit_code, 1);
  EXPECT_PRED2(Contains, device.err, "kvrun: " + Path() + ": it is of the device Other GPU\n");
  EXPECT_EQ(Json::parse(device.out)["error"]["status"], "unsupported");
}

TEST_F(CliConfig, WithForceARefusalIsANote) {
  Json config = kConfig;
  config["model"] = "other";
  config["device"] = "Other GPU";
  const ProgramResult result = Run(config, {"--force-config"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, "5:hello\n");
  EXPECT_EQ(Count(result.err, ": it is of the model other\n"), 1U) << result.err;
  EXPECT_EQ(Count(result.err, ": it is of the device Other GPU\n"), 1U) << result.err;
}

TEST_F(CliConfig, ForceWithoutAConfigIsBadUsage) {
  const std::vector<std::vector<std::string>> commands = {
      {"run", "-m", "nobos", "-p", "hello", "-n", "10"},
      {"chat", "-m", "toy"},
      {"bench", "-m", "toy"},
      {"eval", "-m", "toy", "--ids", "-"},
      {"logits", "-m", "toy", "--ids", folder_.Write("ids", "1 2 3"), "--out", folder_.Path("o")}};
  for (std::vector<std::string> command : commands) {
    command.push_back("--force-config");
    const ProgramResult result = Cli(command, {{"KVRUN_CONFIG="}, "1 2 3 4", ""});
    EXPECT_EQ(result.exit_code, 2) << command[0];
    EXPECT_PRED2(Contains, result.err,
                 "kvrun: --force-config: there is no config to take: name it with --config FILE\n");
    command.back() = "--config";
    command.push_back("");
    const ProgramResult empty = Cli(command, {{"KVRUN_CONFIG=" + Write(kConfig)}, "1 2 3 4", ""});
    EXPECT_EQ(empty.exit_code, 2) << command[0];
    EXPECT_PRED2(Contains, empty.err, "kvrun: --config: it is empty: name a FILE, or leave the option out\n");
  }
  const std::vector<std::string> run = {"run", "-m", "nobos", "-p", "hello", "-n", "10"};
  EXPECT_EQ(Cli(run, {{"KVRUN_CONFIG="}, "", ""}).exit_code, 0);
  // The variable is for any config there may be.
  EXPECT_EQ(Cli(run, {{"KVRUN_FORCE_CONFIG=1"}, "", ""}).exit_code, 0);
  Json other = kConfig;
  other["model"] = "other";
  EXPECT_EQ(Run(other, {}, {{"KVRUN_FORCE_CONFIG=1"}, "", ""}).exit_code, 0);
  std::vector<std::string> by_variable = run;
  by_variable.push_back("--force-config");
  EXPECT_EQ(Cli(by_variable, {{"KVRUN_CONFIG=" + Write(other)}, "", ""}).exit_code, 0);
}

TEST_F(CliConfig, TheDeviceIsNotChangedByIt) {
  Json config = kConfig;
  config["device"] = "Fake host";
  EXPECT_EQ(Run(config, {"--device", "host"}).exit_code, 0);
  EXPECT_EQ(Run(config).exit_code, 1);
}

TEST_F(CliConfig, WhatCannotBeReadIsSaidBeforeLoading) {
  const ProgramResult missing =
      Cli({"run", "-m", "toy", "-p", "x", "--progress", "always", "--config", folder_.Path("none")});
  EXPECT_EQ(missing.exit_code, 1);
  EXPECT_EQ(missing.err, "kvrun: cannot open " + folder_.Path("none") + "\n");
  const ProgramResult no_config = Cli({"run", "-m", "toy", "-p", "x", "--config", folder_.Write("x", "[")});
  EXPECT_EQ(no_config.exit_code, 1);
  EXPECT_EQ(no_config.err, "kvrun: " + folder_.Path("x") + ":1:1: not a config\n");
}

TEST_F(CliConfig, WhatDoesNotFitNamesTheSolution) {
  Json config = {{"options", {{"method", "kvswap"}, {"budget", "1"}}},
                 {"solution", {{"batch", 2}, {"ctx", 512}}}};
  const std::string origin = "; the options are of " + Path() + ", its solution for 2 x 512 tokens";
  const ProgramResult near = Run(config);
  EXPECT_EQ(near.exit_code, 1);
  EXPECT_PRED2(Contains, near.err, "smallest that does is 9.0 MiB" + origin);
  EXPECT_PRED2(Contains, near.err,
               ", the nearest that it has to 1 x 15: run kvadapt tune for that, or give --kv-");
  EXPECT_EQ(Json::parse(Run(config, {"--json"}).out)["error"]["status"], "out of memory");
  const ProgramResult eval = Cli(
      {"eval", "-m", "toy", "--ids", "-", "--config", Path(), "--progress", "always"}, {{}, "1 2 3 4", ""});
  EXPECT_EQ(eval.exit_code, 1);
  EXPECT_PRED2(Contains, eval.err, origin + ", the nearest that it has to 1 x 4:");
  EXPECT_FALSE(Contains(eval.err, "loading"));
  config["solution"] = {{"batch", 1}, {"ctx", 15}};
  const ProgramResult exact = Run(config);
  EXPECT_PRED2(Contains, exact.err, "its solution for 1 x 15 tokens: give --kv-... options in the place of");
  EXPECT_FALSE(Contains(Run(config, {"--kv-method", "flexgen", "--kv-budget", "1"}).err, "solution"));
}

TEST_F(CliConfig, AnAdapterThatCannotBeReadIsTracedToIt) {
  const Json config = {{"options", {{"adapter", "nope"}}}, {"solution", {{"batch", 1}, {"ctx", 512}}}};
  const std::string origin = "; " + Path() + " names this adapter (a relative path begins at the config's " +
                             "folder): put one there, or give one with --kv-adapter";
  const ProgramResult result = Run(config);
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_PRED2(Contains, result.err, "kvrun: cannot open nope" + origin + "\n");
  const Json error = Json::parse(Run(config, {"--json"}).out)["error"];
  EXPECT_EQ(error["status"], "not found");
  EXPECT_PRED2(Contains, error["message"].get<std::string>(), origin);
  Json planned = config;
  planned["options"] = {{"adapter", "gone"}, {"budget", "1000"}};
  EXPECT_PRED2(Contains, Run(planned).err, "kvrun: cannot open gone" + origin);
  Write(config);
  const ProgramResult bench = Cli({"bench", "-m", "toy", "--config", Path()});
  EXPECT_EQ(bench.exit_code, 1);
  EXPECT_PRED2(Contains, bench.err, "kvrun: nope: damaged" + origin);
  const ProgramInput ids{{}, "1 2 3 4", ""};
  const std::vector<std::string> eval = {"eval", "-m", "toy", "--ids", "-", "--config", Path()};
  EXPECT_PRED2(Contains, Cli(eval, ids).err, "cannot open nope" + origin);
  std::vector<std::string> with_json = eval;
  with_json.push_back("--json");
  EXPECT_PRED2(Contains, Json::parse(Cli(with_json, ids).out)["error"].get<std::string>(), origin);
}

TEST_F(CliConfig, OnlyItsOwnAdapterIsTracedToIt) {
  const Json config = {{"options", {{"adapter", "nope"}}}, {"solution", {{"batch", 1}, {"ctx", 512}}}};
  const std::string begin = "names this adapter";
  const ProgramResult given = Run(config, {"--kv-adapter", "other-nope"});
  EXPECT_PRED2(Contains, given.err, "kvrun: cannot open other-nope\n");
  EXPECT_FALSE(Contains(given.err, begin));
  Json good = config;
  good["options"]["adapter"] = "good";
  const ProgramResult full = Run(good, {"--kv-dir", "/full"});
  EXPECT_EQ(full.exit_code, 1);
  EXPECT_PRED2(Contains, full.err, "kvrun: /full: no space\n");
  EXPECT_FALSE(Contains(full.err, begin));
}

TEST_F(CliConfig, ChatLogitsAndBatchesTakeIt) {
  const std::string config = Write({{"options", {{"budget", "1000"}}}});
  const ProgramResult chat = Cli({"chat", "-m", "toy", "--config", config}, {{}, "hi\n", ""});
  EXPECT_PRED2(Contains, chat.err, "asked 1x0@default, budget 1000\n");
  const ProgramResult logits = Cli({"logits", "-m", "toy", "--ids", folder_.Write("ids", "1 2 3"), "--out",
                                    folder_.Path("o"), "--config", config});
  EXPECT_EQ(logits.exit_code, 0) << logits.err;
  EXPECT_PRED2(Contains, logits.err, "asked 1x4@default, budget 1000\n");
  const std::string prompts = folder_.Write("prompts", "{\"prompt\": \"a\"}\n{\"prompt\": \"bcd\"}\n");
  const ProgramResult batch = Cli({"run", "-m", "nobos", "--batch", prompts, "-n", "10", "--config", config});
  EXPECT_EQ(batch.exit_code, 0) << batch.err;
  EXPECT_PRED2(Contains, batch.err, "asked 2x13@default, budget 1000\n");
}

TEST_F(CliConfig, EachDepthOfABenchmarkHasItsOwnOptions) {
  const std::string config = Write({{"options", {{"budget", "1000"}}}});
  const ProgramResult result = Cli({"bench", "-m", "toy", "-p", "7", "-n", "5", "-d", "0,100", "--sequences",
                                    "2", "--config", config, "--kv-group", "4", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Json results = Json::parse(result.out);
  ASSERT_EQ(results.size(), 2U);
  EXPECT_EQ(results[0]["asked"]["kv"], "--kv-budget 1000 --kv-asked 2x7@default --kv-group 4");
  EXPECT_EQ(results[1]["depth"], 100);
  EXPECT_EQ(results[1]["asked"]["kv"], "--kv-budget 1000 --kv-asked 2x105@default --kv-group 4");
  const std::string other = Write({{"device", "Other GPU"}});
  const ProgramResult refused = Cli({"bench", "-m", "toy", "--config", other});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_EQ(refused.out, "");
}

TEST_F(CliConfig, AnEvaluationTakesItWhereNoOthersAreNamed) {
  const std::string config = Write({{"options", {{"budget", "1000"}}}});
  const ProgramInput ids{{}, "1 2 3 4", ""};
  const ProgramResult result =
      Cli({"eval", "-m", "toy", "--ids", "-", "--config", config, "--json", "--kv-rank", "8"}, ids);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(Json::parse(result.out)["config"], "--kv-budget 1000 --kv-asked 1x4@default --kv-rank 8");
  const std::string lines = folder_.Write("lines", "--kv-budget 1/13\n");
  const ProgramResult both =
      Cli({"eval", "-m", "toy", "--ids", "-", "--config", config, "--configs", lines}, ids);
  EXPECT_EQ(both.exit_code, 2);
  const ProgramResult variable = Cli({"eval", "-m", "toy", "--ids", "-", "--configs", lines, "--json"},
                                     {{"KVRUN_CONFIG=" + config}, "1 2 3 4", ""});
  EXPECT_EQ(Json::parse(variable.out)[0]["config"], "--kv-budget 1/13");
  EXPECT_EQ(Cli({"eval", "-m", "toy", "--ids", "-"},
                {{"KVRUN_CONFIG=" + config, "KVRUN_CONFIGS=" + lines}, "1 2 3 4", ""})
                .exit_code,
            2);
  const std::string other = Write({{"device", "Other GPU"}});
  EXPECT_EQ(Cli({"eval", "-m", "toy", "--ids", "-", "--config", other}, ids).exit_code, 1);
}

}  // namespace
}  // namespace kvrun
