// What is special of this measurement file: tests/unit/measurement_file_test.cc has the rest.
#include "runtime/engine/machine/compute_time_file.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/support/or_die.h"
#include "tests/support/program_runner.h"

namespace kvrun::testing {
namespace {

using Values = std::vector<double>;

constexpr int64_t kHour = 3600;
const ComputeKey kKey = {.work = "layer of a token", .device = "A CPU", .model = "abc", .kvrun = "0.1.0"};

class ComputeTimeFile : public ::testing::Test {
 protected:
  // At that hour, where `measured` is what the machine does then.
  Values At(int64_t hour, Values measured, const ComputeKey& key = kKey) {
    return OrDie(KeptOrMeasured(path_, key, hour * kHour, [&]() -> Result<Values> {
      ++n_measured_;
      return measured;
    }));
  }

  TemporaryFolder folder_;
  std::string path_ = folder_.Path("times.json");
  int n_measured_ = 0;
};

TEST_F(ComputeTimeFile, WhatIsWrittenIsRead) {
  const ComputeEntry entry = {.key = kKey, .values = {1e4 / 3.0, 0.0}, .measured_s = 1796072875};
  RunOrDie(WriteComputeTime(path_, entry));
  EXPECT_EQ(OrDie(ReadComputeTimes(path_)), std::vector<ComputeEntry>{entry});
}

TEST_F(ComputeTimeFile, ADayIsTheSameWhateverTheMachineDoes) {
  EXPECT_EQ(At(100, {150.0}), Values{150.0});
  for (const int64_t hour : {100, 101, 123}) EXPECT_EQ(At(hour, {999.0}), Values{150.0});
  EXPECT_EQ(n_measured_, 1);
}

TEST_F(ComputeTimeFile, AfterADayItChangesWhereTheMachineHas) {
  At(100, {150.0, 0.0});
  EXPECT_EQ(At(124, {180.0, 0.0}), (Values{150.0, 0.0})) << "about the same";
  EXPECT_EQ(At(125, {80.0, 0.0}), (Values{150.0, 0.0})) << "measured an hour ago";
  EXPECT_EQ(At(149, {80.0, 0.0}), (Values{80.0, 0.0}));
  EXPECT_EQ(At(40, {300.0, 0.0}), (Values{300.0, 0.0})) << "the clock was set back";
  EXPECT_EQ(OrDie(ReadComputeTimes(path_)).size(), 1U);
}

TEST_F(ComputeTimeFile, AnyOtherFieldIsAnotherKey) {
  At(1, {150.0});
  const std::vector<std::function<void(ComputeKey*)>> changes = {
      [](ComputeKey* key) { key->work = "opening"; },
      [](ComputeKey* key) { key->device += ", AVX2"; },
      [](ComputeKey* key) { key->model = "abd"; },
      [](ComputeKey* key) { key->kvrun = "0.2.0"; },
  };
  double us = 1.0;
  for (const auto& change : changes) {
    ComputeKey other = kKey;
    change(&other);
    EXPECT_EQ(At(1, {us}, other), Values{us});
    us *= 10.0;
  }
  EXPECT_EQ(At(1, {2.0}), Values{150.0});
}

TEST_F(ComputeTimeFile, WithoutAPlaceOrAVersionEachIsMeasured) {
  const auto measure = [this]() -> Result<Values> { return Values{1.0 * ++n_measured_}; };
  ComputeKey no_version = kKey;
  no_version.kvrun = "";
  EXPECT_EQ(OrDie(KeptOrMeasured(std::nullopt, kKey, 1, measure)), Values{1.0});
  EXPECT_EQ(OrDie(KeptOrMeasured(path_, no_version, 1, measure)), Values{2.0});
  EXPECT_EQ(ReadComputeTimes(path_).status().code(), StatusCode::kNotFound);
}

TEST_F(ComputeTimeFile, AFailureIsNotKept) {
  const auto fail = []() -> Result<Values> { return Status(StatusCode::kDevice, "lost"); };
  EXPECT_EQ(KeptOrMeasured(path_, kKey, 1, fail).status().code(), StatusCode::kDevice);
  EXPECT_EQ(At(1, {5.0}), Values{5.0});
}

TEST_F(ComputeTimeFile, WhatAreNoTimesIsRefusedAndReplaced) {
  At(1, {4321.5});
  const std::string good = ReadWholeFile(path_);
  const auto expect_corrupt = [&](const std::string& what, const std::string& instead) {
    std::string text = good;
    const size_t at = text.find(what);
    ASSERT_NE(at, std::string::npos) << what;
    folder_.Write("times.json", text.replace(at, what.size(), instead));
    EXPECT_EQ(ReadComputeTimes(path_).status().code(), StatusCode::kCorrupt) << text;
    EXPECT_EQ(At(1, {7.0}), Values{7.0});
  };
  for (const char* value : {"-1.0", "\"fast\"", "null", "1e999"}) expect_corrupt("4321.5", value);
  expect_corrupt("\"measured_s\"", "\"m\"");
  expect_corrupt("compute time", "else");
  expect_corrupt("\"abc\"", "1");
}

}  // namespace
}  // namespace kvrun::testing
