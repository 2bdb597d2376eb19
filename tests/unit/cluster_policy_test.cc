// The replacement policy for clusters: its order by hand, and its hits beside those of lru in a simulation.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <set>
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

constexpr std::array<uint32_t, 5> kExtents = {1, 2, 3, 4, 5};
constexpr std::array<uint64_t, 5> kUsed = {99, 60, 62, 20, 59};

// Ages of 1, 40, 38, 80 and 41: the second, third and fifth are of one class.
TEST(ClusterPolicy, LargeOnesGoFirstWithinAClassOfAge) {
  constexpr std::array<uint32_t, 5> kWeights = {9, 2, 5, 1, 2};
  const SlotView view = {.extents = kExtents, .used_at = kUsed, .weights = kWeights, .step = 100};
  EXPECT_EQ(Order(view), (std::vector<uint32_t>{3, 2, 4, 1, 0}));
}

TEST(ClusterPolicy, WhatWasTouchedGoesLast) {
  constexpr std::array<uint64_t, 5> kTouched = {0, 0, 90, 95, 0};
  const SlotView view = {
      .extents = kExtents, .used_at = kUsed, .touched_at = kTouched, .step = 100, .reserved_after = 90};
  EXPECT_EQ(Order(view), (std::vector<uint32_t>{4, 1, 2, 0, 3}));
}

TEST(ClusterPolicy, WithoutWeightsAndTouchesItIsLru) {
  const SlotView view = {.extents = kExtents, .used_at = kUsed, .step = 100};
  EXPECT_EQ(Order(view), (std::vector<uint32_t>{3, 4, 1, 2, 0}));
}

// Eight of 16 slots are touched, which all could be given up: two stay, the latest; all others by age.
TEST(ClusterPolicy, OneInEightIsReservedAtMost) {
  SlotCache cache({.n_slots = 16, .max_chosen = 16}, &PolicyOf("cluster"));
  std::vector<uint32_t> all(16);
  for (uint32_t i = 0; i < 16; ++i) all[i] = i;
  cache.Plan(all);
  for (uint32_t record = 0; record < 8; ++record) {
    cache.Plan({});
    cache.Touch(record, 1);
  }
  std::vector<uint32_t> others(14);
  for (uint32_t i = 0; i < 14; ++i) others[i] = 20 + i;
  const auto plan = cache.Plan(others);
  std::set<uint32_t> victims;
  for (const SlotLoad& load : plan.loads) victims.insert(load.victim);
  EXPECT_EQ(victims.size(), 14U);
  EXPECT_FALSE(victims.contains(6) || victims.contains(7));
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
        cache_({.n_slots = n_slots, .max_chosen = kMaxRecords}, &PolicyOf(policy)),
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
