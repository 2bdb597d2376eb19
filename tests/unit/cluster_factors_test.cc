// The factor of divisions, on keys whose second half is like the first, or not.
#include "runtime/kv/math/cluster_factors.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

namespace kvrun {
namespace {

constexpr uint32_t kDim = 8;

// Around a few places, as far from them as `spread` says.
std::vector<float> Keys(uint32_t n, float spread, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> places(size_t{20} * kDim);
  std::mt19937 same(7);
  for (float& value : places) value = 4 * normal(same);
  std::vector<float> keys(size_t{n} * kDim);
  for (uint32_t i = 0; i < n; ++i) {
    const auto place = static_cast<uint32_t>(random() % 20);
    for (uint32_t c = 0; c < kDim; ++c)
      keys[i * kDim + c] = places[place * kDim + c] + spread * normal(random);
  }
  return keys;
}

float FactorOf(float spread_of_first, float spread_of_second) {
  std::vector<float> keys = Keys(500, spread_of_first, 1);
  const std::vector<float> second = Keys(500, spread_of_second, 2);
  keys.insert(keys.end(), second.begin(), second.end());
  return FindClusterFactor(keys, kDim);
}

TEST(ClusterFactors, KeysThatVaryMoreThanAtFirstTakeALargerFactor) {
  const float alike = FactorOf(1.0F, 1.0F);
  EXPECT_GT(alike, 1.0F);
  EXPECT_LT(alike, 2.0F);
  const float wider = FactorOf(1.0F, 1.3F);
  EXPECT_GT(wider, 1.1F * alike);
  EXPECT_LT(wider, 3.0F);
  EXPECT_LT(FactorOf(1.0F, 0.8F), alike);
  EXPECT_EQ(FactorOf(1.0F, 1.0F), alike) << "the same keys, the same factor";
}

// Whatever is tried, clusters grow, or are divided too often: the least and the largest that there can be.
TEST(ClusterFactors, StaysWithinItsBounds) {
  EXPECT_NEAR(FactorOf(1.0F, 0.01F), 1.0F, 0.02F);
  EXPECT_NEAR(FactorOf(1.0F, 20.0F), 3.0F, 0.05F);
}

// Neither lengths in proportion nor what comes behind the first keys change it.
TEST(ClusterFactors, IsARatioOfTheFirstKeys) {
  std::vector<float> keys = Keys(kMostKeysOfFactor, 1.0F, 3);
  const float factor = FindClusterFactor(keys, kDim);
  std::vector<float> longer = keys;
  const std::vector<float> more = Keys(300, 9.0F, 4);
  longer.insert(longer.end(), more.begin(), more.end());
  EXPECT_EQ(FindClusterFactor(longer, kDim), factor);
  for (float& value : keys) value *= 8;
  EXPECT_FLOAT_EQ(FindClusterFactor(keys, kDim), factor);
}

TEST(ClusterFactorsDeathTest, FewKeysAreRefused) {
  const std::vector<float> keys(size_t{kLeastKeysOfFactor - 1} * kDim);
  EXPECT_DEATH((void)FindClusterFactor(keys, kDim), "kLeastKeysOfFactor");
}

}  // namespace
}  // namespace kvrun
