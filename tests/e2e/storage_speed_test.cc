// What is kept of the storage's speed decides kvswap's group where nobody gives one, and with the time that
// the device takes for a layer how much is selected.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <iterator>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "platform/io/block_file.h"
#include "runtime/engine/machine/storage_speed_file.h"
#include "runtime/include/kvrun/kvrun.h"
#include "tests/support/long_run_fixture.h"
#include "tests/support/reference_files.h"

namespace kvrun::testing {
namespace {

using Json = nlohmann::json;
using Arguments = std::vector<std::string>;

class StorageSpeed : public LongRunFixture {
 protected:
  // With the method kvswap, unless told.
  ProgramResult RunWith(Arguments more, const std::string& method = "kvswap") const {
    more.insert(more.end(), {"--kv-method", method, "--verbose"});
    return Run(more, {"XDG_CACHE_HOME=" + folder_.Path("cache")});
  }
  void Keep(double reads_per_s) const {
    const auto file =
        CreateBlockFile({.folder = folder_.Path("kv"), .only_tries = true, .allow_tmpfs = true});
    ASSERT_TRUE(file.ok()) << file.status().message();
    const auto key = SpeedKeyOf(folder_.Path("kv"), (*file)->mode(), kvrun_version());
    ASSERT_TRUE(key.ok()) << key.status().message();
    ASSERT_TRUE(WriteSpeed(SpeedFile(), {*key, reads_per_s}).ok());
  }
  std::string SpeedFile() const { return folder_.Path("cache/kvrun/storage_speed.json"); }
};

TEST_F(StorageSpeed, SlowStorageIsReadInLongerGroups) {
  Keep(4200.0);
  const ProgramResult slow = RunWith({"--kv-tmpfs"});
  ASSERT_EQ(slow.exit_code, 0) << slow.err;
  EXPECT_NE(slow.err.find(" in groups of 8 ("), std::string::npos) << slow.err;
  const std::string note =
      "the flash reads 4,200 blocks of 4 KiB a second, so KV is read in groups of 8 entries, as on eMMC\n";
  const size_t at = slow.err.find(note);
  ASSERT_NE(at, std::string::npos) << slow.err;
  EXPECT_EQ(slow.err.find(note, at + 1), std::string::npos) << slow.err;
  const Json kv = Json::parse(slow.out)["kv"];
  // The session is the plan's, and the same as where the group is given.
  const ProgramResult given = RunWith({"--kv-tmpfs", "--kv-group", "8"});
  EXPECT_EQ(given.err.find("flash reads"), std::string::npos) << given.err;
  EXPECT_EQ(Json::parse(given.out)["kv"]["parts"], kv["parts"]);
  EXPECT_EQ(Json::parse(given.out)["text"], Json::parse(slow.out)["text"]);
  const ProgramResult four = RunWith({"--kv-tmpfs", "--kv-group", "4"});
  EXPECT_NE(four.err.find(" in groups of 4 ("), std::string::npos) << four.err;
  EXPECT_NE(Json::parse(four.out)["kv"]["parts"], kv["parts"]);
}

Arguments Words(const std::string& line) {
  std::istringstream words(line);
  return {std::istream_iterator<std::string>(words), {}};
}

// The options after "for the same on any machine: ", or none.
Arguments OptionsOfNote(const std::string& err) {
  static const std::string kWords = "for the same on any machine: ";
  const size_t at = err.find(kWords);
  if (at == err.npos) return {};
  return Words(err.substr(at + kWords.size(), err.find('\n', at) - at - kWords.size()));
}

// Of the test model, as a self-made one's prompts take more memory than all of its KV.
class ReadingSpeed : public StorageSpeed {
 protected:
  void SetUp() override {
    StorageSpeed::SetUp();
    const std::optional<std::string> model = TestModelPath();
    if (!model) GTEST_SKIP() << "no test model";
    model_ = *model;
  }
  // A few tokens after a prompt of some 300.
  ProgramResult Read(const Arguments& more) const {
    std::string prompt;
    for (int i = 0; i < 30; ++i) prompt += fmt::format("{}. The quick brown fox jumps. ", 17 * i);
    Arguments arguments = {"run", "-m", model_, "-p", prompt, "--kv-dir", folder_.Path("kv")};
    const Arguments always =
        Words("-n 6 --ctx 2200 --json --ignore-end --kv-tmpfs --kv-method kvswap --kv-budget 1/8 -v");
    arguments.insert(arguments.end(), always.begin(), always.end());
    arguments.insert(arguments.end(), more.begin(), more.end());
    return RunProgram(RealProgram(), arguments, WithDrivers({"XDG_CACHE_HOME=" + folder_.Path("cache")}));
  }
};

// The session's note says what it was, once; with its options a run is the same, whatever the flash is like.
// Fast flash reads more than has slots, slow flash less than is chosen.
TEST_F(ReadingSpeed, FastStorageReadsMoreThanHasSlotsAndSlowStorageLess) {
  Keep(1e9);
  const ProgramResult fast = Read({});
  ASSERT_EQ(fast.exit_code, 0) << fast.err;
  EXPECT_EQ(fast.err.find("a token attends to"), fast.err.rfind("a token attends to")) << fast.err;
  const Json kv = Json::parse(fast.out)["kv"];
  EXPECT_GT(kv["pool_reads"], 0) << kv;
  EXPECT_EQ(kv["stand_in_groups"], 0) << kv;
  Keep(1.0);
  const ProgramResult slow = Read({});
  ASSERT_EQ(slow.exit_code, 0) << slow.err;
  const Json slow_kv = Json::parse(slow.out)["kv"];
  EXPECT_EQ(slow_kv["pool_reads"], 0);
  EXPECT_NE(slow.err.find(" --kv-reads "), std::string::npos) << slow.err;
  EXPECT_EQ(fast.err.find(" --kv-reads "), std::string::npos) << fast.err;
  EXPECT_LT(slow_kv["chosen_groups"], kv["chosen_groups"]);
  // Each on the other's flash.
  const auto expect_same = [](const ProgramResult& given, const ProgramResult& chosen) {
    ASSERT_EQ(given.exit_code, 0) << given.err;
    const Json again = Json::parse(given.out);
    const Json first = Json::parse(chosen.out);
    EXPECT_EQ(again["text"], first["text"]);
    EXPECT_EQ(again["kv"]["parts"], first["kv"]["parts"]);
    EXPECT_EQ(again["kv"]["chosen_groups"], first["kv"]["chosen_groups"]);
    EXPECT_EQ(again["kv"]["stand_in_groups"], first["kv"]["stand_in_groups"]);
  };
  ASSERT_FALSE(OptionsOfNote(fast.err).empty()) << fast.err;
  expect_same(Read(OptionsOfNote(fast.err)), fast);
  Keep(1e9);
  ASSERT_FALSE(OptionsOfNote(slow.err).empty()) << slow.err;
  expect_same(Read(OptionsOfNote(slow.err)), slow);
}

// Without a limit no speed is asked for, where the group is given.
TEST_F(ReadingSpeed, ReadingThatNeedNotBeHiddenFillsTheBudget) {
  const ProgramResult all = Read({"--kv-hide", "0", "--kv-group", "4"});
  ASSERT_EQ(all.exit_code, 0) << all.err;
  EXPECT_FALSE(OptionsOfNote(all.err).empty()) << all.err;
  EXPECT_FALSE(std::filesystem::exists(SpeedFile())) << all.err;
}

// It follows the machine: what it chooses is within its bounds, and told.
TEST_F(StorageSpeed, WhatAdaptsStaysWithinItsPool) {
  const ProgramResult run = RunWith(
      {"--kv-tmpfs", "--kv-budget", "1/6", "--kv-hide", "0.5", "--kv-adapt", "on", "--kv-select", "80"});
  EXPECT_EQ(run.exit_code, 1) << "hide chooses what select says";
  const ProgramResult adapts =
      RunWith({"--kv-tmpfs", "--kv-budget", "1/6", "--kv-adapt", "on", "--kv-select", "160"});
  ASSERT_EQ(adapts.exit_code, 0) << adapts.err;
  const Json entries = Json::parse(adapts.out)["kv"]["entries_per_layer"];
  EXPECT_LE(entries["most"], 160);
  EXPECT_GE(entries["least"], 4);
}

TEST_F(StorageSpeed, IsMeasuredOnceWhereNothingIsKept) {
  const ProgramResult first = RunWith({});
  if (first.err.find("tmpfs") != std::string::npos) GTEST_SKIP() << "temporary files lie in memory";
  ASSERT_EQ(first.exit_code, 0) << first.err;
  const auto kept = ReadSpeeds(SpeedFile());
  ASSERT_TRUE(kept.ok()) << kept.status().message();
  ASSERT_EQ(kept->size(), 1U);
  EXPECT_GT(kept->front().reads_per_s, 0.0);
  ASSERT_EQ(RunWith({}).exit_code, 0);
  EXPECT_EQ(ReadSpeeds(SpeedFile()).value(), *kept);
}

TEST_F(StorageSpeed, IsNotAskedForWhereNothingDependsOnIt) {
  const auto expect_nothing = [this](const ProgramResult& result) {
    EXPECT_TRUE(result.exit_code == 0 || result.err.find("tmpfs") != std::string::npos) << result.err;
    EXPECT_FALSE(std::filesystem::exists(SpeedFile())) << result.err;
  };
  expect_nothing(RunWith({"--kv-group", "4"}));
  expect_nothing(RunWith({"--kv-tmpfs"}));
  expect_nothing(RunWith({}, "flexgen"));
  expect_nothing(RunWith({}, "full"));
}

}  // namespace
}  // namespace kvrun::testing
