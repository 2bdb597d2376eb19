#include "runtime/kv/math/page_bounds.h"

#include <gtest/gtest.h>

#include <vector>

namespace kvrun {
namespace {

TEST(PageBounds, AreOfEachColumn) {
  const std::vector<float> keys = {1, -2, 3, 0, -1, 2, 3, 8, 2};  // [3, 3]
  std::vector<float> upper(3);
  std::vector<float> lower(3);
  MinMaxBounds(keys, upper, lower);
  EXPECT_EQ(upper, (std::vector<float>{3, 8, 3}));
  EXPECT_EQ(lower, (std::vector<float>{0, -2, 2}));
  SpreadBounds(keys, upper, lower);
  const std::vector<float> means = {4.0F / 3, 5.0F / 3, 7.0F / 3};
  const std::vector<float> deviations = {1.2472191F, 4.4969125F, 0.4714045F};
  for (size_t c = 0; c < 3; ++c) {
    EXPECT_NEAR(upper[c], means[c] + deviations[c], 1e-5F);
    EXPECT_NEAR(lower[c], means[c] - deviations[c], 1e-5F);
  }
}

TEST(PageBounds, OfOneKeyAreThatKey) {
  const std::vector<float> keys = {0.1F, -7.5F};
  for (const auto bounds : {MinMaxBounds, SpreadBounds}) {
    std::vector<float> upper(2);
    std::vector<float> lower(2);
    bounds(keys, upper, lower);
    EXPECT_EQ(upper, keys);
    EXPECT_EQ(lower, keys);
  }
}

}  // namespace
}  // namespace kvrun
