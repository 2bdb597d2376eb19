// What is kept of the storage's speed decides kvswap's group where nobody gives one.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "platform/io/block_file.h"
#include "runtime/engine/storage_speed_file.h"
#include "runtime/include/kvrun/kvrun.h"
#include "tests/support/long_run_fixture.h"

namespace kvrun::testing {
namespace {

using Json = nlohmann::json;
using Arguments = std::vector<std::string>;

class StorageSpeed : public LongRunFixture {
 protected:
  // With the method kvswap, unless told.
  ProgramResult RunWith(Arguments more, const std::string& method = "kvswap") const {
    more.insert(more.end(), {"--kv-method", method});
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
