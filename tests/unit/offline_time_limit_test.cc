// A limit of time, by a clock that tests turn.
#include <gtest/gtest.h>

#include "offline/time_limit.h"

namespace kvrun::offline {
namespace {

class OfflineTimeLimit : public ::testing::Test {
 protected:
  TimeLimit Limit(double seconds) {
    return TimeLimit(seconds, 0.0, [this] { return now_; });
  }
  double now_ = 5000.0;
};

TEST_F(OfflineTimeLimit, IsCountedFromTheBeginning) {
  const TimeLimit limit = Limit(60);
  EXPECT_EQ(limit.Left(), 60.0);
  now_ += 45;
  EXPECT_EQ(limit.Spent(), 45.0);
  EXPECT_EQ(limit.Left(), 15.0);
  EXPECT_TRUE(limit.HasRoomFor(14.9));
  EXPECT_FALSE(limit.HasRoomFor(15.1));
  EXPECT_FALSE(limit.IsOver());
  now_ += 100;
  EXPECT_TRUE(limit.IsOver());
  EXPECT_EQ(limit.Left(), 0.0);
  EXPECT_FALSE(limit.HasRoomFor(0.0));
  const TimeLimit begun(60, 20, [this] { return now_; });
  EXPECT_EQ(begun.Left(), 40.0) << "some of it was spent before";
}

TEST_F(OfflineTimeLimit, ProgressIsTheTimeThatIsGone) {
  TimeLimit limit = Limit(60);
  EXPECT_EQ(limit.DoneSeconds(), 0U);
  EXPECT_EQ(limit.TotalSeconds(), 60U);
  now_ += 30.5;
  EXPECT_EQ(limit.DoneSeconds(), 30U);
  now_ += 300;
  EXPECT_EQ(limit.DoneSeconds(), 59U) << "it is not done until that is said";
  limit.Expect(400);
  EXPECT_EQ(limit.TotalSeconds(), 400U);
  EXPECT_EQ(limit.DoneSeconds(), 330U);
  limit.Expect(20);
  EXPECT_EQ(limit.TotalSeconds(), 400U) << "less than the limit changes nothing";
  EXPECT_EQ(Limit(0.5).TotalSeconds(), 1U);
  EXPECT_EQ(Limit(0.5).DoneSeconds(), 0U);
}

TEST_F(OfflineTimeLimit, WhatWouldEndTooLateIsKnownEarly) {
  const TimeLimit limit = Limit(100);
  now_ += 20;
  const Projection projection(limit);
  EXPECT_FALSE(projection.IsTooLate(0, 8192, 100));
  now_ += 0.5;
  EXPECT_FALSE(projection.IsTooLate(256, 8192, 100)) << "too early to say";
  now_ += 1.5;
  EXPECT_DOUBLE_EQ(projection.Seconds(256, 8192), 64.0);
  EXPECT_FALSE(projection.IsTooLate(256, 8192, 100)) << "20 + 64 seconds";
  EXPECT_TRUE(projection.IsTooLate(256, 8192, 80));
  now_ += 58;
  EXPECT_TRUE(projection.IsTooLate(8191, 8192, 80)) << "it is over";
}

TEST_F(OfflineTimeLimit, DurationsAreForPeople) {
  EXPECT_EQ(DurationText(44.2), "45 seconds");
  EXPECT_EQ(DurationText(210), "3.5 minutes");
}

}  // namespace
}  // namespace kvrun::offline
