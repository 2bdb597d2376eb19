// What is special of this measurement file: tests/unit/measurement_file_test.cc has the rest.
#include "runtime/engine/machine/storage_speed_file.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "runtime/engine/machine/machine.h"
#include "tests/support/program_runner.h"

namespace kvrun {
namespace {

const SpeedEntry kEntry = {
    .key = {.storage = "ext4 on vda", .device = "179:2", .mode = "io_uring direct", .kvrun = "0.1.0"},
    .reads_per_s = 4321.5};

TEST(StorageSpeedFile, WhatIsWrittenIsReadAndFound) {
  const TemporaryFolder folder;
  const std::string path = folder.Path("speed.json");
  SpeedEntry entry = kEntry;
  entry.reads_per_s = 1e4 / 3.0;
  ASSERT_TRUE(WriteSpeed(path, entry).ok());
  EXPECT_EQ(ReadSpeeds(path).value(), std::vector<SpeedEntry>{entry});
  EXPECT_EQ(FindSpeed(path, entry.key).value(), entry.reads_per_s);
}

TEST(StorageSpeedFile, AnyOtherFieldIsAnotherKey) {
  const std::vector<std::function<void(SpeedKey*)>> changes = {
      [](SpeedKey* key) { key->storage += "x"; },
      [](SpeedKey* key) { key->device = "179:3"; },
      [](SpeedKey* key) { key->mode = "threads direct"; },
      [](SpeedKey* key) { key->kvrun = "0.2.0"; },
  };
  const TemporaryFolder folder;
  const std::string path = folder.Path("speed.json");
  ASSERT_TRUE(WriteSpeed(path, kEntry).ok());
  for (const auto& change : changes) {
    SpeedEntry other = kEntry;
    change(&other.key);
    EXPECT_EQ(FindSpeed(path, other.key).status().code(), StatusCode::kNotFound);
    ASSERT_TRUE(WriteSpeed(path, other).ok());
    EXPECT_EQ(ReadSpeeds(path)->back(), other);
  }
  EXPECT_EQ(ReadSpeeds(path)->size(), 1 + changes.size());
}

TEST(StorageSpeedFile, WhatAreNoSpeedsIsRefused) {
  const TemporaryFolder folder;
  const std::string path = folder.Path("speed.json");
  ASSERT_TRUE(WriteSpeed(path, kEntry).ok());
  const std::string good = ReadWholeFile(path);
  const auto expect_corrupt = [&](const std::string& what, const std::string& instead) {
    std::string text = good;
    const size_t at = text.find(what);
    ASSERT_NE(at, std::string::npos) << what;
    folder.Write("speed.json", text.replace(at, what.size(), instead));
    EXPECT_EQ(ReadSpeeds(path).status().code(), StatusCode::kCorrupt) << text;
  };
  for (const char* value : {"0", "-1.0", "\"fast\"", "null", "1e999"}) expect_corrupt("4321.5", value);
  expect_corrupt("\"179:2\"", "179");
  expect_corrupt("\"version\": 1", "\"version\": 2");
  expect_corrupt("storage speed", "else");
  expect_corrupt("\"mode\"", "\"m\"");
}

TEST(StorageSpeedFile, TheKeyIsThatOfAFolderToBe) {
  const TemporaryFolder folder;
  const IoMode mode = {
      .backend = IoBackend::kAio, .direct = true, .alignment_bytes = 512, .queue_depth = 8, .notes = {}};
  const auto there = SpeedKeyOf(folder.Path(""), mode, "0.1.0");
  ASSERT_TRUE(there.ok()) << there.status().message();
  EXPECT_EQ(there->storage, StorageName(folder.Path("")));
  EXPECT_EQ(there->mode, "aio direct");
  EXPECT_EQ(there->kvrun, "0.1.0");
  EXPECT_NE(there->device.find(':'), std::string::npos);
  EXPECT_EQ(SpeedKeyOf(folder.Path("none/yet"), mode, "0.1.0").value(), *there);
  EXPECT_FALSE(SpeedKeyOf(folder.Write("file", "") + "/kv", mode, "0.1.0").ok());
}

}  // namespace
}  // namespace kvrun
