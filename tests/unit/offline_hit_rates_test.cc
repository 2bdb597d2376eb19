// Hit rates of the reuse buffer: a table, what lies between its rows, and corrections.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "offline/hit_rates.h"

namespace kvrun::offline {
namespace {

// M and C in groups, the pinned one not counted.
SizedCandidate Sized(uint32_t group, uint32_t n_chosen, uint32_t n_slots, const std::string& policy = "lru",
                     uint32_t n_ctx = 8192) {
  SizedCandidate sized;
  sized.candidate.group_tokens = group;
  sized.candidate.policy = policy;
  sized.plan.n_ctx = n_ctx;
  sized.plan.record.group_tokens = group;
  sized.plan.choice.n_pinned = 1;
  sized.plan.choice.n_chosen = n_chosen + 1;
  sized.plan.slots.n_cache_slots = n_slots + 1;
  return sized;
}

ReuseRate Row(const std::string& policy, uint32_t group, uint32_t select, uint32_t reuse, float rate) {
  return {policy, group, select, 8192, reuse, rate};
}

const std::vector<ReuseRate> kTable = {
    Row("lru", 4, 200, 50, 0.5F),  Row("lru", 4, 200, 100, 0.7F),  Row("lru", 4, 800, 200, 0.6F),
    Row("lru", 4, 800, 400, 0.8F), Row("fifo", 4, 200, 50, 0.45F), Row("fifo", 4, 200, 100, 0.75F),
    Row("lru", 16, 320, 20, 0.9F),
};

TEST(OfflineHitRates, RowsOfTheTableAreAnsweredAsTheyAre) {
  const HitRates rates(kTable);
  EXPECT_NEAR(rates.Rate(Sized(4, 50, 50), "lru"), 0.5, 1e-6);
  EXPECT_NEAR(rates.Rate(Sized(4, 50, 100), "lru"), 0.7, 1e-6);
  EXPECT_NEAR(rates.Rate(Sized(4, 200, 400), "lru"), 0.8, 1e-6);
  EXPECT_NEAR(rates.Rate(Sized(4, 50, 50), "fifo"), 0.45, 1e-6);
  EXPECT_NEAR(rates.Rate(Sized(16, 20, 20), "lru"), 0.9, 1e-6);
}

TEST(OfflineHitRates, BetweenRowsIsInterpolated) {
  const HitRates rates(kTable);
  EXPECT_NEAR(rates.Rate(Sized(4, 100, 100), "lru"), 0.55, 1e-6) << "400 entries lie midway of 200 and 800";
  const double between = rates.Rate(Sized(4, 50, 75), "lru");
  EXPECT_GT(between, 0.55);
  EXPECT_LT(between, 0.68);
  EXPECT_NEAR(rates.Rate(Sized(4, 5, 5), "lru"), 0.5, 1e-6) << "beyond the table its last value";
  EXPECT_NEAR(rates.Rate(Sized(4, 50, 1000), "lru"), 0.7, 1e-6);
  EXPECT_NEAR(rates.Rate(Sized(2, 100, 100), "lru"), 0.5, 1e-6) << "the nearest group: 4";
  EXPECT_NEAR(rates.Rate(Sized(32, 10, 10), "lru"), 0.9, 1e-6) << "the nearest group: 16";
}

TEST(OfflineHitRates, ACacheOfEverythingMissesNothing) {
  const HitRates rates(kTable);
  EXPECT_EQ(rates.Rate(Sized(4, 50, 2047), "lru"), 1.0);
  EXPECT_EQ(HitRates({}).Rate(Sized(4, 50, 2047), "lru"), 1.0);
}

TEST(OfflineHitRates, WhatIsReadIntoThePoolMisses) {
  const HitRates rates(kTable);
  // 200 groups of which 50 have slots: they hit as where 50 are selected.
  EXPECT_NEAR(rates.Rate(Sized(4, 200, 50), "lru"), 0.25 * 0.5, 1e-6);
  EXPECT_EQ(rates.Rate(Sized(4, 200, 0), "lru"), 0.0);
  EXPECT_NEAR(RepeatedShare(Sized(4, 200, 50), 0.125), 0.5, 1e-9);
  EXPECT_EQ(RepeatedShare(Sized(4, 50, 50), 0.7), 0.7);
  EXPECT_EQ(RepeatedShare(Sized(4, 200, 0), 0.7), 0.0);
  // A sample is not there again either.
  SizedCandidate sampled = Sized(4, 50, 50);
  sampled.plan.choice.n_sampled = 50;
  sampled.plan.slots.n_pool_slots = 51;
  EXPECT_NEAR(rates.Rate(sampled, "lru"), 0.5 * 0.5, 1e-6);
  HitRates corrected(kTable);
  corrected.Correct(Sized(4, 200, 50), 0.25 * 0.75);
  EXPECT_NEAR(corrected.Rate(Sized(4, 50, 50), "lru"), 0.75, 1e-6) << "as of those that have slots";
}

TEST(OfflineHitRates, WithoutATableARateIsAssumed) {
  const HitRates rates({});
  const double equal = rates.Rate(Sized(4, 50, 50), "lru");
  const double twice = rates.Rate(Sized(4, 50, 100), "lru");
  EXPECT_GT(equal, 0.5);
  EXPECT_GT(twice, equal);
  EXPECT_LT(twice, 1.0);
  EXPECT_EQ(HitRates(std::vector<ReuseRate>{Row("lru", 0, 0, 0, 0.1F), Row("lru", 4, 2, 1, 0.1F)})
                .Rate(Sized(4, 50, 50), "lru"),
            equal)
      << "rows that say nothing are left out";
}

TEST(OfflineHitRates, MeasurementsCorrectIt) {
  HitRates rates(kTable);
  rates.Correct(Sized(4, 50, 50), 0.75);
  EXPECT_NEAR(rates.Rate(Sized(4, 50, 50), "lru"), 0.75, 1e-6);
  EXPECT_NEAR(rates.Rate(Sized(4, 50, 100), "lru"), 0.85, 1e-6) << "half the misses here too";
  // Three that ask for half, one for twice the misses: the mean of their logarithms.
  rates.Correct(Sized(4, 50, 50), 0.75);
  rates.Correct(Sized(4, 50, 50), 0.75);
  rates.Correct(Sized(4, 50, 50), 0.0);
  EXPECT_NEAR(rates.Rate(Sized(4, 50, 50), "lru"), 1 - 0.5 / std::sqrt(2.0), 1e-6);
}

TEST(OfflineHitRates, CorrectionsStayRates) {
  HitRates rates({});
  rates.Correct(Sized(4, 50, 2047), 0.1);
  EXPECT_EQ(rates.Rate(Sized(4, 50, 50), "lru"), HitRates({}).Rate(Sized(4, 50, 50), "lru"))
      << "a cache of everything says nothing of others";
  for (const double measured : {1.0, 0.0}) {
    for (int i = 0; i < 20; ++i) rates.Correct(Sized(4, 50, 50), measured);
    const double rate = rates.Rate(Sized(4, 50, 60), "lru");
    EXPECT_GE(rate, 0.0);
    EXPECT_LE(rate, 1.0);
  }
}

TEST(OfflineHitRates, ThePolicyOfTheHighestRateIsTaken) {
  const HitRates rates(kTable);
  EXPECT_EQ(rates.BestPolicy(Sized(4, 50, 50)), "lru");
  EXPECT_EQ(rates.BestPolicy(Sized(4, 50, 100)), "fifo");
  EXPECT_EQ(HitRates({}).BestPolicy(Sized(4, 50, 100)), "lru") << "nothing is known: as it was";
  EXPECT_EQ(HitRates({}).BestPolicy(Sized(4, 50, 100, "fifo")), "fifo");
  // non-hit works only where C = M.
  std::vector<ReuseRate> table = kTable;
  table.push_back(Row("non-hit", 4, 200, 50, 0.99F));
  EXPECT_EQ(HitRates(table).BestPolicy(Sized(4, 50, 50)), "non-hit");
  EXPECT_EQ(HitRates(table).BestPolicy(Sized(4, 50, 100)), "fifo");
  SizedCandidate sampled = Sized(4, 50, 50);
  sampled.plan.slots.n_pool_slots = 10;
  EXPECT_EQ(HitRates(table).BestPolicy(sampled), "lru");
}

}  // namespace
}  // namespace kvrun::offline
