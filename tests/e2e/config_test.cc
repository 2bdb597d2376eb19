// --config on a real device: the same as its options on the command line.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "runtime/engine/config_file.h"
#include "runtime/model/fingerprint.h"
#include "tests/support/engine_fixture.h"
#include "tests/support/real_program.h"
#include "tests/support/tiny_model_file.h"

namespace kvrun::testing {
namespace {

using Json = nlohmann::json;
using Arguments = std::vector<std::string>;

class Config : public ::testing::Test {
 protected:
  void SetUp() override {
    if (SharedDevice() == nullptr) GTEST_SKIP() << "no device";
    model_ = WriteModel(folder_, "tiny.gguf", TalkingModel().Build());
    const Result<std::unique_ptr<Model>> model = OpenModel(model_);
    ASSERT_TRUE(model.ok()) << model.status().message();
    config_.model_fingerprint = ModelFingerprint(*(*model)->file, (*model)->config);
    config_.device = SharedDevice()->info().name;
    ConfigSolution solution;
    solution.ctx = 400;
    solution.budget_bytes = 1000000;
    solution.options = {{"group", "2"},  {"select", "24"},  {"reuse", "14"},
                        {"window", "8"}, {"sinks", "2"},    {"type", "fp8"},
                        {"rank", "4"},   {"index", "int8"}, {"policy", "fifo"}};
    config_.solutions = {solution};
  }

  ProgramResult Run(Arguments more) const {
    Arguments arguments = {"run",
                           "-m",
                           model_,
                           "-p",
                           std::string(200, 'a') + "b",
                           "-n",
                           "60",
                           "--ctx",
                           "400",
                           "--json",
                           "--ignore-end",
                           "--kv-tmpfs",
                           "--kv-dir",
                           folder_.Path("kv")};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return RunProgram(RealProgram(), arguments, WithDrivers());
  }
  Json Answer(const Arguments& more) const {
    const ProgramResult result = Run(more);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return Json::parse(result.out, nullptr, false);
  }
  std::string Written() const { return folder_.Write("c.toml", ConfigToToml(config_)); }

  TemporaryFolder folder_;
  std::string model_;
  KvConfig config_;
};

TEST_F(Config, IsTheSameAsItsOptionsOnTheCommandLine) {
  Arguments line = {"--kv-method", "kvswap", "--kv-budget", "1000000"};
  for (const auto& [name, value] : config_.solutions[0].options) {
    line.push_back("--kv-" + name);
    line.push_back(value);
  }
  const Json by_line = Answer(line);
  const Json by_config = Answer({"--config", Written()});
  EXPECT_EQ(by_config["tokens"].size(), 60U);
  EXPECT_EQ(by_config["text"], by_line["text"]);
  EXPECT_EQ(by_config["tokens"], by_line["tokens"]);
  EXPECT_EQ(by_config["kv"]["method"], "kvswap");
  EXPECT_EQ(by_config["kv"]["budget_bytes"], 1000000);
  for (const char* key : {"parts", "chosen_groups", "hit_rate"}) {
    EXPECT_EQ(by_config["kv"][key], by_line["kv"][key]) << key;
  }
  // What is compared is something that options change.
  const Json other = Answer({"--config", Written(), "--kv-select", "16", "--kv-reuse", "9"});
  EXPECT_NE(other["kv"]["chosen_groups"], by_line["kv"]["chosen_groups"]);
}

TEST_F(Config, OfAnotherDeviceIsRefusedUnlessForced) {
  config_.device = "Some other device";
  const ProgramResult refused = Run({"--config", Written(), "-q"});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_NE(refused.err.find("it was tuned on the device Some other device, and this is "), std::string::npos)
      << refused.err;
  EXPECT_EQ(Json::parse(refused.out)["error"]["status"], "unsupported");
  const Json forced = Answer({"--config", Written(), "--force-config"});
  EXPECT_EQ(forced["kv"]["method"], "kvswap");
}

}  // namespace
}  // namespace kvrun::testing
