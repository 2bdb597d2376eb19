// Clusters of a stream: examples by hand, and thousands of entries beside a naive partition.
#include "runtime/kv/math/cluster_map.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "platform/base/random.h"
#include "tests/support/allocation_counter.h"

namespace kvrun {
namespace {

using Key = std::vector<float>;

std::vector<float> Joined(const std::vector<Key>& keys) {
  std::vector<float> all;
  for (const Key& key : keys) all.insert(all.end(), key.begin(), key.end());
  return all;
}

// With a workspace of its own.
class OwnMap : private ClusterWorkspace, public ClusterMap {
 public:
  explicit OwnMap(const ClusterMapShape& shape) : ClusterWorkspace(shape), ClusterMap(shape, *this) {}
};

constexpr ClusterMapShape kSmall = {.dim = 1, .max_clusters = 4, .max_entries = 4, .max_pending = 3};

// The example of the header.
TEST(ClusterMap, AnEntryJoinsWithinTheThresholdAndFlagsBeyondIt) {
  OwnMap map(kSmall);
  map.SetThreshold(1.0F);
  const uint32_t id = map.Add(3, 0.9F, 3);
  map.Settle(3, 0, id, 1.0F);
  EXPECT_FALSE(map.cluster(id).is_flagged());
  EXPECT_NEAR(map.cluster(id).variance, 0.8625F, 1e-6F);
  map.TruncatePending(3);
  map.Clear();
  EXPECT_EQ(map.Add(3, 0.9F, 3), id);
  map.Settle(3, 0, id, 4.0F);
  EXPECT_TRUE(map.cluster(id).is_flagged());
  EXPECT_EQ(map.cluster(id).variance, 0.9F);
  EXPECT_EQ(map.cluster(id).size(), 4U);
}

TEST(ClusterMap, AStaticMapIsFlaggedForSizeAlone) {
  ClusterMapShape shape = kSmall;
  shape.update = ClusterUpdate::kStatic;
  shape.max_pending = 8;
  OwnMap map(shape);
  const uint32_t id = map.Add(3, 0.0F, 3);
  map.Settle(3, 0, id, 100.0F);
  EXPECT_FALSE(map.cluster(id).is_flagged());
  map.Settle(4, 1, id, 0.0F);
  EXPECT_TRUE(map.cluster(id).is_flagged());
}

// Two heaps: all that is pending goes into the division, and both parts say what they consist of.
TEST(ClusterMap, ADivisionTakesAllThatIsPending) {
  OwnMap map(kSmall);
  map.SetThreshold(1.0F);
  const uint32_t id = map.Add(2, 0.25F, 2);
  map.Settle(2, 7, id, 100.0F);
  map.Settle(3, 8, id, 121.0F);
  const auto done =
      map.Maintain(id, std::vector{0.0F, 1.0F, 10.0F, 11.0F}, std::vector<uint32_t>{0, 1, 2, 3});
  ASSERT_NE(done.other, kNoCluster);
  EXPECT_TRUE(map.pending().empty());
  EXPECT_EQ(map.cluster(id).n_stored, 2U);
  EXPECT_EQ(map.cluster(done.other).n_stored, 2U);
  EXPECT_EQ(map.cluster(id).variance, 0.25F);
  EXPECT_EQ(map.cluster(done.other).variance, 0.25F);
  EXPECT_EQ(std::max(map.cluster(id).end, map.cluster(done.other).end), 4U);
  EXPECT_NEAR(std::abs(done.centroid[0] - done.other_centroid[0]), 10.0F, 1e-6F);
  EXPECT_EQ(map.stats().divisions, 1U);
}

TEST(ClusterMap, TheFullestIsLoadedWhereNoMoreCanBePending) {
  OwnMap map(kSmall);
  map.SetThreshold(1.0F);
  const uint32_t one = map.Add(1, 0.0F, 1);
  const uint32_t other = map.Add(1, 0.0F, 2);
  map.Settle(2, 0, one, 0.1F);
  map.Settle(3, 1, other, 0.1F);
  EXPECT_EQ(map.MustLoad(), kNoCluster);
  map.Settle(4, 2, other, 0.1F);
  EXPECT_EQ(map.MustLoad(), other);
}

// Without room for a division, entries join until the cluster is full.
TEST(ClusterMap, WithoutRoomInTheIndexEntriesJoinWithoutADivision) {
  OwnMap map({.dim = 1, .max_clusters = 1, .max_entries = 3, .max_pending = 8});
  map.SetThreshold(0.0F);
  const uint32_t id = map.Add(1, 0.0F, 1);
  map.Settle(1, 0, id, 9.0F);
  map.Settle(2, 1, id, 9.0F);
  EXPECT_FALSE(map.cluster(id).is_flagged());
  EXPECT_EQ(map.stats().joined_for_room, 2U);
  EXPECT_FALSE(map.HasRoom(id));
}

// A flag goes with the entry that it was put up for, and not with later ones.
TEST(ClusterMap, TruncatingTakesTheFlagWithTheEntryThatFlagged) {
  ClusterMapShape shape = kSmall;
  shape.max_pending = 8;
  OwnMap map(shape);
  map.SetThreshold(1.0F);
  const uint32_t id = map.Add(2, 0.0F, 2);
  map.Settle(2, 0, id, 100.0F);
  map.Settle(3, 1, id, 0.0F);
  map.TruncatePending(3);
  EXPECT_TRUE(map.cluster(id).is_flagged());
  map.TruncatePending(2);
  EXPECT_FALSE(map.cluster(id).is_flagged());
  EXPECT_TRUE(map.CanAdd());
  map.Settle(2, 0, id, std::nanf(""));  // which no threshold holds
  EXPECT_TRUE(map.cluster(id).is_flagged());
  map.Restore(id, {}, {});
  EXPECT_EQ(map.cluster(id).size(), 1U);
  EXPECT_FALSE(map.cluster(id).is_flagged());
  map.TruncatePending(2);
  EXPECT_EQ(map.n_free(), shape.max_clusters);
  EXPECT_FALSE(map.HasRoom(id));
}

TEST(ClusterMap, MaintainingAllocatesNothing) {
  OwnMap map({.dim = 2, .max_clusters = 16, .max_entries = 8, .max_pending = 8});
  map.SetThreshold(0.0F);
  const uint32_t id = map.Add(4, 1.0F, 4);
  std::vector<float> keys;
  std::vector<uint32_t> positions;
  for (uint32_t i = 0; i < 8; ++i) {
    keys.insert(keys.end(), {static_cast<float>(i), 1.0F});
    positions.push_back(i);
  }
  const uint64_t before = testing::AllocationsOfThisThread();
  for (uint32_t i = 4; i < 8; ++i) map.Settle(i, i, id, 1.0F);
  const uint32_t other = map.Maintain(id, keys, positions).other;
  ASSERT_NE(other, kNoCluster);
  const uint32_t n = map.cluster(other).n_stored;
  map.Restore(other, std::span(keys).first(size_t{2} * n), std::span(positions).first(n));
  map.SetThreshold(100.0F);
  for (uint32_t i = 8; i < 16; ++i) map.Settle(i, i, map.Add(1, 9.0F, 1), 0.0F);
  const uint32_t forced = map.MustLoad();
  map.Maintain(forced, std::span(keys).first(4), std::span(positions).first(2));
  map.TruncatePending(10);
  EXPECT_EQ(testing::AllocationsOfThisThread(), before);
}

// --- A naive partition, of which the map must say the same at any time.

class Simulation {
 public:
  Simulation(const ClusterMapShape& shape, uint64_t seed) : shape_(shape), map_(shape), random_(seed) {
    map_.SetThreshold(0.4F);
  }

  void Prompt(uint32_t n) {
    std::vector<Key> keys;
    for (; n_ < n; ++n_) keys.push_back(NewKey());
    const uint32_t together = std::min(3U, shape_.max_entries);
    for (uint32_t first = 0; first < n; first += together) {
      const uint32_t end = std::min(n, first + together);
      std::vector<float> centroid(shape_.dim);
      const std::vector<Key> part(keys.begin() + first, keys.begin() + end);
      const float variance = FindSpread(Joined(part), centroid);
      const uint32_t id = map_.Add(end - first, variance, end);
      for (uint32_t i = first; i < end; ++i) stored_[id].push_back({i, keys[i]});
      centroids_[id] = centroid;
    }
  }

  // An entry leaves the window; some clusters are in memory.
  void Step() {
    const Key key = NewKey();
    const uint32_t id = Nearest(key);
    pending_keys_[n_] = key;
    if (!map_.CanAdd()) ++n_exhausted_;
    if (id == kNoCluster) {
      ASSERT_TRUE(map_.CanAdd());
      centroids_[map_.Found(n_, n_)] = key;
    } else {
      map_.Settle(n_, n_, id, SquaredDistance(key, centroids_[id]));
    }
    ++n_;
    for (uint32_t turn = 0; turn < 3; ++turn) {
      const uint32_t loaded = random_.Below(map_.end_cluster());
      if (map_.cluster(loaded).n_pending > 0) Maintain(loaded);
    }
    if (const uint32_t forced = map_.MustLoad(); forced != kNoCluster) Maintain(forced);
  }

  void Truncate(uint32_t first) {
    n_ = std::min(n_, first);
    map_.TruncatePending(first);
    pending_keys_.erase(pending_keys_.lower_bound(first), pending_keys_.end());
    for (uint32_t id = 0; id < map_.end_cluster(); ++id) {
      if (map_.cluster(id).end > first) Restore(id, first);
      if (map_.cluster(id).size() == 0) centroids_.erase(id);
    }
  }

  void Check() const {
    std::vector<int> seen(n_);
    for (const auto& [id, entries] : stored_) {
      EXPECT_EQ(map_.cluster(id).n_stored, entries.size());
      uint32_t end = 0;
      for (const Entry& entry : entries) {
        ++seen.at(entry.position);
        end = std::max(end, entry.position + 1);
      }
      EXPECT_EQ(map_.cluster(id).end, end);
      EXPECT_LE(entries.size(), shape_.max_entries);
    }
    std::map<uint32_t, uint32_t> n_pending;
    for (const PendingEntry& entry : map_.pending()) {
      ++seen.at(entry.position);
      ++n_pending[entry.cluster];
      EXPECT_EQ(pending_keys_.count(entry.position), 1U);
    }
    EXPECT_EQ(map_.pending().size(), pending_keys_.size());
    EXPECT_TRUE(std::all_of(seen.begin(), seen.end(), [](int count) { return count == 1; }));
    uint32_t n_used = 0;
    for (uint32_t id = 0; id < map_.end_cluster(); ++id) {
      const auto found = n_pending.find(id);
      EXPECT_EQ(map_.cluster(id).n_pending, found == n_pending.end() ? 0 : found->second);
      n_used += map_.cluster(id).size() > 0 ? 1 : 0;
    }
    EXPECT_EQ(n_used + map_.n_free(), shape_.max_clusters);
    EXPECT_LT(map_.pending().size(), shape_.max_pending);
  }

  uint32_t length() const { return n_; }
  uint32_t n_exhausted() const { return n_exhausted_; }  // steps without room for another cluster
  const ClusterMap& map() const { return map_; }

 private:
  struct Entry {
    uint32_t position = 0;
    Key key;
  };

  // What the text is about moves on.
  Key NewKey() {
    Key key(shape_.dim);
    for (uint32_t c = 0; c < shape_.dim; ++c) {
      const float centre = std::sin(0.01F * static_cast<float>(n_) * static_cast<float>(c + 1));
      key[c] = static_cast<float>(random_.Below(3)) * centre + 0.3F * random_.Symmetric();
    }
    return key;
  }

  uint32_t Nearest(const Key& key) const {
    uint32_t nearest = kNoCluster;
    float least = 0.0F;
    for (const auto& [id, centroid] : centroids_) {
      const float distance = SquaredDistance(key, centroid);
      if (!map_.HasRoom(id) || (nearest != kNoCluster && distance >= least)) continue;
      nearest = id;
      least = distance;
    }
    return nearest;
  }

  void Maintain(uint32_t id) {
    std::vector<Entry> entries = stored_[id];
    for (const PendingEntry& entry : map_.pending()) {
      if (entry.cluster == id) entries.push_back({entry.position, pending_keys_.at(entry.position)});
    }
    for (const Entry& entry : entries) pending_keys_.erase(entry.position);
    std::vector<Key> keys;
    std::vector<uint32_t> positions;
    for (const Entry& entry : entries) {
      keys.push_back(entry.key);
      positions.push_back(entry.position);
    }
    const auto done = map_.Maintain(id, Joined(keys), positions);
    std::vector<Entry> parts[2];
    for (size_t i = 0; i < entries.size(); ++i) {
      parts[done.other != kNoCluster ? done.is_second[i] : 0].push_back(entries[i]);
    }
    SetStored(id, parts[0], done.centroid);
    if (done.other == kNoCluster) return;
    EXPECT_EQ(stored_.count(done.other), 0U);
    SetStored(done.other, parts[1], done.other_centroid);
  }

  void Restore(uint32_t id, uint32_t first) {
    std::vector<Entry> left;
    std::vector<Key> keys;
    std::vector<uint32_t> positions;
    for (const Entry& entry : stored_[id]) {
      if (entry.position >= first) continue;
      left.push_back(entry);
      keys.push_back(entry.key);
      positions.push_back(entry.position);
    }
    const auto centroid = map_.Restore(id, Joined(keys), positions);
    if (left.empty()) {
      stored_.erase(id);
    } else {
      SetStored(id, left, centroid);
    }
  }

  // Centroid and variance as they follow from the entries.
  void SetStored(uint32_t id, const std::vector<Entry>& entries, std::span<const float> centroid) {
    ASSERT_FALSE(entries.empty());
    for (uint32_t c = 0; c < shape_.dim; ++c) {
      double sum = 0.0;
      for (const Entry& entry : entries) sum += entry.key[c];
      EXPECT_NEAR(centroid[c], sum / static_cast<double>(entries.size()), 1e-5);
    }
    double squares = 0.0;
    for (const Entry& entry : entries) squares += SquaredDistance(entry.key, centroid);
    EXPECT_NEAR(map_.cluster(id).variance, squares / static_cast<double>(entries.size()), 1e-4);
    stored_[id] = entries;
    centroids_[id].assign(centroid.begin(), centroid.end());
  }

  ClusterMapShape shape_;
  OwnMap map_;
  Random random_;
  uint32_t n_ = 0;
  uint32_t n_exhausted_ = 0;
  std::map<uint32_t, std::vector<Entry>> stored_;
  std::map<uint32_t, Key> centroids_;
  std::map<uint32_t, Key> pending_keys_;
};

struct Settings {
  std::string name;
  ClusterMapShape shape;
  bool is_exhausted = false;  // entries come until there is no room for one more
};

class ClusterMapSimulation : public ::testing::TestWithParam<Settings> {};

INSTANTIATE_TEST_SUITE_P(
    Shapes, ClusterMapSimulation,
    ::testing::Values(
        Settings{"Adaptive", {.dim = 4, .max_clusters = 2000, .max_entries = 32, .max_pending = 16}},
        Settings{"Static",
                 {.dim = 4,
                  .max_clusters = 900,
                  .max_entries = 16,
                  .max_pending = 8,
                  .update = ClusterUpdate::kStatic}},
        Settings{"FewClusters", {.dim = 3, .max_clusters = 120, .max_entries = 16, .max_pending = 5}, true},
        Settings{"OneCluster", {.dim = 3, .max_clusters = 1, .max_entries = 32, .max_pending = 3}, true},
        Settings{"OnePending", {.dim = 2, .max_clusters = 400, .max_entries = 2, .max_pending = 1}, true}),
    [](const auto& info) { return info.param.name; });

TEST_P(ClusterMapSimulation, EveryEntryIsInExactlyOneCluster) {
  const ClusterMapShape& shape = GetParam().shape;
  const uint32_t room = shape.max_clusters * shape.max_entries;
  for (uint64_t seed = 0; seed < 3; ++seed) {
    Simulation simulation(shape, seed);
    Random random(seed + 100);
    if (seed > 0 && room > 1000) simulation.Prompt(300);
    for (uint32_t i = 0; i < 5000; ++i) {
      const uint32_t length = simulation.length();
      const bool is_full = length == room;
      if (is_full || random.Below(500) == 0) {
        // Where all room is to be taken, a little goes at a time.
        simulation.Truncate(GetParam().is_exhausted ? length - random.Below(std::min(length, 30U) + 1)
                                                    : random.Below(length + 1));
      }
      if (simulation.length() < room) simulation.Step();
      if (i % 16 == 0 || is_full) simulation.Check();
      if (HasFailure()) return;
    }
    simulation.Check();
    EXPECT_EQ(simulation.map().stats().loads > 0, shape.max_clusters > 1);  // one is always in memory
    EXPECT_EQ(simulation.map().stats().divisions > 0, shape.max_clusters > 1);
    EXPECT_EQ(simulation.n_exhausted() > 0, GetParam().is_exhausted);
  }
}

}  // namespace
}  // namespace kvrun
