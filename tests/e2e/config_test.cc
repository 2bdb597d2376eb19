// --config on a real device: the same as its options on the command line.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "runtime/engine/config/config_file.h"
#include "tests/support/long_run_fixture.h"
#include "tests/support/or_die.h"

namespace kvrun::testing {
namespace {

using Json = nlohmann::json;
using Arguments = std::vector<std::string>;

class Config : public LongRunFixture {
 protected:
  void SetUp() override {
    LongRunFixture::SetUp();
    if (IsSkipped()) return;
    const Result<std::unique_ptr<Model>> model = OpenModel(model_);
    ASSERT_TRUE(model.ok()) << model.status().message();
    config_.model_fingerprint = testing::OrDie((*model)->Fingerprint());
    config_.device = SharedDevice()->info().name;
    ConfigSolution solution;
    solution.ctx = 400;
    solution.budget_bytes = 1000000;
    solution.options = {{"group", "2"},  {"select", "24"},  {"reuse", "14"},
                        {"window", "8"}, {"sinks", "2"},    {"type", "fp8"},
                        {"rank", "4"},   {"index", "int8"}, {"policy", "fifo"}};
    config_.solutions = {solution};
  }

  ProgramResult RunInMemory(Arguments more) const {
    more.push_back("--kv-tmpfs");
    return Run(more);
  }
  Json Answer(const Arguments& more) const {
    const ProgramResult result = RunInMemory(more);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return Json::parse(result.out, nullptr, false);
  }
  std::string Written() const { return folder_.Write("c.toml", ConfigToToml(config_)); }

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
  EXPECT_EQ(by_config["tokens"].size(), kTokens);
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
  const ProgramResult refused = RunInMemory({"--config", Written(), "-q"});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_NE(refused.err.find("it was tuned on the device Some other device, and this is "), std::string::npos)
      << refused.err;
  EXPECT_EQ(Json::parse(refused.out)["error"]["status"], "unsupported");
  const Json forced = Answer({"--config", Written(), "--force-config"});
  EXPECT_EQ(forced["kv"]["method"], "kvswap");
}

TEST_F(Config, AnAdapterThatCannotBeReadIsTracedToTheConfig) {
  const std::string adapter = folder_.Path("a.gguf");
  config_.solutions[0].options.emplace_back("adapter", "a.gguf");
  const auto expect = [&](const std::string& why, const std::string& status) {
    const std::string path = Written();
    const ProgramResult result = RunInMemory({"--config", path, "-q"});
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_NE(result.err.find(why), std::string::npos) << result.err;
    EXPECT_NE(result.err.find("; " + path +
                              " names this adapter (a relative path begins at the config's folder): put"),
              std::string::npos)
        << result.err;
    EXPECT_EQ(Json::parse(result.out)["error"]["status"], status) << result.err;
  };
  expect("cannot open " + adapter + ": No such file", "not found");
  folder_.Write("a.gguf", ReadWholeFile(model_).substr(0, 100));
  expect("cut short or damaged: make it again, or run without it;", "corrupt");
  folder_.Write("a.gguf", "");
  expect("the file is empty (0 bytes): make it again, or run without it;", "corrupt");
  folder_.Write("a.gguf", "no GGUF");
  expect("this is not a GGUF file", "corrupt");
  folder_.Write("a.gguf", ReadWholeFile(model_));
  expect("is not an adapter of kvrun but a file of", "invalid argument");
}

}  // namespace
}  // namespace kvrun::testing
