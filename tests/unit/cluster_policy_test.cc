// The replacement policy for clusters: its order by hand, and its hits beside those of lru on what a model
// chose.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <map>
#include <set>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "runtime/kv/math/slot_cache.h"

namespace kvrun {
namespace {

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

// What four KV heads chose while a model read a text (tests/data/chosen_clusters/README.md).
struct Division {
  uint32_t from = 0;
  uint32_t n_from = 0;  // records that it has left
  uint32_t to = 0;
  uint32_t n_to = 0;
};

struct Step {
  std::vector<Division> divisions;      // before it
  std::map<uint32_t, uint32_t> chosen;  // clusters, and how many records each has
};

std::vector<uint32_t> NumbersOf(std::string word) {
  std::replace(word.begin(), word.end(), ':', ' ');
  std::istringstream text(word);
  std::vector<uint32_t> numbers;
  for (uint32_t number = 0; text >> number;) numbers.push_back(number);
  return numbers;
}

std::vector<std::vector<Step>> ReadChoices() {
  std::ifstream file(std::string(KVRUN_SOURCE_DIR) + "/tests/data/chosen_clusters/gpl3.txt");
  std::vector<std::vector<Step>> streams;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("stream")) {
      streams.emplace_back();
      continue;
    }
    Step step;
    if (!streams.back().empty()) step.chosen = streams.back().back().chosen;
    std::istringstream words(line);
    for (std::string word; words >> word;) {
      const bool is_choice = word[0] != '-' && word[0] != '/';
      std::vector<uint32_t> numbers = NumbersOf(is_choice ? word : word.substr(1));
      if (word[0] == '-') step.chosen.erase(numbers[0]);
      if (is_choice) step.chosen[numbers[0]] = numbers[1];
      if (word[0] != '/') continue;
      numbers.resize(4);
      step.divisions.push_back({numbers[0], numbers[1], numbers[2], numbers[3]});
    }
    streams.back().push_back(std::move(step));
  }
  return streams;
}

constexpr uint32_t kPerCluster = 16;  // records

// As ClusterUpkeep does.
void Divide(const Division& division, SlotCache& cache) {
  uint32_t next = 0;
  for (uint32_t k = division.n_from; k < kPerCluster; ++k) {
    const uint32_t record = division.from * kPerCluster + k;
    if (cache.SlotOf(record) == SlotCache::kNoSlot) continue;
    if (next < division.n_to) {
      cache.Rename(record, division.to * kPerCluster + next++);
    } else {
      cache.DropRecord(record);
    }
  }
}

struct HitRates {
  double records = 0.0;   // of the chosen records, those that lay in slots
  double clusters = 0.0;  // of the chosen clusters, those of which all records did: they are not read
};

HitRates Replay(const std::vector<std::vector<Step>>& streams, std::string_view policy, uint32_t n_slots) {
  constexpr uint32_t kMostChosen = 120;
  constexpr size_t kWarmUp = 40;
  uint64_t n_records = 0;
  uint64_t n_clusters = 0;
  uint64_t record_hits = 0;
  uint64_t cluster_hits = 0;
  for (const std::vector<Step>& steps : streams) {
    SlotCache cache({.n_slots = n_slots,
                     .max_chosen = kMostChosen,
                     .max_rest = n_slots < kMostChosen ? kMostChosen - n_slots : 0,
                     .n_extents = 500 * kPerCluster,
                     .extent_records = kPerCluster},
                    &PolicyOf(policy));
    for (size_t i = 0; i < steps.size(); ++i) {
      for (const Division& division : steps[i].divisions) Divide(division, cache);
      std::vector<uint32_t> records;
      std::vector<uint32_t> weights;
      for (const auto& [cluster, n] : steps[i].chosen) {
        bool is_there = true;
        for (uint32_t k = 0; k < n; ++k) {
          is_there = is_there && cache.SlotOf(cluster * kPerCluster + k) != SlotCache::kNoSlot;
          records.push_back(cluster * kPerCluster + k);
        }
        weights.resize(records.size(), n);
        n_clusters += i < kWarmUp ? 0 : 1;
        cluster_hits += i < kWarmUp || !is_there ? 0 : 1;
      }
      const uint32_t hits = cache.Plan(records, weights).hits;
      n_records += i < kWarmUp ? 0 : records.size();
      record_hits += i < kWarmUp ? 0 : hits;
    }
  }
  return {static_cast<double>(record_hits) / static_cast<double>(n_records),
          static_cast<double>(cluster_hits) / static_cast<double>(n_clusters)};
}

// A step chooses 106 records about. With twice as many slots these four streams have as many hits of records
// with both, and with half as many, as many of clusters; over all 90 there are more
// (docs/decisions/clusters.md).
TEST(ClusterPolicy, HasMoreHitsThanLru) {
  const std::vector<std::vector<Step>> streams = ReadChoices();
  ASSERT_EQ(streams.size(), 4U);
  ASSERT_EQ(streams[3].size(), 260U);
  for (const uint32_t n_slots : {60U, 120U, 133U, 160U, 212U}) {
    const HitRates lru = Replay(streams, "lru", n_slots);
    const HitRates cluster = Replay(streams, "cluster", n_slots);
    if (n_slots <= 160) {
      EXPECT_GT(cluster.records, lru.records) << n_slots;
    }
    if (n_slots >= 120) {
      EXPECT_GT(cluster.clusters, lru.clusters) << n_slots;
    }
    EXPECT_GT(lru.records, 0.3) << n_slots;
    RecordProperty("slots_" + std::to_string(n_slots),
                   std::to_string(lru.records) + " " + std::to_string(cluster.records) + ", clusters " +
                       std::to_string(lru.clusters) + " " + std::to_string(cluster.clusters));
  }
}

}  // namespace
}  // namespace kvrun
