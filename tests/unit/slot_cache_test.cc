#include "runtime/kv/math/slot_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/allocation_counter.h"

namespace kvrun {
namespace {

const ReplacementPolicy* Policy(std::string_view name) {
  const auto policy = FindReplacementPolicy(name);
  EXPECT_TRUE(policy.ok()) << policy.status().message();
  return *policy;
}

std::vector<uint32_t> Slots(const SlotCache::PlanResult& plan) {
  return {plan.slots.begin(), plan.slots.end()};
}

std::vector<uint32_t> Plan(SlotCache& cache, const std::vector<uint32_t>& chosen) {
  return Slots(cache.Plan(chosen));
}

TEST(SlotCache, FreeSlotsAreTakenInOrder) {
  SlotCache cache({.n_slots = 4, .max_chosen = 2}, Policy("lru"));
  EXPECT_EQ(Plan(cache, {7, 9}), (std::vector<uint32_t>{0, 1}));
  EXPECT_EQ(Plan(cache, {3, 9}), (std::vector<uint32_t>{2, 1}));
  EXPECT_EQ(Plan(cache, {3, 4}), (std::vector<uint32_t>{2, 3}));
}

TEST(SlotCache, LoadsAndHitsAreReported) {
  SlotCache cache({.n_slots = 3, .max_chosen = 3}, Policy("non-hit"));
  cache.Plan(std::vector<uint32_t>{1, 5, 8});
  const auto plan = cache.Plan(std::vector<uint32_t>{0, 5, 9});
  EXPECT_EQ(plan.hits, 1U);
  ASSERT_EQ(plan.loads.size(), 2U);
  EXPECT_EQ(plan.loads[0].extent, 0U);
  EXPECT_EQ(plan.loads[1].extent, 9U);
  EXPECT_EQ(Slots(plan), (std::vector<uint32_t>{0, 1, 2}));
}

// What passes goes elsewhere, however many slots are free, but is a hit where a slot has it.
TEST(SlotCache, WhatPassesTakesNoSlot) {
  for (const std::string_view policy : {"lru", "lfu"}) {
    SlotCache cache({.n_slots = 3, .max_chosen = 4, .max_rest = 3, .n_extents = 10}, Policy(policy));
    const auto first = cache.Plan(std::vector<uint32_t>{1, 4, 6}, {}, std::vector<uint8_t>{0, 1, 0});
    EXPECT_EQ(Slots(first), (std::vector<uint32_t>{0, 1}));
    EXPECT_EQ(first.loads.size(), 2U);
    ASSERT_EQ(first.rest.size(), 1U);
    EXPECT_EQ(first.rest[0], 4U);
    const auto second = cache.Plan(std::vector<uint32_t>{1, 2, 6, 8}, {}, std::vector<uint8_t>{1, 1, 0, 1});
    EXPECT_EQ(second.hits, 2U) << policy;
    EXPECT_EQ(second.loads.size(), 0U) << policy;
    EXPECT_EQ((std::vector<uint32_t>{second.rest.begin(), second.rest.end()}), (std::vector<uint32_t>{2, 8}));
    const auto third = cache.Plan(std::vector<uint32_t>{1, 2, 6}, {}, std::vector<uint8_t>{0, 0, 1});
    EXPECT_EQ(third.loads.size(), 1U) << "a slot was left free";
  }
}

// The last used of what was not chosen stands in for what is not worth reading.
TEST(SlotCache, OthersStandInForWhatStaysOut) {
  SlotCache cache({.n_slots = 4, .max_chosen = 3}, Policy("lru"));
  cache.Plan(std::vector<uint32_t>{1, 2});
  cache.Plan(std::vector<uint32_t>{2, 5, 7});
  cache.Plan(std::vector<uint32_t>{1, 2});
  const std::vector<uint8_t> may_stay = {0, 1, 1};
  const auto plan = cache.Plan(std::vector<uint32_t>{2, 8, 9}, {}, {}, {.may_stay = may_stay});
  EXPECT_EQ(plan.hits, 1U);
  EXPECT_EQ(plan.stand_ins, 2U);
  EXPECT_TRUE(plan.loads.empty());
  ASSERT_EQ(plan.slots.size(), 3U);
  EXPECT_EQ(cache.extent(plan.slots[0]), 2U);
  EXPECT_EQ(cache.extent(plan.slots[1]), 1U);
  EXPECT_EQ(cache.extent(plan.slots[2]), 5U);
  EXPECT_TRUE(std::equal(plan.slots.begin(), plan.slots.end(), cache.planned_slots().begin(),
                         cache.planned_slots().end()));
  // What must be read is, and takes the place of what was used longest ago: standing in is no use.
  const std::vector<uint8_t> must = {0, 0, 1};
  const auto next = cache.Plan(std::vector<uint32_t>{2, 8, 9}, {}, {}, {.may_stay = must});
  ASSERT_EQ(next.loads.size(), 1U);
  EXPECT_EQ(next.loads[0].extent, 8U);
  EXPECT_EQ(next.loads[0].victim, 5U);
  EXPECT_EQ(cache.extent(next.slots[2]), 1U);
}

TEST(SlotCache, WhatMayStayOutTakesAFreeSlot) {
  SlotCache cache({.n_slots = 4, .max_chosen = 4}, Policy("lru"));
  const std::vector<uint8_t> may_stay = {1, 0, 1};
  const auto plan = cache.Plan(std::vector<uint32_t>{3, 4, 6}, {}, {}, {.may_stay = may_stay});
  EXPECT_EQ(plan.loads.size(), 3U);
  EXPECT_EQ(plan.stand_ins, 0U);
  // One slot is left: what must be read has it first, though it comes last.
  const std::vector<uint8_t> last = {0, 1, 0};
  const auto next = cache.Plan(std::vector<uint32_t>{3, 7, 9}, {}, {}, {.may_stay = last});
  ASSERT_EQ(next.loads.size(), 1U);
  EXPECT_EQ(next.loads[0].extent, 9U);
  EXPECT_EQ(next.stand_ins, 1U);
}

// After a sequence was cut short, slots hold what lies in its window now.
TEST(SlotCache, OnlyWhatLiesBelowStandsIn) {
  SlotCache cache({.n_slots = 2, .max_chosen = 2}, Policy("lru"));
  cache.Plan(std::vector<uint32_t>{1, 8});
  const std::vector<uint8_t> may_stay = {0, 1};
  const auto plan =
      cache.Plan(std::vector<uint32_t>{1, 2}, {}, {}, {.may_stay = may_stay, .stand_ins_below = 8});
  EXPECT_EQ(plan.slots.size(), 1U);
  EXPECT_EQ(plan.stand_ins, 1U);
  EXPECT_EQ(cache.extent(plan.slots[0]), 1U);
}

// 1 is loaded first and used last: fifo gives it up, lru does not.
TEST(SlotCache, PoliciesDifferWhereThereAreMoreSlotsThanChosen) {
  for (const auto& [name, given_up] : std::map<std::string, uint32_t>{{"fifo", 1}, {"lru", 2}}) {
    SlotCache cache({.n_slots = 3, .max_chosen = 1}, Policy(name));
    for (const uint32_t extent : {1U, 2U, 3U, 1U}) cache.Plan(std::vector{extent});
    cache.Plan(std::vector{4U});
    const uint32_t kept = given_up == 1 ? 2 : 1;
    EXPECT_EQ(cache.Plan(std::vector{kept}).hits, 1U) << name;
    EXPECT_EQ(cache.Plan(std::vector{given_up}).hits, 0U) << name;
  }
}

TEST(SlotCache, ADroppedSlotIsFreeAndTheFirstToBeTaken) {
  SlotCache cache({.n_slots = 3, .max_chosen = 3}, Policy("lru"));
  cache.Plan(std::vector<uint32_t>{1, 2, 3});
  cache.Drop(1);
  const auto plan = cache.Plan(std::vector<uint32_t>{1, 4});
  EXPECT_EQ(Slots(plan), (std::vector<uint32_t>{0, 1}));
  EXPECT_EQ(cache.Plan(std::vector<uint32_t>{3}).hits, 1U);
}

TEST(SlotCache, TruncateForgetsFromAnExtentOn) {
  SlotCache cache({.n_slots = 3, .max_chosen = 3}, Policy("fifo"));
  cache.Plan(std::vector<uint32_t>{1, 2, 3});
  cache.Truncate(2);
  EXPECT_EQ(cache.Plan(std::vector<uint32_t>{1, 2, 3}).hits, 1U);
  cache.Clear();
  EXPECT_EQ(cache.Plan(std::vector<uint32_t>{1, 2, 3}).hits, 0U);
}

TEST(SlotCache, NothingChosenAndNoSlotsAreFine) {
  SlotCache none({.n_slots = 0, .max_chosen = 0}, Policy("lru"));
  EXPECT_TRUE(none.Plan({}).slots.empty());
  SlotCache cache({.n_slots = 2, .max_chosen = 1}, Policy("lru"));
  EXPECT_TRUE(cache.Plan({}).loads.empty());
}

TEST(SlotCache, AnUnknownPolicyIsAnsweredWithTheKnown) {
  const auto policy = FindReplacementPolicy("clock");
  EXPECT_EQ(policy.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(policy.status().message(),
            "unknown replacement policy 'clock'; known: fifo, lru, non-hit, lfu, cluster");
}

TEST(SlotCacheDeathTest, MisuseIsFound) {
  EXPECT_DEATH(SlotCache({.n_slots = 3, .max_chosen = 4}, Policy("lru")), "n_slots");
  EXPECT_DEATH(SlotCache({.n_slots = 4, .max_chosen = 3}, Policy("non-hit")), "needs_equal_capacity");
  SlotCache cache({.n_slots = 4, .max_chosen = 2}, Policy("lru"));
  EXPECT_DEATH((void)cache.Plan(std::vector<uint32_t>{1, 2, 3}), "chosen.size");
  EXPECT_DEATH((void)cache.Plan(std::vector<uint32_t>{2, 1}), "chosen");
  EXPECT_DEATH((void)cache.Plan(std::vector<uint32_t>{2, 2}), "chosen");
}

// What the cache should do, said as plainly as possible: a map, and a search for each victim.
class NaiveCache {
 public:
  NaiveCache(const SlotCacheShape& shape, const ReplacementPolicy& policy) : shape_(shape), policy_(policy) {}

  // Where each of `chosen` lies; nothing: it belongs to the rest.
  std::vector<std::optional<uint32_t>> Plan(const std::vector<uint32_t>& chosen,
                                            const std::vector<uint32_t>& weights) {
    ++step_;
    for (auto& [cluster, frequency] : frequency_) frequency -= (frequency + 7) / 8;
    std::set<uint32_t> clusters;
    for (const uint32_t extent : chosen) clusters.insert(ClusterOf(extent));
    for (const uint32_t cluster : clusters) frequency_[cluster] += 31;
    std::vector<uint32_t> misses;
    for (const uint32_t extent : chosen) {
      if (const auto slot = SlotOf(extent)) {
        slots_[*slot].used_at = step_;
      } else {
        misses.push_back(extent);
      }
    }
    if (policy_.goes_by_frequency) {
      std::stable_sort(misses.begin(), misses.end(),
                       [&](uint32_t a, uint32_t b) { return FrequencyOf(a) > FrequencyOf(b); });
    }
    const std::vector<uint32_t> victims = Victims(chosen);
    for (size_t i = 0; i < std::min(victims.size(), misses.size()); ++i) {
      const bool must = misses.size() - i > shape_.max_rest;
      const bool is_free = !slots_.contains(victims[i]);
      if (!must && !is_free && policy_.goes_by_frequency &&
          FrequencyOf(misses[i]) <= FrequencyOf(slots_[victims[i]].extent)) {
        break;
      }
      slots_[victims[i]] = {misses[i], step_, step_};
    }
    std::vector<std::optional<uint32_t>> answer;
    for (size_t i = 0; i < chosen.size(); ++i) {
      answer.push_back(SlotOf(chosen[i]));
      if (answer[i]) slots_[*answer[i]].weight = weights.empty() ? 1 : weights[i];
    }
    return answer;
  }
  std::optional<uint32_t> SlotOf(uint32_t extent) const {
    for (const auto& [slot, content] : slots_) {
      if (content.extent == extent) return slot;
    }
    return std::nullopt;
  }
  std::optional<uint32_t> ExtentOf(uint32_t slot) const {
    const auto at = slots_.find(slot);
    return at == slots_.end() ? std::nullopt : std::optional(at->second.extent);
  }
  void Drop(uint32_t slot) { slots_.erase(slot); }
  void Touch(uint32_t extent, uint32_t weight) {
    if (const auto slot = SlotOf(extent)) {
      slots_[*slot].touched_at = step_;
      slots_[*slot].weight = weight;
    }
  }
  void Rename(uint32_t from, uint32_t to) {
    slots_[*SlotOf(from)].extent = to;
    frequency_[ClusterOf(to)] = FrequencyOf(from);
    if (shape_.extent_records == 1) frequency_.erase(from);
  }
  void Truncate(uint32_t first) {
    std::erase_if(slots_, [first](const auto& entry) { return entry.second.extent >= first; });
    std::erase_if(frequency_,
                  [&](const auto& entry) { return entry.first * shape_.extent_records >= first; });
  }

 private:
  struct Content {
    uint32_t extent;
    uint64_t loaded_at;
    uint64_t used_at;
    uint64_t touched_at = 0;
    uint32_t weight = 1;
  };
  using Rank = std::array<uint64_t, 4>;  // the least goes first

  uint32_t ClusterOf(uint32_t extent) const { return extent / shape_.extent_records; }
  uint32_t FrequencyOf(uint32_t extent) { return frequency_[ClusterOf(extent)]; }

  // Slots that are not needed: free ones, then the others as the policy gives them up.
  std::vector<uint32_t> Victims(const std::vector<uint32_t>& needed) {
    std::vector<uint32_t> candidates;
    std::vector<uint64_t> touched;
    for (uint32_t slot = 0; slot < shape_.n_slots; ++slot) {
      const bool is_free = !slots_.contains(slot);
      if (!is_free && std::count(needed.begin(), needed.end(), slots_[slot].extent) > 0) continue;
      candidates.push_back(slot);
      touched.push_back(is_free ? 0 : slots_[slot].touched_at);
    }
    std::sort(touched.rbegin(), touched.rend());
    std::vector<std::pair<Rank, uint32_t>> ranked;
    for (const uint32_t slot : candidates) {
      if (!slots_.contains(slot)) {
        ranked.push_back({Rank{}, slot});
      } else {
        ranked.push_back({RankOf(slots_[slot], touched[touched.size() / 16]), slot});
      }
    }
    std::sort(ranked.begin(), ranked.end());
    std::vector<uint32_t> victims;
    for (const auto& [rank, slot] : ranked) victims.push_back(slot);
    return victims;
  }
  // not_reserved: touched then, or before.
  Rank RankOf(const Content& content, uint64_t not_reserved) {
    if (policy_.name == "fifo") return {1, content.loaded_at};
    if (policy_.name == "lru") return {1, content.used_at};
    if (policy_.name == "non-hit") return {1};
    const uint64_t frequency = FrequencyOf(content.extent);
    if (policy_.name == "lfu") return {1, frequency};
    const bool is_reserved = content.touched_at > not_reserved && content.touched_at + 16 > step_;
    // Weights are 1 to 5.
    return {is_reserved ? 2U : 1U, frequency * frequency * frequency * frequency * 60 / content.weight,
            content.used_at, UINT32_MAX - content.extent};
  }

  SlotCacheShape shape_;
  const ReplacementPolicy& policy_;
  uint64_t step_ = 0;
  std::map<uint32_t, Content> slots_;  // absent: free
  std::map<uint32_t, uint32_t> frequency_;
};

uint32_t Below(std::mt19937& random, uint32_t limit) { return static_cast<uint32_t>(random() % limit); }

std::vector<uint32_t> RandomChoice(std::mt19937& random, uint32_t n_extents, uint32_t at_most) {
  std::set<uint32_t> chosen;
  const uint32_t count = Below(random, at_most + 1);
  while (chosen.size() < count) chosen.insert(Below(random, n_extents));
  return {chosen.begin(), chosen.end()};
}

// The plan says where `chosen` lies as `placed` does, and loads what did not lie there before.
void ExpectPlaced(const SlotCache::PlanResult& plan, const std::vector<uint32_t>& chosen,
                  const std::vector<std::optional<uint32_t>>& placed,
                  const std::vector<std::optional<uint32_t>>& held_before, const NaiveCache& before) {
  size_t slot = 0;
  size_t load = 0;
  size_t rest = 0;
  for (size_t i = 0; i < chosen.size(); ++i) {
    if (!placed[i]) {
      ASSERT_LT(rest, plan.rest.size());
      ASSERT_EQ(plan.rest[rest++], chosen[i]);
      continue;
    }
    ASSERT_LT(slot, plan.slots.size());
    ASSERT_EQ(plan.slots[slot++], *placed[i]);
    if (held_before[i]) {
      ASSERT_EQ(*placed[i], *held_before[i]);
      continue;
    }
    ASSERT_LT(load, plan.loads.size());
    ASSERT_EQ(plan.loads[load].extent, chosen[i]);
    ASSERT_EQ(plan.loads[load].slot, *placed[i]);
    ASSERT_EQ(plan.loads[load++].victim, before.ExtentOf(*placed[i]).value_or(kNoExtent));
  }
  ASSERT_EQ(slot, plan.slots.size());
  ASSERT_EQ(load, plan.loads.size());
  ASSERT_EQ(rest, plan.rest.size());
  ASSERT_EQ(plan.hits, chosen.size() - load - rest);
}

// What happens to records between two steps: touches, divisions, ends.
void Change(std::mt19937& random, uint32_t n_extents, SlotCache& cache, NaiveCache& naive) {
  for (uint32_t i = Below(random, 4); i > 0; --i) {
    const uint32_t record = Below(random, n_extents);
    const uint32_t weight = 1 + Below(random, 5);
    cache.Touch(record, weight);
    naive.Touch(record, weight);
  }
  const uint32_t from = Below(random, n_extents);
  const uint32_t to = Below(random, n_extents);
  if (naive.SlotOf(from) && !naive.SlotOf(to)) {
    cache.Rename(from, to);
    naive.Rename(from, to);
  }
  const uint32_t dropped = Below(random, n_extents);
  if (Below(random, 4) == 0) {
    cache.DropRecord(dropped);
    if (const auto slot = naive.SlotOf(dropped)) naive.Drop(*slot);
  }
  for (uint32_t record = 0; record < n_extents; ++record) {
    ASSERT_EQ(cache.SlotOf(record), naive.SlotOf(record).value_or(SlotCache::kNoSlot)) << record;
  }
}

TEST(SlotCache, DoesWhatANaiveModelDoes) {
  for (uint32_t seed = 1; seed <= 140; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const ReplacementPolicy& policy = ReplacementPolicies()[seed % ReplacementPolicies().size()];
    SlotCacheShape shape;
    shape.max_chosen = 1 + Below(random, 12);
    shape.n_slots = shape.max_chosen;
    if (!policy.needs_equal_capacity && seed % 3 == 0) {
      shape.n_slots = Below(random, shape.max_chosen);
      const uint32_t rest = shape.max_chosen - shape.n_slots;
      shape.max_rest = rest + Below(random, shape.n_slots + 1);
    } else if (!policy.needs_equal_capacity) {
      shape.n_slots += Below(random, 9);
    }
    shape.n_extents = shape.max_chosen + Below(random, 30);
    shape.extent_records = 1 + Below(random, 4);
    SlotCache cache(shape, &policy);
    NaiveCache naive(shape, policy);
    for (uint32_t step = 0; step < 200; ++step) {
      const auto chosen = RandomChoice(random, shape.n_extents, shape.max_chosen);
      std::vector<std::optional<uint32_t>> held_before;
      for (const uint32_t extent : chosen) held_before.push_back(naive.SlotOf(extent));
      std::vector<uint32_t> weights(seed % 4 == 0 ? 0 : chosen.size());
      for (uint32_t& weight : weights) weight = 1 + Below(random, 5);
      const NaiveCache before = naive;
      const auto plan = cache.Plan(chosen, weights);
      ASSERT_NO_FATAL_FAILURE(ExpectPlaced(plan, chosen, naive.Plan(chosen, weights), held_before, before))
          << policy.name << ", step " << step;
      ASSERT_LE(plan.rest.size(), shape.max_rest);
      if (Below(random, 8) == 0 && !plan.loads.empty()) {
        naive.Drop(plan.loads.back().slot);
        cache.Drop(plan.loads.back().slot);
      }
      if (Below(random, 16) == 0) {
        const uint32_t first = Below(random, shape.n_extents);
        naive.Truncate(first);
        cache.Truncate(first);
      }
      if (seed % 7 < 4) {
        ASSERT_NO_FATAL_FAILURE(Change(random, shape.n_extents, cache, naive)) << policy.name << ", " << step;
      }
    }
  }
}

// Of 5 extents that every step chooses, 3 have slots; one that is chosen once takes none of them.
TEST(SlotCache, WhatIsChosenOftenKeepsItsSlot) {
  SlotCache cache({.n_slots = 3, .max_chosen = 6, .max_rest = 6, .n_extents = 20}, Policy("lfu"));
  for (int step = 0; step < 8; ++step) cache.Plan(std::vector<uint32_t>{2, 4, 6, 8, 10});
  const auto plan = cache.Plan(std::vector<uint32_t>{1, 2, 4, 6, 8, 10});
  EXPECT_EQ(plan.hits, 3U);
  EXPECT_TRUE(plan.loads.empty());
  EXPECT_EQ(std::vector(plan.rest.begin(), plan.rest.end()), (std::vector<uint32_t>{1, 8, 10}));
}

TEST(SlotCache, PlanAllocatesNothing) {
  std::mt19937 random(5);
  std::vector<std::vector<uint32_t>> choices(100);
  for (auto& chosen : choices) chosen = RandomChoice(random, 300, 100);
  for (const auto& [name, n_slots] :
       {std::pair("fifo", 120U), {"lru", 120U}, {"lru", 60U}, {"lfu", 60U}, {"cluster", 120U}}) {
    SlotCache cache({.n_slots = n_slots, .max_chosen = 100, .max_rest = 70, .n_extents = 300}, Policy(name));
    const uint64_t before = testing::AllocationsOfThisThread();
    uint64_t n_loads = 0;
    for (const auto& chosen : choices) {
      const auto plan = cache.Plan(chosen);
      n_loads += plan.loads.size() + plan.rest.size();
    }
    EXPECT_EQ(testing::AllocationsOfThisThread(), before) << name;
    EXPECT_GT(n_loads, 1000U);
  }
}

TEST(SlotCache, MemoryIsWhatTheTablesTake) {
  const SlotCacheShape shape = {.n_slots = 100, .max_chosen = 60, .max_rest = 7, .n_extents = 500};
  const uint64_t bytes = 100U * (3 * 4 + 2 * 8) + 60U * (4 + 12) + 7U * 4;
  EXPECT_EQ(SlotCache::MemoryBytes(shape, *Policy("lru")), bytes);
  EXPECT_EQ(SlotCache::MemoryBytes(shape, *Policy("lfu")), bytes + 500)
      << "a byte for each extent's frequency";
  EXPECT_EQ(SlotCache::MemoryBytes(shape, *Policy("cluster")), bytes + 500 + 100 * (4 + 8))
      << "weight and last touch of each slot";
  SlotCacheShape clusters = shape;
  clusters.extent_records = 16;
  EXPECT_EQ(SlotCache::MemoryBytes(clusters, *Policy("cluster")), bytes + 32 + 100 * (4 + 8))
      << "a byte for each cluster's frequency";
  const SlotCacheShape huge = {.n_slots = UINT32_MAX, .max_chosen = UINT32_MAX};
  EXPECT_EQ(SlotCache::MemoryBytes(huge, *Policy("lru")), uint64_t{UINT32_MAX} * 44);
}

}  // namespace
}  // namespace kvrun
