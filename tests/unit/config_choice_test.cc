// What a session takes of a config: whether it fits here, and the solution for a batch and a context.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "runtime/engine/config/config_file.h"
#include "runtime/kv/planner/kv_options.h"
#include "tests/support/config_cases.h"

namespace kvrun::testing::configs {
namespace {

ConfigTarget Fitting() {
  return {.model_fingerprint = "0123456789abcdef0123456789abcdef",
          .device = "Some GPU",
          .driver = "driver 1.2",
          .cpu = "Some CPU",
          .storage = "ext4 on vda"};
}

TEST(CompareConfig, WhatFitsNeedsNoWord) {
  const ConfigFit fit = CompareConfig(Example(), Fitting());
  EXPECT_EQ(fit.refusal, "");
  EXPECT_TRUE(fit.notes.empty());
}

TEST(CompareConfig, AnotherModelOrDeviceIsRefused) {
  ConfigTarget target = Fitting();
  target.model_fingerprint = "ffff";
  const ConfigFit other_model = CompareConfig(Example(), target);
  EXPECT_NE(other_model.refusal.find("and this is ffff: run kvadapt tune here, or take it all the same with "
                                     "--force-config"),
            std::string::npos)
      << other_model.refusal;
  target.device = "Other GPU";
  target.driver = "of which no word is needed";
  const ConfigFit both = CompareConfig(Example(), target);
  EXPECT_EQ(both.reasons.size(), 2U);
  EXPECT_NE(both.refusal.find("on the device Some GPU, and this is Other GPU"), std::string::npos);
  EXPECT_TRUE(both.notes.empty());
}

TEST(CompareConfig, TheProcessorMattersWhereItIsTheDevice) {
  ConfigTarget target = Fitting();
  target.cpu = "Other CPU";
  EXPECT_EQ(CompareConfig(Example(), target).refusal, "");
  EXPECT_EQ(CompareConfig(Example(), target).notes.size(), 1U);
  target.device_is_cpu = true;  // as a Vulkan driver for it
  target.exact_activations = true;
  EXPECT_EQ(CompareConfig(Example(), target).reasons.size(), 1U);
  EXPECT_TRUE(CompareConfig(Example(), target).notes.empty());
  KvConfig host = Example();
  host.device = host.cpu;
  target.device = target.cpu;
  EXPECT_EQ(CompareConfig(host, target).reasons.size(), 1U) << "the name is said twice";
}

TEST(CompareConfig, DriverStorageAndRoundingAreNotes) {
  ConfigTarget target = Fitting();
  target.driver = "driver 1.3";
  target.storage = "btrfs on sda";
  EXPECT_EQ(CompareConfig(Example(), target).refusal, "");
  EXPECT_EQ(CompareConfig(Example(), target).notes.size(), 2U);
  target.device_is_cpu = true;
  const ConfigFit fit = CompareConfig(Example(), target);
  ASSERT_EQ(fit.notes.size(), 3U);
  EXPECT_EQ(fit.notes[1], "it was tuned with --exact-activations");
}

TEST(CompareConfig, WhatIsNotKnownIsNotCompared) {
  ConfigTarget target;
  target.model_fingerprint = Example().model_fingerprint;
  target.cpu = "other";  // the device, which says what it means, is not known
  EXPECT_EQ(CompareConfig(Example(), target).refusal, "");
  EXPECT_TRUE(CompareConfig(Example(), target).notes.empty());
  KvConfig config = Example();
  config.driver = config.cpu = config.storage = "";
  target = Fitting();
  target.driver = target.cpu = target.storage = "other";
  EXPECT_TRUE(CompareConfig(config, target).notes.empty());
}

std::pair<uint32_t, uint32_t> Nearest(const std::vector<std::pair<uint32_t, uint32_t>>& solved,
                                      uint32_t batch, uint32_t ctx) {
  KvConfig config;
  for (const auto& [b, c] : solved) config.solutions.push_back(Solution(b, c, 1));
  const ChosenSolution chosen = ChooseSolution(config, "c.toml", batch, ctx);
  return {chosen.solution->batch, chosen.solution->ctx};
}

TEST(ChooseSolution, TakesTheNearest) {
  using Pair = std::pair<uint32_t, uint32_t>;
  EXPECT_EQ(Nearest({{1, 4096}, {2, 4096}, {1, 8192}}, 2, 4096), Pair(2, 4096));
  EXPECT_EQ(Nearest({{1, 1024}, {1, 32768}}, 1, 2048), Pair(1, 1024));
  EXPECT_EQ(Nearest({{1, 4096}, {8, 8192}}, 2, 4096), Pair(1, 4096));
  EXPECT_EQ(Nearest({{1, 4096}}, 16, 100), Pair(1, 4096));
  EXPECT_EQ(Nearest({{2, 3000}, {3, 3000}}, 5, 3000), Pair(3, 3000));
}

TEST(ChooseSolution, WhereTwoAreAsNearTheLargerContextIsTaken) {
  using Pair = std::pair<uint32_t, uint32_t>;
  EXPECT_EQ(Nearest({{1, 2048}, {1, 8192}}, 1, 4096), Pair(1, 8192));
  EXPECT_EQ(Nearest({{1, 8192}, {1, 2048}}, 1, 4096), Pair(1, 8192));
  EXPECT_EQ(Nearest({{1, 3000}, {1, 27000}}, 1, 9000), Pair(1, 27000));  // by 3 each
  EXPECT_EQ(Nearest({{1, 27000}, {3, 9000}}, 1, 9000), Pair(1, 27000));
  EXPECT_EQ(Nearest({{2, 4096}, {8, 4096}}, 4, 4096), Pair(8, 4096));
}

std::string OptionOf(const ChosenSolution& chosen, const std::string& name) {
  for (const auto& [option, value] : chosen.options) {
    if (option == name) return value;
  }
  return "not said";
}

TEST(ChooseSolution, TheBudgetIsOfEachSequence) {
  KvConfig config = Example();
  config.solutions = {Solution(4, 100, 1000)};
  EXPECT_EQ(OptionOf(ChooseSolution(config, "c", 4, 100), "budget"), "1000");
  EXPECT_EQ(OptionOf(ChooseSolution(config, "c", 1, 100), "budget"), "250");
  EXPECT_EQ(OptionOf(ChooseSolution(config, "c", 6, 100), "budget"), "1500");
  config.solutions = {Solution(1, 100, uint64_t{1} << 40)};
  EXPECT_EQ(OptionOf(ChooseSolution(config, "c", 16, 100), "budget"), "17592186044416");
}

TEST(ChooseSolution, ALongerContextLeavesTheSelectionOpen) {
  const KvConfig config = Example();
  const ChosenSolution same = ChooseSolution(config, "c", 1, 8192);
  EXPECT_TRUE(same.is_exact);
  EXPECT_EQ(OptionOf(same, "select"), "400");
  const ChosenSolution longer = ChooseSolution(config, "c", 1, 8193);
  EXPECT_FALSE(longer.is_exact);
  EXPECT_EQ(OptionOf(longer, "select"), "not said");
  EXPECT_EQ(OptionOf(longer, "reuse"), "not said");
  EXPECT_EQ(OptionOf(longer, "static"), "not said") << "it is a share of what is selected";
  EXPECT_EQ(OptionOf(longer, "window"), "64");
  EXPECT_EQ(OptionOf(ChooseSolution(config, "c", 2, 8000), "reuse"), "120");
}

TEST(ChooseSolution, FewerSequencesLeaveTheSelectionOpen) {
  KvConfig config = Example();
  config.solutions = {config.solutions[0]};
  config.solutions[0].batch = 4;
  EXPECT_EQ(OptionOf(ChooseSolution(config, "c", 4, 8192), "select"), "400");
  EXPECT_EQ(OptionOf(ChooseSolution(config, "c", 5, 8192), "select"), "400");
  EXPECT_EQ(OptionOf(ChooseSolution(config, "c", 3, 8192), "select"), "not said");
  EXPECT_EQ(OptionOf(ChooseSolution(config, "c", 3, 8192), "reuse"), "not said");
  EXPECT_EQ(OptionOf(ChooseSolution(config, "c", 3, 8192), "window"), "64");
}

TEST(ChooseSolution, TheAdapterLiesBesideTheConfig) {
  KvConfig config = Example();
  EXPECT_EQ(OptionOf(ChooseSolution(config, "/etc/c.toml", 1, 8192), "adapter"), "/etc/adapters/some.gguf");
  EXPECT_EQ(OptionOf(ChooseSolution(config, "c.toml", 1, 8192), "adapter"), "adapters/some.gguf");
  NamedKvOptions& options = config.solutions[0].options;
  std::find_if(options.begin(), options.end(), [](const auto& option) {
    return option.first == "adapter";
  })->second = "/other/a.gguf";
  EXPECT_EQ(OptionOf(ChooseSolution(config, "/etc/c.toml", 1, 8192), "adapter"), "/other/a.gguf");
  std::erase_if(options, [](const auto& option) { return option.first == "adapter"; });
  EXPECT_EQ(OptionOf(ChooseSolution(config, "/etc/c.toml", 1, 8192), "adapter"), "not said");
}

TEST(ChooseSolution, WhatItAnswersAreOptions) {
  const ChosenSolution chosen = ChooseSolution(Example(), "c.toml", 1, 8192);
  EXPECT_EQ(chosen.options.size(), 15U);
  KvSettings settings;
  for (const auto& [name, value] : chosen.options) {
    const Status status = SetKvOption(name, value, &settings);
    EXPECT_TRUE(status.ok()) << status.message();
  }
  EXPECT_EQ(settings.kv.method, "kvswap");
  EXPECT_EQ(ChooseSolution(KvConfig{}, "c.toml", 1, 8192).solution, nullptr);
}

}  // namespace
}  // namespace kvrun::testing::configs
