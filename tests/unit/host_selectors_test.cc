#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "runtime/kv/select/pinned_selector.h"
#include "runtime/kv/select/random_selector.h"

namespace kvrun {
namespace {

KvPlan PlanOf(uint32_t n_pinned, uint32_t n_chosen) {
  KvPlan plan;
  plan.n_sequences = 2;
  plan.n_streams = 6;
  plan.choice.n_pinned = n_pinned;
  plan.choice.n_chosen = n_chosen;
  return plan;
}

StreamStep StepOf(uint32_t layer, uint32_t sequence, uint32_t head, uint32_t position, uint32_t n_groups) {
  return {layer, 0, head, sequence * 3 + head, position, n_groups};
}

std::vector<uint32_t> Choice(KvSelector& selector, const StreamStep& step) {
  const Result<std::span<const uint32_t>> chosen = selector.Choose(step);
  EXPECT_TRUE(chosen.ok());
  const std::span<const uint32_t> last = selector.LastChoice(step);
  EXPECT_TRUE(std::equal(chosen->begin(), chosen->end(), last.begin(), last.end()));
  return {chosen->begin(), chosen->end()};
}

TEST(HostSelectors, PinnedOnesAreTheFirst) {
  const KvPlan plan = PlanOf(2, 2);
  PinnedSelector selector(plan, 4);
  ASSERT_TRUE(selector.BeginDecode().ok());
  EXPECT_EQ(selector.chosen(0), nullptr);
  EXPECT_EQ(Choice(selector, StepOf(3, 1, 2, 50, 12)), (std::vector<uint32_t>{0, 1}));
  EXPECT_EQ(Choice(selector, StepOf(0, 0, 0, 50, 1)), (std::vector<uint32_t>{0}));
  EXPECT_TRUE(Choice(selector, StepOf(0, 0, 0, 3, 0)).empty());
}

TEST(HostSelectors, RandomOnesAreAscendingAndHaveThePinned) {
  const KvPlan plan = PlanOf(2, 9);
  RandomSelector selector(plan, 4);
  ASSERT_TRUE(selector.BeginDecode().ok());
  for (uint32_t n_groups = 0; n_groups < 40; ++n_groups) {
    const std::vector<uint32_t> groups = Choice(selector, StepOf(1, 0, 1, 4 * n_groups, n_groups));
    ASSERT_EQ(groups.size(), std::min(9U, n_groups));
    EXPECT_TRUE(std::adjacent_find(groups.begin(), groups.end(), std::greater_equal<>()) == groups.end());
    for (uint32_t i = 0; i < groups.size(); ++i) {
      EXPECT_LT(groups[i], n_groups);
      if (i < 2) {
        EXPECT_EQ(groups[i], i);
      }
    }
  }
}

TEST(HostSelectors, RandomOnesDependOnLayerHeadAndPositionAlone) {
  const KvPlan plan = PlanOf(1, 9);
  RandomSelector selector(plan, 4);
  ASSERT_TRUE(selector.BeginDecode().ok());
  const std::vector<uint32_t> groups = Choice(selector, StepOf(1, 0, 1, 400, 100));
  EXPECT_NE(Choice(selector, StepOf(2, 0, 1, 400, 100)), groups);
  EXPECT_NE(Choice(selector, StepOf(1, 0, 2, 400, 100)), groups);
  EXPECT_NE(Choice(selector, StepOf(1, 0, 1, 401, 100)), groups);
  EXPECT_EQ(Choice(selector, StepOf(1, 1, 1, 400, 100)), groups) << "of another sequence";
}

// Of 50 groups each is chosen with the same chance: 2,000 draws of 8 from 49.
TEST(HostSelectors, RandomOnesAreDrawnEvenly) {
  const KvPlan plan = PlanOf(1, 9);
  RandomSelector selector(plan, 1);
  ASSERT_TRUE(selector.BeginDecode().ok());
  std::vector<uint32_t> counts(50);
  for (uint32_t position = 0; position < 2000; ++position) {
    for (const uint32_t group : Choice(selector, StepOf(0, 0, 0, position, 50))) ++counts[group];
  }
  EXPECT_EQ(counts[0], 2000U);
  // 326.5 expected, a standard deviation of 16.5.
  for (uint32_t group = 1; group < 50; ++group) EXPECT_NEAR(counts[group], 326.5, 5 * 16.5) << group;
}

}  // namespace
}  // namespace kvrun
