// What is special of this measurement file: tests/unit/measurement_file_test.cc has the rest.
#include "runtime/engine/device/device_times_file.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "tests/support/program_runner.h"

namespace kvrun {
namespace {

const TimesEntry kEntry = {.key = {.gpu = "Mali-G610",
                                   .driver = "panvk 25.1",
                                   .cpu = "Cortex-A76",
                                   .n_threads = 4,
                                   .exact_activations = true,
                                   .model = "a",
                                   .kvrun = "0.1.0"},
                           .cpu = {.prefill_us = 1.25, .decode_us = 1e6 / 3.0},
                           .gpu = {.prefill_us = 0.1, .decode_us = 12345.678}};

TEST(DeviceTimesFile, WhatIsWrittenIsReadAndFound) {
  const TemporaryFolder folder;
  const std::string path = folder.Path("times.json");
  ASSERT_TRUE(WriteTimes(path, kEntry).ok());
  EXPECT_EQ(ReadTimes(path).value(), std::vector<TimesEntry>{kEntry});
  EXPECT_EQ(FindTimes(path, kEntry.key).value(), kEntry);
  TimesEntry stale = kEntry;
  stale.usual = {.prefill_us = 0.5, .decode_us = 2.0};
  stale.stale = "decoding ran";
  ASSERT_TRUE(WriteTimes(path, stale).ok());
  EXPECT_EQ(ReadTimes(path).value(), std::vector<TimesEntry>{stale}) << "in its place";
  EXPECT_EQ(TimesFromText(TimesToText(kEntry.cpu)).value(), kEntry.cpu);
  EXPECT_EQ(TimesFromText("{}").status().code(), StatusCode::kInternal);
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
  ASSERT_TRUE(WriteTimes(path, kEntry).ok());
  for (const auto& change : changes) {
    TimesEntry other = kEntry;
    change(&other.key);
    EXPECT_EQ(FindTimes(path, other.key).status().code(), StatusCode::kNotFound);
    ASSERT_TRUE(WriteTimes(path, other).ok());
    EXPECT_EQ(ReadTimes(path)->back(), other);
  }
  EXPECT_EQ(ReadTimes(path)->size(), 1 + changes.size());
}

TEST(DeviceTimesFile, WhatAreNoTimesIsRefused) {
  const TemporaryFolder folder;
  const std::string path = folder.Path("times.json");
  ASSERT_TRUE(WriteTimes(path, kEntry).ok());
  const std::string good = ReadWholeFile(path);
  const auto expect_corrupt = [&](const std::string& what, const std::string& instead) {
    std::string text = good;
    const size_t at = text.find(what);
    ASSERT_NE(at, std::string::npos) << what;
    folder.Write("times.json", text.replace(at, what.size(), instead));
    EXPECT_EQ(ReadTimes(path).status().code(), StatusCode::kCorrupt) << text;
  };
  for (const char* value : {"0", "-1.0", "\"fast\"", "null", "1e999"}) expect_corrupt("12345.678", value);
  // A number beyond all integers is no count, nor is a fraction.
  for (const char* value : {"\"4\"", "4.5", "-4", "4294967296", "333333333333333333333333333333"}) {
    expect_corrupt("\"threads\": 4", std::string("\"threads\": ") + value);
  }
  expect_corrupt("\"version\": 1", "\"version\": 2");
  expect_corrupt("device times", "else");
  expect_corrupt("\"gpu\"", "\"g\"");
}

}  // namespace
}  // namespace kvrun
