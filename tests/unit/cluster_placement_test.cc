// Where a prompt's clusters lie: an example by hand, and clusters that belong together on purpose.
#include "runtime/kv/math/cluster_placement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <vector>

#include "platform/base/random.h"

namespace kvrun {
namespace {

using Ids = std::vector<uint32_t>;

void Add(CoRetrieval& together, const Ids& selected, int times) {
  for (int i = 0; i < times; ++i) together.Add(selected);
}

// The mean count of those that adjoin: 2i + 1 and 2i + 2.
double MeanOfNeighbours(const CoRetrieval& together, const Ids& order) {
  double sum = 0.0;
  double n = 0.0;
  for (size_t id = 1; id + 1 < order.size(); id += 2) {
    sum += together.Count(order[id], order[id + 1]);
    n += 1.0;
  }
  return sum / n;
}

bool IsPermutation(Ids order, uint32_t n) {
  std::sort(order.begin(), order.end());
  Ids all(n);
  std::iota(all.begin(), all.end(), 0U);
  return order == all;
}

TEST(CoRetrieval, CountsPairs) {
  CoRetrieval together(5);
  together.Add(Ids{0, 2, 4});
  together.Add(Ids{2, 4});
  together.Add(Ids{});
  EXPECT_EQ(together.Count(2, 4), 2U);
  EXPECT_EQ(together.Count(4, 2), 2U);
  EXPECT_EQ(together.Count(0, 4), 1U);
  EXPECT_EQ(together.Count(1, 3), 0U);
  EXPECT_EQ(together.n_different(), 3U);
  EXPECT_EQ(CoRetrieval::MemoryBytes(5), 20U);
}

TEST(CoRetrieval, CountsEndAtTheirLimit) {
  CoRetrieval together(2);
  Add(together, {0, 1}, 70000);
  EXPECT_EQ(together.Count(0, 1), 65535U);
}

TEST(CoRetrievalDeathTest, MisuseIsFound) {
  CoRetrieval together(3);
  EXPECT_DEATH(together.Add(Ids{1, 3}), "n_clusters");
  EXPECT_DEATH(together.Add(Ids{1, 1}), "selected");
}

// Counts: 1-5: 9, 0-5: 8, 0-3: 7, 2-6: 5, 5-6: 4. So 1-5 is the first pair, then 0-3 (5 is taken), then 2-6;
// 4 is left. What follows 1-5 is 0-3, with 8 in common, rather than 2-6, with 4. The pair 0-3 comes with 0
// first, as it has 8 with 5, and 3 none. After 0-3, 2-6 is all that there is.
TEST(PlaceClusters, AnExampleByHand) {
  CoRetrieval together(7);
  Add(together, {1, 5}, 9);
  Add(together, {0, 5}, 8);
  Add(together, {0, 3}, 7);
  Add(together, {2, 6}, 5);
  Add(together, {5, 6}, 4);
  EXPECT_EQ(PlaceClusters(together), (Ids{4, 1, 5, 0, 3, 2, 6}));
}

// Of two pairs that weigh the same, the one of lower ids goes first. The second is turned: 3 belongs to 1.
TEST(PlaceClusters, TiesAndTurns) {
  CoRetrieval together(6);
  Add(together, {2, 3}, 5);
  Add(together, {0, 1}, 5);
  Add(together, {1, 3}, 2);
  EXPECT_EQ(PlaceClusters(together), (Ids{4, 0, 1, 3, 2, 5}));
}

// Selected together as often as 0 and 2, 0 and 3 are nearer; 1 and 2 are far from each other, and nothing is
// left for them. Ten times as often outweighs the distance.
TEST(PlaceClusters, OfThoseThatWeighTheSameTheNearerOnesAdjoin) {
  const std::vector<float> centroids = {0.0F, 0.0F, 9.0F, 0.0F, 0.0F, 9.0F, 0.5F, 0.0F};
  CoRetrieval together(4);
  Add(together, {0, 2, 3}, 5);
  Add(together, {0, 1}, 5);
  EXPECT_EQ(PlaceClusters(together), (Ids{2, 0, 1, 3}));
  EXPECT_EQ(PlaceClusters(together, centroids), (Ids{1, 0, 3, 2}));
  Add(together, {1, 2}, 300);
  EXPECT_EQ(PlaceClusters(together, centroids), (Ids{0, 1, 2, 3}));
  // Without any distance, counts alone say.
  EXPECT_EQ(PlaceClusters(together, std::vector<float>(8, 1.0F)), PlaceClusters(together));
}

TEST(PlaceClusters, WhatWasNeverSelectedStaysInOrder) {
  for (uint32_t n = 0; n < 9; ++n) {
    const Ids order = PlaceClusters(CoRetrieval(n));
    EXPECT_TRUE(IsPermutation(order, n)) << n;
    EXPECT_EQ(order.size(), n);
  }
}

TEST(PlaceClusters, AnyNumberOfClustersIsPermuted) {
  Random random(3);
  for (uint32_t n = 1; n < 60; ++n) {
    CoRetrieval together(n);
    for (int query = 0; query < 20; ++query) {
      std::set<uint32_t> selected;
      for (uint32_t i = random.Below(n); i > 0; --i) selected.insert(random.Below(n));
      together.Add(Ids(selected.begin(), selected.end()));
    }
    const Ids order = PlaceClusters(together);
    EXPECT_TRUE(IsPermutation(order, n)) << n;
    EXPECT_EQ(PlaceClusters(together), order);
    std::vector<float> centroids(size_t{n} * 3);
    for (float& value : centroids) value = static_cast<float>(random.Below(1000));
    EXPECT_TRUE(IsPermutation(PlaceClusters(together, centroids), n)) << n;
  }
}

// Themes of five clusters each; a query selects most of four themes, and some others by chance.
TEST(PlaceClusters, NeighboursBelongTogether) {
  for (const uint32_t n : {200U, 201U}) {
    Random random(n);
    Ids theme(n);
    for (uint32_t& one : theme) one = random.Below(n / 5);
    CoRetrieval together(n);
    for (int query = 0; query < 128; ++query) {
      std::set<uint32_t> themes;
      while (themes.size() < 4) themes.insert(random.Below(n / 5));
      Ids selected;
      for (uint32_t id = 0; id < n; ++id) {
        if (random.Below(100) < (themes.contains(theme[id]) ? 80U : 5U)) selected.push_back(id);
      }
      together.Add(selected);
    }
    double by_chance = 0.0;
    Ids order(n);
    std::iota(order.begin(), order.end(), 0U);
    for (int shuffle = 0; shuffle < 20; ++shuffle) {
      for (uint32_t i = n - 1; i > 0; --i) std::swap(order[i], order[random.Below(i + 1)]);
      by_chance += MeanOfNeighbours(together, order) / 20;
    }
    EXPECT_GT(MeanOfNeighbours(together, PlaceClusters(together)), 3 * by_chance) << by_chance;
  }
}

}  // namespace
}  // namespace kvrun
