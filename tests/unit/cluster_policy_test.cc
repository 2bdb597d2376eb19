// The replacement policy for clusters: its order by hand, and its hits beside those of lru in a simulation.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "runtime/kv/slot_cache.h"
#include "tests/support/cluster_accesses.h"

namespace kvrun {
namespace {

using testing::ClusterAccesses;

const ReplacementPolicy& PolicyOf(std::string_view name) { return **FindReplacementPolicy(name); }

// The slots of a view, first victims first.
std::vector<uint32_t> Order(const SlotView& view) {
  std::vector<uint32_t> slots(view.extents.size());
  for (uint32_t slot = 0; slot < slots.size(); ++slot) slots[slot] = slot;
  const auto better = PolicyOf("cluster").better_victim;
  std::stable_sort(slots.begin(), slots.end(), [&](uint32_t a, uint32_t b) { return better(view, a, b); });
  return slots;
}

// Slots hold records of clusters 2, 1, 2, 0 and 3: four records are a cluster's ids.
constexpr std::array<uint32_t, 5> kExtents = {8, 4, 9, 1, 12};
constexpr std::array<uint64_t, 5> kUsed = {90, 90, 90, 95, 70};

SlotView ViewOf(std::span<const uint8_t> frequency, std::span<const uint32_t> weights) {
  return {.extents = kExtents,
          .used_at = kUsed,
          .frequency = frequency,
          .extent_records = 4,
          .weights = weights,
          .step = 100};
}

// Worth, by frequency^4 / records: cluster 0 has 20^4 / 1 = 160,000; 1 has 30^4 / 4 = 202,500; 2 has 30^4 / 8
// = 101,250; 3 has 40^4 / 16 = 160,000 and was used before cluster 0. Of cluster 2 the later record goes
// first.
TEST(ClusterPolicy, WhatIsSeldomChosenAndLargeGoesFirst) {
  constexpr std::array<uint8_t, 4> kFrequency = {20, 30, 30, 40};
  constexpr std::array<uint32_t, 5> kWeights = {8, 4, 8, 1, 16};
  EXPECT_EQ(Order(ViewOf(kFrequency, kWeights)), (std::vector<uint32_t>{2, 0, 4, 3, 1}));
}

// The largest frequency, and most records that a cluster can have: nothing overflows.
TEST(ClusterPolicy, WorthIsComparedExactly) {
  constexpr std::array<uint8_t, 4> kFrequency = {248, 248, 247, 255};
  constexpr std::array<uint32_t, 5> kWeights = {1024, 1023, 1024, 1024, 1};
  EXPECT_EQ(Order(ViewOf(kFrequency, kWeights)), (std::vector<uint32_t>{2, 0, 3, 1, 4}));
}

TEST(ClusterPolicy, WhatWasTouchedGoesLast) {
  constexpr std::array<uint64_t, 5> kTouched = {0, 0, 90, 95, 0};
  constexpr std::array<uint8_t, 4> kFrequency = {1, 2, 3, 4};
  SlotView view = ViewOf(kFrequency, {});
  view.touched_at = kTouched;
  view.reserved_after = 90;
  EXPECT_EQ(Order(view), (std::vector<uint32_t>{1, 2, 0, 4, 3}));
}

// What no step has chosen for long has no frequency any more.
TEST(ClusterPolicy, WithoutFrequencyItIsLru) {
  constexpr std::array<uint8_t, 4> kFrequency = {};
  constexpr std::array<uint32_t, 5> kWeights = {8, 4, 8, 1, 16};
  EXPECT_EQ(Order(ViewOf(kFrequency, kWeights)), (std::vector<uint32_t>{4, 2, 0, 1, 3}));
}

SlotCacheShape ClusterShape(uint32_t n_slots, uint32_t max_chosen) {
  return {.n_slots = n_slots, .max_chosen = max_chosen, .n_extents = 64, .extent_records = 4};
}

// Clusters 0 and 1 have two records each, in slots that alternate, and are alike in everything: one of them
// goes, and not one record of each.
TEST(ClusterPolicy, AClusterGoesWhole) {
  SlotCache cache(ClusterShape(5, 4), &PolicyOf("cluster"));
  constexpr std::array<uint32_t, 4> kTwoEach = {2, 2, 2, 2};
  cache.Plan(std::array<uint32_t, 2>{0, 4}, std::array<uint32_t, 2>{2, 2});
  cache.Plan(std::array<uint32_t, 4>{0, 1, 4, 5}, kTwoEach);
  ASSERT_EQ(cache.SlotOf(4), 1U);
  ASSERT_EQ(cache.SlotOf(1), 2U);
  const auto plan = cache.Plan(std::array<uint32_t, 3>{12, 13, 14}, std::array<uint32_t, 3>{3, 3, 3});
  ASSERT_EQ(plan.loads.size(), 3U);
  std::set<uint32_t> left;
  for (const uint32_t record : {0U, 1U, 4U, 5U}) {
    if (cache.SlotOf(record) != SlotCache::kNoSlot) left.insert(record);
  }
  EXPECT_EQ(left, (std::set<uint32_t>{0, 1}));
}

// Cluster 0 is chosen by every step and divided; its second part, cluster 5, is worth as much, though no step
// has chosen it yet.
TEST(ClusterPolicy, PartsOfADividedClusterKeepItsFrequency) {
  SlotCache cache(ClusterShape(4, 2), &PolicyOf("cluster"));
  for (int step = 0; step < 4; ++step)
    cache.Plan(std::array<uint32_t, 2>{0, 1}, std::array<uint32_t, 2>{2, 2});
  cache.Rename(1, 20);
  cache.Plan(std::array<uint32_t, 2>{8, 9}, std::array<uint32_t, 2>{2, 2});
  cache.Plan(std::array<uint32_t, 2>{12, 13}, std::array<uint32_t, 2>{2, 2});
  EXPECT_NE(cache.SlotOf(0), SlotCache::kNoSlot);
  EXPECT_NE(cache.SlotOf(20), SlotCache::kNoSlot);
  EXPECT_EQ(cache.SlotOf(8), SlotCache::kNoSlot);
}

// Fourteen of 32 slots are touched, which all could be given up: two stay, the latest.
TEST(ClusterPolicy, OneInSixteenIsReservedAtMost) {
  SlotCache cache({.n_slots = 32, .max_chosen = 32, .n_extents = 100}, &PolicyOf("cluster"));
  std::vector<uint32_t> all(32);
  for (uint32_t i = 0; i < 32; ++i) all[i] = i;
  cache.Plan(all);
  for (uint32_t record = 0; record < 14; ++record) {
    cache.Plan({});
    cache.Touch(record, 1);
  }
  std::vector<uint32_t> others(30);
  for (uint32_t i = 0; i < 30; ++i) others[i] = 40 + i;
  const auto plan = cache.Plan(others);
  std::set<uint32_t> victims;
  for (const SlotLoad& load : plan.loads) victims.insert(load.victim);
  EXPECT_EQ(victims.size(), 30U);
  EXPECT_FALSE(victims.contains(12) || victims.contains(13));
}

// A cache that clusters of a simulation go through.
class Replay {
 public:
  static constexpr uint32_t kPerCluster = ClusterAccesses::kMostRecords;
  static constexpr uint32_t kClusters = 300;
  static constexpr uint32_t kMaxRecords = 160;  // of a step
  static constexpr uint32_t kSteps = 800;
  static constexpr uint32_t kWarmUp = 100;

  Replay(std::string_view policy, uint32_t n_slots, uint64_t seed)
      : accesses_(kClusters, kMaxRecords, seed),
        cache_({.n_slots = n_slots,
                .max_chosen = kMaxRecords,
                .n_extents = (kClusters + kSteps) * kPerCluster,
                .extent_records = kPerCluster},
               &PolicyOf(policy)),
        is_waiting_(kClusters + kSteps) {}

  // The share of the selected records that lay in slots.
  double HitRate() {
    uint64_t hits = 0;
    uint64_t chosen = 0;
    for (uint32_t i = 0; i < kSteps; ++i) {
      std::vector<uint32_t> sizes;
      for (uint32_t id = 0; id < accesses_.n_clusters(); ++id) sizes.push_back(accesses_.n_records(id));
      const ClusterAccesses::Step step = accesses_.Next();
      std::vector<uint32_t> records;
      std::vector<uint32_t> weights;
      for (const uint32_t id : step.clusters) {
        for (uint32_t k = 0; k < sizes[id]; ++k) records.push_back(id * kPerCluster + k);
        weights.resize(records.size(), sizes[id]);
      }
      const uint32_t hits_of_step = cache_.Plan(records, weights).hits;
      hits += i < kWarmUp ? 0 : hits_of_step;
      chosen += i < kWarmUp ? 0 : records.size();
      Change(step);
    }
    return static_cast<double>(hits) / static_cast<double>(chosen);
  }

 private:
  // A cluster gets its entry when it is in a slot: maybe later.
  void Change(const ClusterAccesses::Step& step) {
    for (const uint32_t id : step.clusters) {
      if (is_waiting_[id]) Touch(id);
    }
    const uint32_t id = step.appended;
    const uint32_t other = step.divided_to;
    if (other != UINT32_MAX) {
      const uint32_t left = accesses_.n_records(id);
      for (uint32_t k = 0; k < accesses_.n_records(other) && left + k < kPerCluster; ++k) {
        const uint32_t record = id * kPerCluster + left + k;
        if (cache_.SlotOf(record) != SlotCache::kNoSlot) cache_.Rename(record, other * kPerCluster + k);
      }
      for (uint32_t k = left; k < kPerCluster; ++k) cache_.DropRecord(id * kPerCluster + k);
      Touch(other);
    }
    Touch(id);
  }
  void Touch(uint32_t id) {
    is_waiting_[id] = cache_.SlotOf(id * kPerCluster) == SlotCache::kNoSlot;
    for (uint32_t k = 0; k < accesses_.n_records(id); ++k)
      cache_.Touch(id * kPerCluster + k, accesses_.n_records(id));
  }

  ClusterAccesses accesses_;
  SlotCache cache_;
  std::vector<bool> is_waiting_;  // for its entry
};

TEST(ClusterPolicy, HasMoreHitsThanLru) {
  for (const uint32_t n_slots : {200U, 240U, 320U}) {
    double of_lru = 0.0;
    double of_cluster = 0.0;
    for (uint64_t seed = 1; seed <= 5; ++seed) {
      of_lru += Replay("lru", n_slots, seed).HitRate() / 5;
      of_cluster += Replay("cluster", n_slots, seed).HitRate() / 5;
    }
    EXPECT_GT(of_cluster, of_lru) << n_slots;
    EXPECT_GT(of_lru, 0.8) << n_slots;
    RecordProperty("slots_" + std::to_string(n_slots),
                   std::to_string(of_lru) + " " + std::to_string(of_cluster));
  }
}

// What the simulation is to imitate: three quarters or more of the selected records are selected again, and
// what got an entry is selected as often, within steps, as DynaKV's Table 2 says, about.
TEST(ClusterPolicy, TheSimulationIsLikeDecoding) {
  ClusterAccesses accesses(Replay::kClusters, Replay::kMaxRecords, 1);
  std::vector<ClusterAccesses::Step> steps;
  uint64_t again = 0;
  uint64_t selected = 0;
  for (uint32_t i = 0; i < 1000; ++i) {
    std::vector<uint32_t> sizes;
    for (uint32_t id = 0; id < accesses.n_clusters(); ++id) sizes.push_back(accesses.n_records(id));
    steps.push_back(accesses.Next());
    for (const uint32_t id : steps.back().clusters) {
      if (i == 0) continue;
      const std::vector<uint32_t>& before = steps[i - 1].clusters;
      selected += sizes[id];
      again += std::count(before.begin(), before.end(), id) > 0 ? sizes[id] : 0;
    }
  }
  EXPECT_NEAR(static_cast<double>(again) / static_cast<double>(selected), 0.78, 0.02);
  const auto selected_within = [&](size_t n) {
    double found = 0.0;
    for (size_t i = 0; i + n < steps.size(); ++i) {
      bool is_selected = false;
      for (size_t j = i + 1; j <= i + n; ++j) {
        const auto& clusters = steps[j].clusters;
        is_selected = is_selected || std::count(clusters.begin(), clusters.end(), steps[i].appended) > 0;
      }
      found += is_selected ? 1 : 0;
    }
    return found / static_cast<double>(steps.size() - n);
  };
  EXPECT_NEAR(selected_within(1), 0.5, 0.1);
  EXPECT_NEAR(selected_within(16), 0.8, 0.1);
}

}  // namespace
}  // namespace kvrun
