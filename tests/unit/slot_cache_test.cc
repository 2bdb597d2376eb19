#include "runtime/kv/slot_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
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
  SlotCache cache(4, 2, Policy("lru"));
  EXPECT_EQ(Plan(cache, {7, 9}), (std::vector<uint32_t>{0, 1}));
  EXPECT_EQ(Plan(cache, {3, 9}), (std::vector<uint32_t>{2, 1}));
  EXPECT_EQ(Plan(cache, {3, 4}), (std::vector<uint32_t>{2, 3}));
}

TEST(SlotCache, LoadsAndHitsAreReported) {
  SlotCache cache(3, 3, Policy("non-hit"));
  cache.Plan(std::vector<uint32_t>{1, 5, 8});
  const auto plan = cache.Plan(std::vector<uint32_t>{0, 5, 9});
  EXPECT_EQ(plan.hits, 1U);
  ASSERT_EQ(plan.loads.size(), 2U);
  EXPECT_EQ(plan.loads[0].extent, 0U);
  EXPECT_EQ(plan.loads[1].extent, 9U);
  EXPECT_EQ(Slots(plan), (std::vector<uint32_t>{0, 1, 2}));
}

// 1 is loaded first and used last: fifo gives it up, lru does not.
TEST(SlotCache, PoliciesDifferWhereThereAreMoreSlotsThanChosen) {
  for (const auto& [name, given_up] : std::map<std::string, uint32_t>{{"fifo", 1}, {"lru", 2}}) {
    SlotCache cache(3, 1, Policy(name));
    for (const uint32_t extent : {1U, 2U, 3U, 1U}) cache.Plan(std::vector{extent});
    cache.Plan(std::vector{4U});
    const uint32_t kept = given_up == 1 ? 2 : 1;
    EXPECT_EQ(cache.Plan(std::vector{kept}).hits, 1U) << name;
    EXPECT_EQ(cache.Plan(std::vector{given_up}).hits, 0U) << name;
  }
}

TEST(SlotCache, ADroppedSlotIsFreeAndTheFirstToBeTaken) {
  SlotCache cache(3, 3, Policy("lru"));
  cache.Plan(std::vector<uint32_t>{1, 2, 3});
  cache.Drop(1);
  const auto plan = cache.Plan(std::vector<uint32_t>{1, 4});
  EXPECT_EQ(Slots(plan), (std::vector<uint32_t>{0, 1}));
  EXPECT_EQ(cache.Plan(std::vector<uint32_t>{3}).hits, 1U);
}

TEST(SlotCache, TruncateForgetsFromAnExtentOn) {
  SlotCache cache(3, 3, Policy("fifo"));
  cache.Plan(std::vector<uint32_t>{1, 2, 3});
  cache.Truncate(2);
  EXPECT_EQ(cache.Plan(std::vector<uint32_t>{1, 2, 3}).hits, 1U);
  cache.Clear();
  EXPECT_EQ(cache.Plan(std::vector<uint32_t>{1, 2, 3}).hits, 0U);
}

TEST(SlotCache, NothingChosenAndNoSlotsAreFine) {
  SlotCache none(0, 0, Policy("lru"));
  EXPECT_TRUE(none.Plan({}).slots.empty());
  SlotCache cache(2, 1, Policy("lru"));
  EXPECT_TRUE(cache.Plan({}).loads.empty());
}

TEST(SlotCache, AnUnknownPolicyIsAnsweredWithTheKnown) {
  const auto policy = FindReplacementPolicy("clock");
  EXPECT_EQ(policy.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(policy.status().message(), "unknown replacement policy 'clock'; known: fifo, lru, non-hit");
}

TEST(SlotCacheDeathTest, MisuseIsFound) {
  EXPECT_DEATH(SlotCache(3, 4, Policy("lru")), "n_slots");
  EXPECT_DEATH(SlotCache(4, 3, Policy("non-hit")), "needs_equal_capacity");
  SlotCache cache(4, 2, Policy("lru"));
  EXPECT_DEATH((void)cache.Plan(std::vector<uint32_t>{1, 2, 3}), "chosen.size");
  EXPECT_DEATH((void)cache.Plan(std::vector<uint32_t>{2, 1}), "chosen");
  EXPECT_DEATH((void)cache.Plan(std::vector<uint32_t>{2, 2}), "chosen");
}

// What the cache should do, said as plainly as possible: a map, and a search for each victim.
class NaiveCache {
 public:
  NaiveCache(uint32_t n_slots, std::string policy) : n_slots_(n_slots), policy_(std::move(policy)) {}

  std::vector<uint32_t> Plan(const std::vector<uint32_t>& chosen) {
    ++step_;
    for (const uint32_t extent : chosen) {
      if (const auto slot = SlotOf(extent)) slots_[*slot].used_at = step_;
    }
    std::vector<uint32_t> answer;
    const std::set<uint32_t> needed(chosen.begin(), chosen.end());
    for (const uint32_t extent : chosen) {
      auto slot = SlotOf(extent);
      if (!slot) {
        slot = Victim(needed);
        slots_[*slot] = {extent, step_, step_};
      }
      answer.push_back(*slot);
    }
    return answer;
  }
  std::optional<uint32_t> SlotOf(uint32_t extent) const {
    for (const auto& [slot, content] : slots_) {
      if (content.extent == extent) return slot;
    }
    return std::nullopt;
  }
  void Drop(uint32_t slot) { slots_.erase(slot); }
  void Truncate(uint32_t first) {
    std::erase_if(slots_, [first](const auto& entry) { return entry.second.extent >= first; });
  }

 private:
  struct Content {
    uint32_t extent;
    uint64_t loaded_at;
    uint64_t used_at;
  };

  uint32_t Victim(const std::set<uint32_t>& needed) const {
    for (uint32_t slot = 0; slot < n_slots_; ++slot) {
      if (!slots_.contains(slot)) return slot;
    }
    std::optional<uint32_t> best;
    const auto age = [this](uint32_t slot) {
      const Content& content = slots_.at(slot);
      return policy_ == "fifo" ? content.loaded_at : policy_ == "lru" ? content.used_at : 0;
    };
    for (uint32_t slot = 0; slot < n_slots_; ++slot) {
      if (needed.contains(slots_.at(slot).extent)) continue;
      if (!best || age(slot) < age(*best)) best = slot;
    }
    return *best;
  }

  uint32_t n_slots_;
  std::string policy_;
  uint64_t step_ = 0;
  std::map<uint32_t, Content> slots_;  // absent: free
};

uint32_t Below(std::mt19937& random, uint32_t limit) { return static_cast<uint32_t>(random() % limit); }

std::vector<uint32_t> RandomChoice(std::mt19937& random, uint32_t n_extents, uint32_t at_most) {
  std::set<uint32_t> chosen;
  const uint32_t count = Below(random, at_most + 1);
  while (chosen.size() < count) chosen.insert(Below(random, n_extents));
  return {chosen.begin(), chosen.end()};
}

void ExpectSound(const SlotCache::PlanResult& plan, const std::vector<uint32_t>& chosen,
                 const std::vector<std::optional<uint32_t>>& held_before) {
  const std::set<uint32_t> distinct(plan.slots.begin(), plan.slots.end());
  ASSERT_EQ(distinct.size(), chosen.size());
  size_t load = 0;
  for (size_t i = 0; i < chosen.size(); ++i) {
    if (held_before[i]) {
      ASSERT_EQ(plan.slots[i], *held_before[i]);
      continue;
    }
    ASSERT_LT(load, plan.loads.size());
    ASSERT_EQ(plan.loads[load].extent, chosen[i]);
    ASSERT_EQ(plan.loads[load].slot, plan.slots[i]);
    ++load;
  }
  ASSERT_EQ(load, plan.loads.size());
  ASSERT_EQ(plan.hits, chosen.size() - load);
}

TEST(SlotCache, DoesWhatANaiveModelDoes) {
  for (uint32_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const ReplacementPolicy& policy = ReplacementPolicies()[seed % ReplacementPolicies().size()];
    const uint32_t max_chosen = 1 + Below(random, 12);
    const uint32_t n_slots = max_chosen + (policy.needs_equal_capacity ? 0 : Below(random, 9));
    const uint32_t n_extents = max_chosen + Below(random, 30);
    SlotCache cache(n_slots, max_chosen, &policy);
    NaiveCache naive(n_slots, std::string(policy.name));
    for (uint32_t step = 0; step < 200; ++step) {
      const auto chosen = RandomChoice(random, n_extents, max_chosen);
      std::vector<std::optional<uint32_t>> held_before;
      for (const uint32_t extent : chosen) held_before.push_back(naive.SlotOf(extent));
      const auto plan = cache.Plan(chosen);
      ASSERT_EQ(Slots(plan), naive.Plan(chosen)) << policy.name << ", step " << step;
      ASSERT_NO_FATAL_FAILURE(ExpectSound(plan, chosen, held_before));
      if (Below(random, 8) == 0 && !plan.loads.empty()) {
        naive.Drop(plan.loads.back().slot);
        cache.Drop(plan.loads.back().slot);
      }
      if (Below(random, 16) == 0) {
        const uint32_t first = Below(random, n_extents);
        naive.Truncate(first);
        cache.Truncate(first);
      }
    }
  }
}

TEST(SlotCache, PlanAllocatesNothing) {
  std::mt19937 random(5);
  std::vector<std::vector<uint32_t>> choices(100);
  for (auto& chosen : choices) chosen = RandomChoice(random, 300, 100);
  for (const std::string_view name : {"fifo", "lru"}) {
    SlotCache cache(120, 100, Policy(name));
    const uint64_t before = testing::AllocationsOfThisThread();
    uint64_t n_loads = 0;
    for (const auto& chosen : choices) n_loads += cache.Plan(chosen).loads.size();
    EXPECT_EQ(testing::AllocationsOfThisThread(), before) << name;
    EXPECT_GT(n_loads, 1000U);
  }
}

TEST(SlotCache, MemoryIsWhatTheTablesTake) {
  EXPECT_EQ(SlotCache::MemoryBytes(100, 60), 100U * (3 * 4 + 2 * 8) + 60U * (4 + 8));
  EXPECT_EQ(SlotCache::MemoryBytes(UINT32_MAX, UINT32_MAX), uint64_t{UINT32_MAX} * 40);
}

}  // namespace
}  // namespace kvrun
