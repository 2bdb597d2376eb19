// Rows of an index of clusters: what a query and a key make of them, against plain arithmetic.
#include "runtime/kv/math/centroid_row.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "platform/base/random.h"
#include "runtime/kv/math/key_division.h"

namespace kvrun {
namespace {

constexpr uint32_t kDim = 12;
constexpr uint32_t kRank = CentroidRank(kDim);

using Row = std::vector<int8_t>;

std::vector<float> RandomKey(Random& random, float size) {
  std::vector<float> key(kDim);
  for (float& value : key) value = size * random.Symmetric();
  return key;
}

// What ScoreAndSelect multiplies (QueryForm::kAffine), without the softmax.
double Score(std::span<const float> query, std::span<const float> side, std::span<const float> scales,
             const Row& row) {
  double score = 0.0;
  for (size_t c = 0; c < kRank; ++c) {
    double projected = side[size_t{kDim} * kRank + c];
    for (size_t i = 0; i < kDim; ++i) projected += query[i] * side[i * kRank + c];
    score += projected / std::sqrt(double{kDim}) * scales[c] * row[c];
  }
  return score;
}

class CentroidRow : public ::testing::Test {
 protected:
  void SetUp() override {
    Random random(1);
    std::vector<float> all;
    for (uint32_t i = 0; i < 200; ++i) {
      centroids_.push_back(RandomKey(random, 1.0F + static_cast<float>(i % 7)));
      all.insert(all.end(), centroids_.back().begin(), centroids_.back().end());
    }
    scales_.resize(kRank);
    FindCentroidScales(all, kDim, scales_);
    for (uint32_t i = 0; i < centroids_.size(); ++i) {
      rows_.emplace_back(kRank);
      PackCentroid(centroids_[i], Size(i), scales_, rows_.back());
    }
    attention_side_.resize(size_t{kDim + 1} * kRank);
    nearest_side_.resize(attention_side_.size());
    FillAttentionSide(kDim, attention_side_);
    FillNearestSide(kDim, nearest_side_);
  }

  static uint32_t Size(uint32_t i) { return 1 + i % 60; }

  std::vector<std::vector<float>> centroids_;
  std::vector<float> scales_;
  std::vector<Row> rows_;
  std::vector<float> attention_side_;
  std::vector<float> nearest_side_;
};

TEST_F(CentroidRow, AQueryScoresCentroidAndSize) {
  Random random(2);
  for (uint32_t i = 0; i < rows_.size(); ++i) {
    const std::vector<float> query = RandomKey(random, 2.0F);
    const double expected =
        Dot(query, centroids_[i]) / std::sqrt(double{kDim}) + std::log(static_cast<double>(Size(i)));
    // Half a code of each column.
    double tolerance = scales_[kDim] / 2 + 1e-4;
    for (size_t c = 0; c < kDim; ++c)
      tolerance += std::abs(query[c]) * scales_[c] / 2 / std::sqrt(double{kDim});
    EXPECT_NEAR(Score(query, attention_side_, scales_, rows_[i]), expected, tolerance);
  }
}

TEST_F(CentroidRow, AKeyFindsTheNearestRow) {
  Random random(3);
  for (uint32_t i = 0; i < 500; ++i) {
    const std::vector<float> key = RandomKey(random, 5.0F);
    size_t best = 0;
    double best_score = -std::numeric_limits<double>::infinity();
    double least = std::numeric_limits<double>::infinity();
    std::vector<double> distances;
    for (size_t r = 0; r < rows_.size(); ++r) {
      const double score = Score(key, nearest_side_, scales_, rows_[r]);
      if (score > best_score) {
        best_score = score;
        best = r;
      }
      std::vector<float> held(kDim);
      UnpackCentroid(rows_[r], scales_, held);
      distances.push_back(SquaredDistance(key, held));
      least = std::min(least, distances.back());
    }
    // Two digits hold half a norm within a part in 32,000 of the largest.
    EXPECT_LE(distances[best], least + 2.1 * scales_[kDim + 3]) << i;
  }
}

TEST_F(CentroidRow, WhatIsNoClusterIsNeitherAttendedToNorNearest) {
  Row none(kRank);
  PackNoCentroid(none);
  EXPECT_FALSE(IsCentroid(none));
  EXPECT_TRUE(IsCentroid(rows_[0]));
  Random random(4);
  for (uint32_t i = 0; i < 50; ++i) {
    const std::vector<float> key = RandomKey(random, 100.0F);
    for (const Row& row : rows_) {
      EXPECT_LT(Score(key, nearest_side_, scales_, none), Score(key, nearest_side_, scales_, row));
    }
    const std::vector<float> query = RandomKey(random, 2.0F);
    EXPECT_LT(Score(query, attention_side_, scales_, none), -100.0);
  }
}

TEST_F(CentroidRow, SizesChangeAlone) {
  Row row = rows_[5];
  PackCentroidSize(33, scales_, row);
  Row expected(kRank);
  PackCentroid(centroids_[5], 33, scales_, expected);
  EXPECT_EQ(row, expected);
  PackCentroidSize(0, scales_, row);
  EXPECT_TRUE(IsCentroid(row));
  EXPECT_LT(Score(std::vector<float>(kDim), attention_side_, scales_, row), -7.0);
}

// Keys that are no numbers come of reads that failed: they make codes like any others.
TEST_F(CentroidRow, NoNumbersAndLargeOnesAreClipped) {
  std::vector<float> key(kDim, std::nanf(""));
  Row row(kRank);
  PackCentroid(key, 3, scales_, row);
  key.assign(kDim, 1e30F);
  PackCentroid(key, 3, scales_, row);
  for (size_t c = 0; c < kDim; ++c) EXPECT_EQ(row[c], 127);
  // The half norm of what the row holds is still one that it can hold.
  double half_norm = 0.0;
  for (size_t c = 0; c < kDim; ++c) half_norm += std::pow(127.0 * scales_[c], 2) / 2;
  EXPECT_NEAR(scales_[kDim + 2] * row[kDim + 2] + scales_[kDim + 3] * row[kDim + 3], half_norm,
              scales_[kDim + 3]);
  FindCentroidScales({}, kDim, scales_);
  PackCentroid(centroids_[0], 1, scales_, row);
}

}  // namespace
}  // namespace kvrun
