// kvrun bench and kvrun eval with --session: what is measured is a session as it lies, and it is as it was
// afterwards.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "tests/support/long_run_fixture.h"

namespace kvrun::testing {
namespace {

class MeasuredSession : public LongRunFixture {
 protected:
  nlohmann::json Say(std::vector<std::string> arguments) const {
    arguments.insert(arguments.end(), {"--json", "--kv-dir", folder_.Path("kv"), "--kv-tmpfs", "-m", model_});
    const ProgramResult result = RunProgram(RealProgram(), arguments, WithDrivers());
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return nlohmann::json::parse(result.out, nullptr, false);
  }
  nlohmann::json Ask(const std::string& session, const std::vector<std::string>& options) const {
    std::vector<std::string> arguments = {
        "run",       "-p",   std::string(200, 'a') + "b", "-n", "20", "--ctx", "400", "--ignore-end",
        "--session", session};
    arguments.insert(arguments.end(), options.begin(), options.end());
    return Say(arguments);
  }
};

TEST_F(MeasuredSession, IsMeasuredAtItsEndAndLeftAsItIs) {
  for (const std::vector<std::string>& options :
       {std::vector<std::string>{}, {"--kv-method", "kvswap", "--kv-budget", "1/2"}}) {
    SCOPED_TRACE(options.size());
    const std::string path = folder_.Path(options.empty() ? "full.session" : "kvswap.session");
    const std::string copy = path + ".copy";
    const nlohmann::json made = Ask(path, options);
    ASSERT_TRUE(made.is_object());
    ASSERT_EQ(RunProgram(RealProgram(), {"sessions", "--copy", path, "--to", copy}, WithDrivers()).exit_code,
              0);
    const std::string state = ReadWholeFile(path);
    const nlohmann::json results = Say({"bench", "--session", path, "-n", "6", "-r", "2"});
    ASSERT_TRUE(results.is_array() && results.size() == 1) << results;
    const nlohmann::json& result = results[0];
    EXPECT_EQ(result["depth"], made["prompt_tokens"].get<uint64_t>() + made["tokens"].size());
    EXPECT_GT(result["decode_tps"], 0.0);
    EXPECT_EQ(result["decode_tps_runs"].size(), 2U);
    EXPECT_EQ(result["kv"].is_object(), !options.empty()) << "the session's method";
    EXPECT_EQ(ReadWholeFile(path), state);
    const nlohmann::json evaluated = Say({"eval", "--session", path, "--tokens", "40"});
    ASSERT_TRUE(evaluated.is_object()) << evaluated;
    EXPECT_EQ(evaluated["config"], "session " + path);
    EXPECT_TRUE(evaluated["recall"].is_null());
    if (options.empty()) {
      EXPECT_NEAR(evaluated["kl_mean"], 0.0, 1e-6) << "nothing is left out";
      EXPECT_EQ(evaluated["top1_agreement"], 1.0);
    } else {
      EXPECT_GT(evaluated["kl_mean"], 1e-5) << "half of it is left out";
    }
    EXPECT_EQ(ReadWholeFile(path), state);
    const nlohmann::json benched = Ask(path, {});
    const nlohmann::json other = Ask(copy, {});
    EXPECT_EQ(benched["text"], other["text"]);
    EXPECT_EQ(benched["cached_tokens"], other["cached_tokens"]);
    EXPECT_GE(benched["cached_tokens"], 200);
  }
}

TEST_F(MeasuredSession, EvaluatesNoMoreThanThereIs) {
  const std::string path = folder_.Path("short.session");
  Ask(path, {});
  const ProgramResult result =
      RunProgram(RealProgram(), {"eval", "-m", model_, "--session", path, "--tokens", "5000"}, WithDrivers());
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.err.find("cannot evaluate 5000 tokens at the end of a session that has"),
            std::string::npos)
      << result.err;
}

TEST_F(MeasuredSession, WhatIsNotThereIsNotMade) {
  const std::string path = folder_.Path("none.session");
  for (const char* command : {"bench", "eval"}) {
    const ProgramResult result =
        RunProgram(RealProgram(), {command, "-m", model_, "--session", path}, WithDrivers());
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_NE(result.err.find(path), std::string::npos) << result.err;
    EXPECT_EQ(ReadWholeFile(path), "");
  }
}

}  // namespace
}  // namespace kvrun::testing
