// A prompt's clusters: an example by hand, and what must hold over many sizes.
#include "runtime/kv/math/prompt_clusters.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "platform/base/random.h"
#include "runtime/kv/math/key_division.h"

namespace kvrun {
namespace {

using Ids = std::vector<uint32_t>;

CopyKeys KeysIn(const std::vector<float>& keys, uint32_t dim, size_t most) {
  return [&keys, dim, most](std::span<const uint32_t> entries, std::span<float> out) {
    ASSERT_LE(entries.size(), most);
    ASSERT_EQ(out.size(), entries.size() * dim);
    ASSERT_TRUE(std::is_sorted(entries.begin(), entries.end()));
    for (size_t i = 0; i < entries.size(); ++i)
      std::copy_n(keys.begin() + entries[i] * size_t{dim}, dim, out.begin() + i * dim);
  };
}

// The header's example: the third of K-means' clusters has two heaps.
TEST(PromptClusters, AnExampleByHand) {
  const Ids nearest = {0, 2, 2, 2, 0, 2, 2, 0, 2, 2};
  const std::vector<float> keys = {0, 10, 20, 11, 1, 21, 12, 2, 22, 10};
  const PromptClusterShape shape = {.dim = 1, .n_entries = 10, .n_means = 3, .max_entries = 4, .room = 3};
  const PromptClusters found = FindPromptClusters(shape, nearest, KeysIn(keys, 1, 8));
  ASSERT_EQ(found.n_clusters(), 3U);
  EXPECT_FALSE(found.is_filled_up);
  EXPECT_EQ(found.begin[1], 3U);
  EXPECT_EQ(found.cluster_of[0], 0U);
  EXPECT_EQ(found.cluster_of[4], 0U);
  EXPECT_EQ(found.cluster_of[7], 0U);
  EXPECT_EQ(found.centroids[0], 1.0F);
  EXPECT_NEAR(found.variances[0], 2.0F / 3, 1e-6F);
  for (const uint32_t entry : {3U, 6U, 9U}) EXPECT_EQ(found.cluster_of[entry], found.cluster_of[1]);
  for (const uint32_t entry : {5U, 8U}) EXPECT_EQ(found.cluster_of[entry], found.cluster_of[2]);
  EXPECT_NE(found.cluster_of[1], found.cluster_of[2]);
}

// The same with room for one cluster less, and clusters of 5: they are filled up in K-means' order.
TEST(PromptClusters, WithoutRoomClustersAreFilledUp) {
  const Ids nearest = {0, 2, 2, 2, 0, 2, 2, 0, 2, 2};
  const std::vector<float> keys(10, 1.0F);
  const PromptClusterShape shape = {.dim = 1, .n_entries = 10, .n_means = 3, .max_entries = 5, .room = 2};
  const PromptClusters found = FindPromptClusters(shape, nearest, KeysIn(keys, 1, 10));
  EXPECT_TRUE(found.is_filled_up);
  EXPECT_EQ(found.order, (Ids{0, 1, 2, 4, 7, 3, 5, 6, 8, 9}));
  EXPECT_EQ(found.begin, (Ids{0, 5, 10}));
}

TEST(PromptClusters, OneEntry) {
  const std::vector<float> keys = {1.0F, 2.0F};
  const PromptClusterShape shape = {.dim = 2, .n_entries = 1, .n_means = 4, .max_entries = 9, .room = 1};
  const PromptClusters found = FindPromptClusters(shape, Ids{3}, KeysIn(keys, 2, 1));
  EXPECT_EQ(found.order, Ids{0});
  EXPECT_EQ(found.begin, (Ids{0, 1}));
  EXPECT_EQ(found.centroids, keys);
  EXPECT_EQ(found.variances, std::vector<float>{0.0F});
}

bool AreSame(std::span<const float> a, std::span<const float> b) {  // NaNs too
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

// All that a caller relies on.
void ExpectClusters(const PromptClusterShape& shape, const Ids& nearest, const std::vector<float>& keys,
                    const PromptClusters& found) {
  ASSERT_LE(found.n_clusters(), shape.room);
  ASSERT_EQ(found.begin.size(), found.n_clusters() + size_t{1});
  ASSERT_EQ(found.begin.front(), 0U);
  ASSERT_EQ(found.begin.back(), shape.n_entries);
  ASSERT_EQ(found.order.size(), shape.n_entries);
  ASSERT_EQ(found.cluster_of.size(), shape.n_entries);
  ASSERT_EQ(found.centroids.size(), size_t{found.n_clusters()} * shape.dim);
  std::vector<uint32_t> times(shape.n_entries);
  for (uint32_t cluster = 0; cluster < found.n_clusters(); ++cluster) {
    ASSERT_LT(found.begin[cluster], found.begin[cluster + 1]);
    const auto entries = found.entries(cluster);
    ASSERT_LE(entries.size(), shape.max_entries);
    ASSERT_TRUE(std::is_sorted(entries.begin(), entries.end()));
    std::vector<float> own;
    for (const uint32_t entry : entries) {
      ++times[entry];
      ASSERT_EQ(found.cluster_of[entry], cluster);
      ASSERT_TRUE(found.is_filled_up || nearest[entry] == nearest[entries[0]]);
      own.insert(own.end(), keys.begin() + entry * size_t{shape.dim},
                 keys.begin() + (entry + size_t{1}) * shape.dim);
    }
    std::vector<float> mean(shape.dim);
    const float variance = FindSpread(own, mean);
    ASSERT_TRUE(AreSame({&variance, 1}, {&found.variances[cluster], 1}));
    ASSERT_TRUE(AreSame(mean, std::span(found.centroids).subspan(size_t{cluster} * shape.dim, shape.dim)));
  }
  ASSERT_EQ(std::count(times.begin(), times.end(), 1U), shape.n_entries);
}

std::vector<float> SomeKeys(uint32_t kind, size_t n, Random& random) {
  std::vector<float> keys(n, 0.5F);  // kind 0: all are equal
  for (float& value : keys) {
    if (kind > 0) value = random.Symmetric();
    if (kind == 2 && random.Below(20) == 0) value = std::numeric_limits<float>::quiet_NaN();
    if (kind == 3) value = std::numeric_limits<float>::quiet_NaN();
    if (kind == 4 && random.Below(20) == 0) value = std::numeric_limits<float>::infinity();
  }
  return keys;
}

TEST(PromptClusters, EveryEntryIsInExactlyOneCluster) {
  uint32_t n_filled_up = 0;
  uint32_t n_divided = 0;
  for (uint64_t seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    PromptClusterShape shape = {.dim = 1 + random.Below(5), .n_entries = 1 + random.Below(300)};
    shape.n_means = 1 + random.Below(seed % 2 == 0 ? 4 : 60);
    shape.max_entries = 1 + random.Below(40);
    const uint32_t least_room = (shape.n_entries + shape.max_entries - 1) / shape.max_entries;
    shape.room = least_room + (seed % 3 == 0 ? 0 : random.Below(3 * least_room + shape.n_means));
    Ids nearest(shape.n_entries);
    for (uint32_t& mean : nearest) mean = random.Below(1 + random.Below(shape.n_means));
    const std::vector<float> keys =
        SomeKeys(static_cast<uint32_t>(seed % 5), size_t{shape.n_entries} * shape.dim, random);
    const CopyKeys copy_keys = KeysIn(keys, shape.dim, size_t{2} * shape.max_entries);
    const PromptClusters found = FindPromptClusters(shape, nearest, copy_keys);
    ASSERT_NO_FATAL_FAILURE(ExpectClusters(shape, nearest, keys, found));
    const PromptClusters again = FindPromptClusters(shape, nearest, copy_keys);
    ASSERT_EQ(again.order, found.order);
    ASSERT_EQ(again.begin, found.begin);
    n_filled_up += found.is_filled_up ? 1 : 0;
    n_divided += !found.is_filled_up && found.n_clusters() > shape.n_means ? 1 : 0;
  }
  EXPECT_GT(n_filled_up, 50U);
  EXPECT_GT(n_divided, 50U);
}

TEST(PromptClusters, MemoryIsWhatTheVectorsTake) {
  const PromptClusterShape shape = {.dim = 8, .n_entries = 100, .n_means = 10, .max_entries = 16, .room = 20};
  EXPECT_EQ(FindPromptClustersBytes(shape), 2U * 100 * 4 + 21U * 4 + 20U * 9 * 4 + 32U * (8 * 4 + 1 + 4) +
                                                KeyDivision::MemoryBytes(8, 16) + 10U * 4);
}

TEST(PromptClustersDeathTest, MisuseIsFound) {
  const std::vector<float> keys(4, 0.0F);
  PromptClusterShape shape = {.dim = 1, .n_entries = 4, .n_means = 2, .max_entries = 2, .room = 1};
  EXPECT_DEATH((void)FindPromptClusters(shape, Ids{0, 0, 1, 1}, KeysIn(keys, 1, 4)), "room");
  shape.room = 2;
  EXPECT_DEATH((void)FindPromptClusters(shape, Ids{0, 0, 1}, KeysIn(keys, 1, 4)), "nearest");
  EXPECT_DEATH((void)FindPromptClusters(shape, Ids{0, 0, 1, 2}, KeysIn(keys, 1, 4)), "n_means");
}

}  // namespace
}  // namespace kvrun
