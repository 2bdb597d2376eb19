// K-means over tiles, and the division of keys, beside plain loops.
#include "runtime/kv/math/kmeans.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>
#include <vector>

#include "platform/base/random.h"
#include "runtime/kv/math/key_division.h"

namespace kvrun {
namespace {

constexpr uint32_t kDim = 6;

std::span<const float> KeyOf(const std::vector<float>& keys, size_t i) {
  return std::span(keys).subspan(i * kDim, kDim);
}

// Keys about `n_heaps` points that lie far apart.
std::vector<float> Heaps(uint32_t n_heaps, uint32_t n_keys, uint64_t seed) {
  Random random(seed);
  std::vector<float> keys;
  for (uint32_t i = 0; i < n_keys; ++i) {
    for (uint32_t c = 0; c < kDim; ++c) {
      const float centre = 10.0F * std::sin(static_cast<float>((i % n_heaps + 1) * (c + 2)));
      keys.push_back(centre + 0.1F * random.Symmetric());
    }
  }
  return keys;
}

// Passes over all keys in tiles, as a caller makes them.
void Pass(KMeans& means, const std::vector<float>& keys, uint32_t tile) {
  means.BeginPass();
  const auto n = static_cast<uint32_t>(keys.size() / kDim);
  for (uint32_t first = 0; first < n; first += tile) {
    const uint32_t end = std::min(n, first + tile);
    std::vector<float> products;
    for (uint32_t i = first; i < end; ++i) {
      for (uint32_t cluster = 0; cluster < means.n_clusters(); ++cluster) {
        products.push_back(Dot(KeyOf(keys, i), means.centroids().subspan(cluster * kDim, kDim)) -
                           means.half_norms()[cluster]);
      }
    }
    means.Add(first, std::span(keys).subspan(first * kDim, (end - first) * kDim), products);
  }
  means.EndPass();
}

void Start(KMeans& means, const std::vector<float>& keys) {
  std::vector<float> sample;
  for (const uint32_t i : means.sample())
    sample.insert(sample.end(), KeyOf(keys, i).begin(), KeyOf(keys, i).end());
  means.Start(sample);
}

double SquaredError(const KMeans& means, const std::vector<float>& keys) {
  double sum = 0.0;
  for (size_t i = 0; i < means.nearest().size(); ++i) {
    sum += SquaredDistance(KeyOf(keys, i), means.centroids().subspan(means.nearest()[i] * kDim, kDim));
  }
  return sum;
}

TEST(KMeans, FindsHeapsThatLieApart) {
  const std::vector<float> keys = Heaps(5, 100, 1);
  KMeans means(kDim, 5, 100, 7);
  Start(means, keys);
  for (int pass = 0; pass < 3; ++pass) Pass(means, keys, 33);
  for (size_t i = 0; i < 100; ++i) EXPECT_EQ(means.nearest()[i], means.nearest()[i % 5]);
  const std::set<uint32_t> used(means.nearest().begin(), means.nearest().end());
  EXPECT_EQ(used.size(), 5U);
}

// Tiles do not matter, and a pass does not make the error larger.
TEST(KMeans, TilesDoNotMatter) {
  const std::vector<float> keys = Heaps(40, 500, 2);
  KMeans whole(kDim, 16, 500, 3);
  KMeans tiled(kDim, 16, 500, 3);
  Start(whole, keys);
  Start(tiled, keys);
  double before = std::numeric_limits<double>::infinity();
  for (int pass = 0; pass < 6; ++pass) {
    Pass(whole, keys, 500);
    Pass(tiled, keys, 77);
    EXPECT_TRUE(std::equal(whole.centroids().begin(), whole.centroids().end(), tiled.centroids().begin()));
    const double error = SquaredError(whole, keys);
    EXPECT_LE(error, before * (1 + 1e-5));
    before = error;
  }
}

// Centroids are the means of what was nearest, half norms are theirs.
TEST(KMeans, CentroidsAreMeans) {
  const std::vector<float> keys = Heaps(12, 200, 4);
  KMeans means(kDim, 7, 200, 5);
  Start(means, keys);
  Pass(means, keys, 64);
  for (uint32_t cluster = 0; cluster < 7; ++cluster) {
    std::vector<float> own;
    for (size_t i = 0; i < 200; ++i) {
      if (means.nearest()[i] == cluster) own.insert(own.end(), KeyOf(keys, i).begin(), KeyOf(keys, i).end());
    }
    const auto centroid = means.centroids().subspan(cluster * kDim, kDim);
    EXPECT_NEAR(means.half_norms()[cluster], Dot(centroid, centroid) / 2, 1e-3);
    if (own.empty()) continue;
    std::vector<float> mean(kDim);
    FindSpread(own, mean);
    for (uint32_t c = 0; c < kDim; ++c) EXPECT_NEAR(mean[c], centroid[c], 1e-4);
  }
}

// As many clusters as different keys at most: the others stay empty, and nothing is divided by their count.
TEST(KMeans, FewerKeysThanClusters) {
  const std::vector<float> keys = Heaps(2, 6, 6);
  KMeans means(kDim, 50, 6, 1);
  EXPECT_EQ(means.n_clusters(), 6U);
  Start(means, keys);
  Pass(means, keys, 4);
  Pass(means, keys, 4);
  EXPECT_TRUE(std::all_of(means.centroids().begin(), means.centroids().end(),
                          [](float value) { return std::isfinite(value); }));
}

TEST(KMeans, EqualKeysAndNaNsDoNoHarm) {
  for (const float value : {3.0F, std::nanf(""), std::numeric_limits<float>::infinity()}) {
    const std::vector<float> keys(40 * kDim, value);
    KMeans means(kDim, 8, 40, 1);
    Start(means, keys);
    Pass(means, keys, 16);
    Pass(means, keys, 16);
    for (const uint32_t cluster : means.nearest()) EXPECT_LT(cluster, 8U);
    std::vector<uint8_t> is_second(40);
    KeyDivision(kDim, 32).Divide(keys, is_second);
    const auto n_second = std::count(is_second.begin(), is_second.end(), 1);
    EXPECT_GE(n_second, 8);
    EXPECT_LE(n_second, 32);
  }
}

// A key that is no number does not take others along.
TEST(KMeans, ANaNSpoilsNoOtherKey) {
  std::vector<float> keys = Heaps(5, 100, 1);
  keys[37 * kDim + 2] = std::nanf("");
  KMeans means(kDim, 6, 100, 7);
  Start(means, keys);
  for (int pass = 0; pass < 4; ++pass) Pass(means, keys, 33);
  for (size_t i = 0; i < 100; ++i) {
    const auto centroid = means.centroids().subspan(means.nearest()[i] * kDim, kDim);
    EXPECT_TRUE(i == 37 || SquaredDistance(KeyOf(keys, i), centroid) < 1.0F) << "key " << i;
  }
}

TEST(KMeans, TheSameSeedGivesTheSameClusters) {
  const std::vector<float> keys = Heaps(30, 300, 8);
  std::vector<std::vector<uint32_t>> found;
  for (const uint64_t seed : {5U, 5U, 6U}) {
    KMeans means(kDim, 12, 300, seed);
    Start(means, keys);
    Pass(means, keys, 100);
    found.emplace_back(means.nearest().begin(), means.nearest().end());
  }
  EXPECT_EQ(found[0], found[1]);
  EXPECT_NE(found[0], found[2]);
}

TEST(KeyDivision, SeparatesTwoHeaps) {
  const std::vector<float> keys = Heaps(2, 20, 9);
  std::vector<uint8_t> is_second(20);
  KeyDivision(kDim, 16).Divide(keys, is_second);
  for (size_t i = 0; i < 20; ++i) EXPECT_EQ(is_second[i], is_second[i % 2]);
  EXPECT_NE(is_second[0], is_second[1]);
}

// One that lies far from 30 others would be alone, but a part has 20 at most.
TEST(KeyDivision, PartsHaveNoMoreThanTheyMay) {
  std::vector<float> keys = Heaps(1, 30, 10);
  keys.insert(keys.end(), kDim, 1000.0F);
  for (const uint32_t most : {16U, 20U, 30U, 31U}) {
    std::vector<uint8_t> is_second(31);
    KeyDivision(kDim, most).Divide(keys, is_second);
    const auto n_second = static_cast<uint32_t>(std::count(is_second.begin(), is_second.end(), 1));
    EXPECT_LE(n_second, most);
    EXPECT_LE(31 - n_second, most);
    EXPECT_GE(std::min(n_second, 31 - n_second), 1U);
  }
}

TEST(KeyDivision, EqualKeysAreHalved) {
  const std::vector<float> keys(10 * kDim, 2.0F);
  std::vector<uint8_t> is_second(10);
  KeyDivision(kDim, 9).Divide(keys, is_second);
  EXPECT_EQ(std::count(is_second.begin(), is_second.end(), 1), 5);
}

// A spread as it is by definition.
TEST(KeyDivision, SpreadOfKeys) {
  const std::vector<float> keys = {0.0F, 0.0F, 2.0F, 0.0F, 1.0F, 3.0F};
  std::vector<float> mean(2);
  EXPECT_NEAR(FindSpread(keys, mean), (1 + 1 + 1 + 1 + 0 + 4) / 3.0, 1e-6);
  EXPECT_EQ(mean, (std::vector<float>{1.0F, 1.0F}));
}

}  // namespace
}  // namespace kvrun
