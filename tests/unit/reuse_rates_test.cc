// Reuse rates of traces whose rates can be counted by hand.
#include "runtime/kv/replay/reuse_rates.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/or_die.h"

namespace kvrun {
namespace {

using testing::OrDie;
using Steps = std::vector<std::vector<uint32_t>>;

double Rate(const ReuseTrace& trace, std::string_view policy, uint32_t n_slots, uint32_t n_warm_up = 0) {
  return ReuseRateOf(trace, *OrDie(FindReplacementPolicy(policy)), n_slots, n_warm_up);
}

ReuseTrace TraceOf(uint32_t n_chosen, std::vector<Steps> streams, uint32_t n_pinned = 0) {
  return {.group_tokens = 4,
          .n_chosen = n_chosen,
          .n_pinned = n_pinned,
          .n_groups = 100,
          .n_ctx = 50,
          .streams = std::move(streams)};
}

TEST(ReuseRates, WhatIsChosenAgainIsThere) {
  const ReuseTrace trace = TraceOf(2, {{{1, 2}, {1, 2}, {1, 3}, {4, 5}}});
  // Hits: 0, 2, 1, 0 of 8.
  for (const char* policy : {"fifo", "lru", "non-hit", "lfu"}) {
    EXPECT_DOUBLE_EQ(Rate(trace, policy, 2), 3.0 / 8);
  }
  EXPECT_DOUBLE_EQ(Rate(trace, "lru", 2, 1), 3.0 / 6);
  EXPECT_DOUBLE_EQ(Rate(trace, "lru", 2, 3), 0.0);
  EXPECT_DOUBLE_EQ(Rate(trace, "lru", 2, 4), 0.0) << "nothing is left to count";
}

TEST(ReuseRates, MoreSlotsRemember) {
  const ReuseTrace trace = TraceOf(1, {{{1}, {2}, {3}, {1}, {2}, {3}}});
  EXPECT_DOUBLE_EQ(Rate(trace, "lru", 1), 0.0);
  EXPECT_DOUBLE_EQ(Rate(trace, "lru", 2), 0.0);
  EXPECT_DOUBLE_EQ(Rate(trace, "lru", 3), 0.5);
  EXPECT_DOUBLE_EQ(Rate(trace, "lru", 3, 3), 1.0);
}

// When a slot is needed for 4, 1 was loaded first, and 2 was used first.
TEST(ReuseRates, PoliciesDiffer) {
  const ReuseTrace trace = TraceOf(2, {{{1, 2}, {1, 3}, {4}, {1}}});
  EXPECT_DOUBLE_EQ(Rate(trace, "lru", 3), 2.0 / 6);
  EXPECT_DOUBLE_EQ(Rate(trace, "fifo", 3), 1.0 / 6);
}

// They are chosen by each step, hit by each step, and counted by none.
TEST(ReuseRates, PinnedGroupsAreLeftOut) {
  const ReuseTrace with = TraceOf(1, {{{0, 1, 5}, {0, 1, 5}, {0, 1, 7}, {0, 1, 5}}}, 2);
  const ReuseTrace without = TraceOf(1, {{{5}, {5}, {7}, {5}}});
  for (const uint32_t n_slots : {1U, 2U}) {
    EXPECT_DOUBLE_EQ(Rate(with, "lru", n_slots), Rate(without, "lru", n_slots));
    EXPECT_DOUBLE_EQ(Rate(with, "lru", n_slots), n_slots == 1 ? 0.25 : 0.5);
  }
}

TEST(ReuseRates, StreamsHaveSlotsOfTheirOwnAndCountTogether) {
  const ReuseTrace trace = TraceOf(2, {{{1, 2}, {1, 2}}, {{3}, {1}}});
  EXPECT_DOUBLE_EQ(Rate(trace, "lru", 2), 2.0 / 6);
}

TEST(ReuseRates, ATableHasARowForEachPolicyAndCapacity) {
  ReuseTrace trace = TraceOf(6, {{{1, 2}, {2, 3}, {3, 4}}});
  const double factors[] = {1, 1.25, 1.3, 2, 20};
  const std::vector<ReuseRate> rates = ReuseRatesOf(trace, factors, 1);
  // 6, 8 (once) and 12 groups; 120 are more than there are. non-hit has C = M alone.
  ASSERT_EQ(rates.size(), 10U);
  for (const ReuseRate& row : rates) {
    EXPECT_EQ(row.group_tokens, 4U);
    EXPECT_EQ(row.select_entries, 24U);
    EXPECT_EQ(row.n_ctx, 51U) << "the warm-up comes before what is counted";
    EXPECT_FLOAT_EQ(row.rate, 0.5F);
  }
  const auto count = [&](std::string_view policy, uint32_t capacity) {
    return std::count_if(rates.begin(), rates.end(), [&](const ReuseRate& row) {
      return row.policy == policy && row.reuse_groups == capacity;
    });
  };
  for (const char* policy : {"fifo", "lru", "lfu"}) {
    for (const uint32_t capacity : {6U, 8U, 12U}) EXPECT_EQ(count(policy, capacity), 1) << policy << capacity;
  }
  EXPECT_EQ(count("non-hit", 6), 1);
  trace.n_groups = 3;  // fewer than are asked for: C == M all the same
  EXPECT_EQ(ReuseRatesOf(trace, factors, 1).size(), 4U);
}

}  // namespace
}  // namespace kvrun
