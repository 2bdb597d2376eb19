#include "runtime/engine/storage_speed_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <functional>
#include <string>
#include <vector>

#include "runtime/engine/machine.h"
#include "tests/support/program_runner.h"

namespace kvrun {
namespace {

SpeedEntry Entry(const std::string& storage) {
  return {.key = {.storage = storage, .device = "179:2", .mode = "io_uring direct", .kvrun = "0.1.0"},
          .reads_per_s = 1e4 / 3.0};
}

TEST(StorageSpeedFile, WhatIsWrittenIsRead) {
  const TemporaryFolder folder;
  const std::string path = folder.Path("cache/kvrun/speed.json");
  EXPECT_EQ(ReadSpeeds(path).status().code(), StatusCode::kNotFound);
  ASSERT_TRUE(WriteSpeed(path, Entry("a")).ok());
  ASSERT_TRUE(WriteSpeed(path, Entry("b")).ok());
  const auto entries = ReadSpeeds(path);
  ASSERT_TRUE(entries.ok()) << entries.status().message();
  EXPECT_EQ(*entries, (std::vector<SpeedEntry>{Entry("a"), Entry("b")}));
  struct stat info {};
  ASSERT_EQ(::stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600U);
}

TEST(StorageSpeedFile, ANewEntryTakesTheOldOnesPlaceAndGoesLast) {
  const TemporaryFolder folder;
  const std::string path = folder.Path("speed.json");
  for (const char* storage : {"a", "b"}) ASSERT_TRUE(WriteSpeed(path, Entry(storage)).ok());
  SpeedEntry newer = Entry("a");
  newer.reads_per_s = 7.0;
  ASSERT_TRUE(WriteSpeed(path, newer).ok());
  EXPECT_EQ(*ReadSpeeds(path), (std::vector<SpeedEntry>{Entry("b"), newer}));
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
  ASSERT_TRUE(WriteSpeed(path, Entry("a")).ok());
  for (const auto& change : changes) {
    SpeedEntry other = Entry("a");
    change(&other.key);
    ASSERT_TRUE(WriteSpeed(path, other).ok());
    EXPECT_EQ(ReadSpeeds(path)->back(), other);
  }
  EXPECT_EQ(ReadSpeeds(path)->size(), 1 + changes.size());
}

TEST(StorageSpeedFile, TheOldestEntriesGo) {
  const TemporaryFolder folder;
  const std::string path = folder.Path("speed.json");
  for (size_t i = 0; i < kMaxSpeedEntries + 3; ++i) {
    ASSERT_TRUE(WriteSpeed(path, Entry(std::to_string(i))).ok());
  }
  const auto entries = ReadSpeeds(path);
  ASSERT_TRUE(entries.ok());
  ASSERT_EQ(entries->size(), kMaxSpeedEntries);
  EXPECT_EQ(entries->front().key.storage, "3");
}

TEST(StorageSpeedFile, DamageIsRefusedAndThenReplaced) {
  SpeedEntry entry = Entry("a");
  entry.reads_per_s = 4321.5;
  const std::string good = SpeedsToJson({entry});
  for (size_t length = 0; length + 1 < good.size(); ++length) {
    EXPECT_EQ(SpeedsFromJson(good.substr(0, length)).status().code(), StatusCode::kCorrupt) << length;
  }
  const auto with = [&](const std::string& what, const std::string& instead) {
    std::string text = good;
    const size_t at = text.find(what);
    EXPECT_NE(at, std::string::npos) << what;
    return text.replace(at, what.size(), instead);
  };
  for (const std::string& text :
       {with("4321.5", "0"), with("4321.5", "-1.0"), with("4321.5", "\"fast\""), with("4321.5", "null"),
        with("4321.5", "1e999"), with("\"179:2\"", "179"), with("\"version\": 1", "\"version\": 2"),
        with("storage speed", "else"), with("\"mode\"", "\"m\""), std::string("[]"), std::string("\xff")}) {
    EXPECT_EQ(SpeedsFromJson(text).status().code(), StatusCode::kCorrupt) << text;
  }
  const TemporaryFolder folder;
  const std::string path = folder.Write("speed.json", "half a fi");
  const auto damaged = ReadSpeeds(path);
  ASSERT_FALSE(damaged.ok());
  EXPECT_NE(damaged.status().message().find(path), std::string::npos) << damaged.status().message();
  ASSERT_TRUE(WriteSpeed(path, entry).ok());
  EXPECT_EQ(*ReadSpeeds(path), std::vector<SpeedEntry>{entry});
  const std::string long_one = folder.Write("long.json", std::string(2 << 20, ' ') + good);
  EXPECT_EQ(ReadSpeeds(long_one).status().code(), StatusCode::kCorrupt);
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
