// kvrun eval: its table, its errors, JSON.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/cli_fixture.h"

namespace kvrun {
namespace {

using testing::Cli;
using testing::Contains;
using testing::Json;

ProgramResult Eval(const std::string& configs, const std::vector<std::string>& more = {}) {
  const TemporaryFolder folder;
  std::vector<std::string> arguments = {
      "eval", "-m", "toy", "--ids", "-", "--tokens", "2", "--configs", folder.Write("configs", configs),
      "-q"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return Cli(arguments, {{}, "1 2 3 4", ""});
}

const std::string kTable =
    "      ppl   KL mean        +-    top-1   recall   oracle     hits  token/s  configuration\n"
    "   10.000    0.0000    0.0000  100.0 %  100.0 %        -        -      1.0  full\n"
    "   11.000    0.0200    0.0020   90.0 %   80.0 %   95.0 %        -      4.0  --kv-budget 1/13\n"
    "   11.000    0.0200    0.0020   90.0 %   80.0 %   95.0 %        -      4.0  --kv-budget 1/34\n";

TEST(CliEval, EachConfigurationIsARow) {
  const ProgramResult result =
      Eval("# lines like this one are left out\n--kv-budget 1/13\n\n--kv-budget 1/34\n");
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.out, kTable);
  EXPECT_EQ(result.err, "");
}

TEST(CliEval, AConfigurationThatFailsIsSaidOnStandardErrorAndTheOthersRun) {
  const std::string configs = "--kv-budget 1\n--kv-budget 1/13\n--kv-budget 1\n--kv-budget 1/34\n";
  const std::string error = "kvrun: --kv-budget 1: a budget of 1 B does not suffice\n";
  const ProgramResult table = Eval(configs);
  EXPECT_EQ(table.exit_code, 1);
  EXPECT_EQ(table.out, kTable);
  EXPECT_EQ(table.err, error + error);
  const ProgramResult json = Eval(configs, {"--json"});
  EXPECT_EQ(json.exit_code, 1);
  EXPECT_EQ(json.err, error + error);
  const Json results = Json::parse(json.out);
  ASSERT_EQ(results.size(), 4U);
  EXPECT_EQ(results[0]["error"], "a budget of 1 B does not suffice");
  EXPECT_EQ(results[1]["ppl"], 11.0);
}

// The stand-in's KL says how many steps it was asked for.
TEST(CliEval, AModeSaysHowManyTokensAreFed) {
  const auto kl = [](const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"eval", "-m", "toy", "--ids", "-", "-q", "--json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Json::parse(Cli(arguments, {{}, "1 2 3 4", ""}).out)["kl_mean"].get<double>();
  };
  EXPECT_NEAR(kl({}), 4.0, 1e-9);
  EXPECT_NEAR(kl({"--mode", "end"}), 4.0, 1e-9);
  EXPECT_NEAR(kl({"--mode", "decode"}), 40.96, 1e-9);
  EXPECT_NEAR(kl({"--mode", "decode", "--tokens", "7"}), 0.07, 1e-9);
  EXPECT_EQ(Cli({"eval", "-m", "toy", "--ids", "-", "--mode", "begin"}, {{}, "1 2", ""}).exit_code, 2);
}

ProgramResult Needles(const std::string& configs, const std::vector<std::string>& more = {}) {
  const TemporaryFolder folder;
  std::vector<std::string> arguments = {
      "eval", "-m", "toy", "--ids", "-", "--needles", "3", "--configs", folder.Write("configs", configs),
      "-q"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return Cli(arguments, {{}, "1 2 3 4", ""});
}

// The stand-in's answers say which seed, and how many copies, it was asked for.
TEST(CliEval, NeedlesHaveATableOfTheirOwn) {
  const ProgramResult result = Needles("--kv-budget 1\n--kv-budget 1/13\n", {"--seed", "70"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.out,
            " answered       +-  needles  configuration\n"
            "   95.0 %    5.0 %        3  full\n"
            "   70.0 %    0.0 %        3  --kv-budget 1/13\n");
  EXPECT_EQ(result.err, "kvrun: --kv-budget 1: a budget of 1 B does not suffice\n");
  const ProgramResult json = Needles("--kv-budget 1/13\n", {"--needle-copies", "2", "--json"});
  EXPECT_EQ(json.exit_code, 0);
  const Json results = Json::parse(json.out);
  ASSERT_EQ(results.size(), 1U);
  EXPECT_EQ(results[0]["answered"], 0.0);
  EXPECT_NEAR(results[0]["answered_error"], 0.2, 1e-9);
}

TEST(CliEval, ATextThatIsTooShortForNeedlesIsSaid) {
  const ProgramResult result = Needles("--kv-budget 1/13\n", {"--ctx", "9"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.out, "");
  EXPECT_EQ(result.err, "kvrun: a text of 4 tokens is too short\n");
}

TEST(CliEval, OneConfigurationIsOneObject) {
  const std::vector<std::string> one = {"eval", "-m", "toy", "--ids", "-", "-q", "--json", "--kv-budget"};
  const auto with_budget = [&one](const std::string& budget) {
    std::vector<std::string> arguments = one;
    arguments.push_back(budget);
    return Cli(arguments, {{}, "1 2 3 4", ""});
  };
  EXPECT_EQ(Json::parse(with_budget("1/13").out)["config"], "--kv-budget 1/13");
  const ProgramResult failed = with_budget("1");
  EXPECT_EQ(failed.exit_code, 1);
  EXPECT_EQ(Json::parse(failed.out)["error"], "a budget of 1 B does not suffice");
}

}  // namespace
}  // namespace kvrun
