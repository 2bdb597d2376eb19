#include "runtime/engine/device_times_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <functional>
#include <string>

#include "tests/support/program_runner.h"

namespace kvrun {
namespace {

TimesEntry Entry(const std::string& model) {
  return {.key = {.gpu = "Mali-G610",
                  .driver = "panvk 25.1",
                  .cpu = "Cortex-A76",
                  .n_threads = 4,
                  .exact_activations = true,
                  .model = model,
                  .kvrun = "0.1.0"},
          .cpu = {.prefill_us = 1.25, .decode_us = 1e6 / 3.0},
          .gpu = {.prefill_us = 0.1, .decode_us = 12345.678}};
}

TEST(DeviceTimesFile, WhatIsWrittenIsRead) {
  const TemporaryFolder folder;
  const std::string path = folder.Path("cache/kvrun/times.json");
  EXPECT_EQ(ReadTimes(path).status().code(), StatusCode::kNotFound);
  ASSERT_TRUE(WriteTimes(path, Entry("a")).ok());
  ASSERT_TRUE(WriteTimes(path, Entry("b")).ok());
  const auto entries = ReadTimes(path);
  ASSERT_TRUE(entries.ok()) << entries.status().message();
  EXPECT_EQ(*entries, (std::vector<TimesEntry>{Entry("a"), Entry("b")}));
  struct stat info {};
  ASSERT_EQ(::stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600U);
}

TEST(DeviceTimesFile, ANewEntryTakesTheOldOnesPlaceAndGoesLast) {
  const TemporaryFolder folder;
  const std::string path = folder.Path("times.json");
  for (const char* model : {"a", "b"}) ASSERT_TRUE(WriteTimes(path, Entry(model)).ok());
  TimesEntry newer = Entry("a");
  newer.cpu.decode_us = 7.0;
  ASSERT_TRUE(WriteTimes(path, newer).ok());
  EXPECT_EQ(*ReadTimes(path), (std::vector<TimesEntry>{Entry("b"), newer}));
}

TEST(DeviceTimesFile, AnyOtherFieldIsAnotherKey) {
  const std::vector<std::function<void(TimesKey*)>> changes = {
      [](TimesKey* key) { key->gpu += "x"; },
      [](TimesKey* key) { key->driver = "panvk 25.2"; },
      [](TimesKey* key) { key->cpu += "x"; },
      [](TimesKey* key) { key->n_threads = 3; },
      [](TimesKey* key) { key->exact_activations = false; },
      [](TimesKey* key) { key->model += "x"; },
      [](TimesKey* key) { key->kvrun = "0.2.0"; },
  };
  const TemporaryFolder folder;
  const std::string path = folder.Path("times.json");
  ASSERT_TRUE(WriteTimes(path, Entry("a")).ok());
  for (const auto& change : changes) {
    TimesEntry other = Entry("a");
    change(&other.key);
    EXPECT_FALSE(other.key == Entry("a").key);
    ASSERT_TRUE(WriteTimes(path, other).ok());
    EXPECT_EQ(ReadTimes(path)->back(), other);
  }
  EXPECT_EQ(ReadTimes(path)->size(), 1 + changes.size());
}

TEST(DeviceTimesFile, TheOldestEntriesGo) {
  const TemporaryFolder folder;
  const std::string path = folder.Path("times.json");
  for (size_t i = 0; i < kMaxTimesEntries + 3; ++i) {
    ASSERT_TRUE(WriteTimes(path, Entry(std::to_string(i))).ok());
  }
  const auto entries = ReadTimes(path);
  ASSERT_TRUE(entries.ok());
  ASSERT_EQ(entries->size(), kMaxTimesEntries);
  EXPECT_EQ(entries->front().key.model, "3");
  EXPECT_EQ(entries->back().key.model, std::to_string(kMaxTimesEntries + 2));
}

TEST(DeviceTimesFile, DamageIsRefusedAndThenReplaced) {
  const TemporaryFolder folder;
  const std::string good = TimesToJson({Entry("a")});
  for (size_t length = 0; length + 1 < good.size(); ++length) {
    EXPECT_EQ(TimesFromJson(good.substr(0, length)).status().code(), StatusCode::kCorrupt) << length;
  }
  const auto with = [&](const std::string& what, const std::string& instead) {
    std::string text = good;
    const size_t at = text.find(what);
    EXPECT_NE(at, std::string::npos) << what;
    return text.replace(at, what.size(), instead);
  };
  for (const std::string& text :
       {with("12345.678", "0"), with("12345.678", "-1.0"), with("12345.678", "\"fast\""),
        with("12345.678", "null"), with("12345.678", "1e999"), with("\"threads\": 4", "\"threads\": \"4\""),
        with("\"version\": 1", "\"version\": 2"), with("device times", "else"), with("\"gpu\"", "\"g\""),
        std::string("[]"), std::string("null"), std::string("\xff\xfe")}) {
    EXPECT_EQ(TimesFromJson(text).status().code(), StatusCode::kCorrupt) << text;
  }
  const std::string path = folder.Write("times.json", "half a fi");
  const auto damaged = ReadTimes(path);
  ASSERT_FALSE(damaged.ok());
  EXPECT_NE(damaged.status().message().find(path), std::string::npos) << damaged.status().message();
  ASSERT_TRUE(WriteTimes(path, Entry("b")).ok());
  EXPECT_EQ(*ReadTimes(path), std::vector<TimesEntry>{Entry("b")});
  const std::string long_one = folder.Write("long.json", std::string(2 << 20, ' ') + good);
  EXPECT_EQ(ReadTimes(long_one).status().code(), StatusCode::kCorrupt);
}

TEST(DeviceTimesFile, AFolderThatCannotBeMadeIsAnError) {
  const TemporaryFolder folder;
  const std::string path = folder.Write("file", "") + "/kvrun/times.json";
  EXPECT_FALSE(WriteTimes(path, Entry("a")).ok());
  EXPECT_FALSE(ReadTimes(path).ok());
}

TEST(DeviceTimesFile, NamesNeedNotBeText) {
  const TemporaryFolder folder;
  TimesEntry entry = Entry("a");
  entry.key.gpu = "\xff\"\\\n";
  const std::string path = folder.Path("times.json");
  ASSERT_TRUE(WriteTimes(path, entry).ok());
  EXPECT_EQ(ReadTimes(path)->size(), 1U);
}

}  // namespace
}  // namespace kvrun
