#include "runtime/kv/math/read_limit.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

namespace kvrun {
namespace {

std::vector<uint8_t> Marks(ReadLimit& limit, uint32_t stream, const std::vector<float>& scores) {
  const std::span<const uint8_t> marks = limit.MayStayUnread(stream, scores);
  return {marks.begin(), marks.end()};
}

TEST(ReadLimit, WhatScoresAboveTheThresholdIsRead) {
  ReadLimit limit(4.0, 1);
  const float threshold = limit.threshold(0);
  EXPECT_EQ(Marks(limit, 0, {2 * threshold, threshold / 2, threshold, 1.0F}),
            (std::vector<uint8_t>{0, 1, 1, 0}));
}

// Scores as those of groups are: a few large ones, and many small ones.
TEST(ReadLimit, TheThresholdComesToTheReadsThatWereAsked) {
  constexpr uint32_t kLayers = 30;
  for (const double wanted : {3.0, 12.0, 30.0}) {
    ReadLimit limit(wanted, 2);
    std::mt19937 random(1);
    std::lognormal_distribution<float> score(-6.0F, 1.5F);
    double n_last = 0.0;
    for (int step = 0; step < 120; ++step) {
      for (uint32_t layer = 0; layer < kLayers; ++layer) {
        std::vector<float> missed(40);
        for (float& value : missed) value = score(random);
        const std::vector<uint8_t> marks = Marks(limit, 1, missed);
        const auto n_reads = static_cast<uint32_t>(std::count(marks.begin(), marks.end(), 0));
        limit.Note(1, n_reads);
        if (step >= 60) n_last += n_reads;
      }
      limit.EndStep();
    }
    EXPECT_NEAR(n_last / (60 * kLayers), wanted, 0.05 * wanted);
  }
}

// Where there are fewer to be read than may be, all are in the end; and it recovers from either end.
TEST(ReadLimit, ItHasBounds) {
  ReadLimit limit(10.0, 1);
  const auto run = [&](uint32_t n_reads, int n_steps) {
    for (int i = 0; i < n_steps; ++i) {
      limit.Note(0, n_reads);
      limit.EndStep();
    }
  };
  run(1, 1000);
  EXPECT_EQ(Marks(limit, 0, {1e-5F}), (std::vector<uint8_t>{0}));
  EXPECT_GT(limit.threshold(0), 0.0F);
  run(1000, 1000);
  EXPECT_TRUE(std::isfinite(limit.threshold(0)));
  run(1, 1000);
  EXPECT_EQ(Marks(limit, 0, {1e-5F}), (std::vector<uint8_t>{0}));
}

TEST(ReadLimit, AStreamGoesByItsOwnReads) {
  ReadLimit limit(10.0, 3);
  const float before = limit.threshold(0);
  limit.Note(1, 40);
  limit.Note(2, 2);
  limit.EndStep();
  EXPECT_EQ(limit.threshold(0), before);
  EXPECT_GT(limit.threshold(1), before);
  EXPECT_LT(limit.threshold(2), before);
}

TEST(ReadLimit, AStepThatWasGivenUpDoesNotCount) {
  ReadLimit limit(10.0, 1);
  ReadLimit same(10.0, 1);
  limit.Note(0, 40);
  limit.DropStep();
  for (ReadLimit* one : {&limit, &same}) {
    one->Note(0, 5);
    one->EndStep();
  }
  EXPECT_EQ(limit.threshold(0), same.threshold(0));
}

}  // namespace
}  // namespace kvrun
