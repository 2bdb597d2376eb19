// Points that do not fit are left out of a profile, and nothing else is.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "offline/fitting_points.h"

namespace kvrun::offline {
namespace {

NamedPoint Measures(const std::string& name) {
  return {name, [name] { return std::vector<OperationRow>{{.operation = name, .shape = {}, .us = 1.0}}; }};
}

NamedPoint Fails(const std::string& name, StatusCode code) {
  return {name, [code]() -> Result<std::vector<OperationRow>> { return Status(code, "for a reason"); }};
}

TEST(FittingPoints, WhatDoesNotFitIsLeftOutAndNamed) {
  const auto profile = MeasureWhatFits({Measures("a"), Fails("b", StatusCode::kOutOfMemory), Measures("c"),
                                        Fails("d", StatusCode::kOutOfMemory)});
  ASSERT_TRUE(profile.ok()) << profile.status().message();
  ASSERT_EQ(profile->rows.size(), 2U);
  EXPECT_EQ(profile->rows[0].operation, "a");
  EXPECT_EQ(profile->rows[1].operation, "c");
  EXPECT_EQ(profile->skipped, (std::vector<std::string>{"b: for a reason", "d: for a reason"}));
}

TEST(FittingPoints, OtherFailuresEndIt) {
  for (const StatusCode code : {StatusCode::kDevice, StatusCode::kIo, StatusCode::kInvalidArgument}) {
    const auto profile = MeasureWhatFits({Measures("a"), Fails("b", code), Measures("c")});
    EXPECT_EQ(profile.status().code(), code);
    EXPECT_EQ(profile.status().message(), "measuring b: for a reason");
  }
  const auto cancelled = MeasureWhatFits({Measures("a"), Fails("b", StatusCode::kCancelled)});
  EXPECT_EQ(cancelled.status().code(), StatusCode::kCancelled);
}

TEST(FittingPoints, WhereNothingFitsThatIsTheFailure) {
  const auto none =
      MeasureWhatFits({Fails("a", StatusCode::kOutOfMemory), Fails("b", StatusCode::kOutOfMemory)});
  EXPECT_EQ(none.status().code(), StatusCode::kOutOfMemory);
  EXPECT_EQ(none.status().message(), "measuring a: for a reason");
  const NamedPoint untimed = {"c", [] { return std::vector<OperationRow>{}; }};
  const auto no_times = MeasureWhatFits({untimed});
  ASSERT_TRUE(no_times.ok()) << "a device without timestamps is another matter";
  EXPECT_TRUE(no_times->rows.empty());
}

}  // namespace
}  // namespace kvrun::offline
