#include "runtime/kv/replay/replayed_selection.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

namespace kvrun {
namespace {

constexpr uint32_t kPinned = 2;
constexpr uint32_t kChosen = 37;

// Ascending, distinct, in range, with the pinned groups first and as many as there can be.
void ExpectIsAChoice(std::span<const uint32_t> chosen, uint32_t n_groups) {
  ASSERT_EQ(chosen.size(), std::min(kChosen, n_groups));
  for (size_t i = 0; i < chosen.size(); ++i) {
    EXPECT_LT(chosen[i], n_groups);
    if (i > 0) {
      EXPECT_LT(chosen[i - 1], chosen[i]);
    }
    if (i < kPinned) {
      EXPECT_EQ(chosen[i], i);
    }
  }
}

uint32_t CountRepeated(const std::vector<uint32_t>& before, std::span<const uint32_t> now) {
  return static_cast<uint32_t>(std::count_if(now.begin(), now.end(), [&](uint32_t group) {
    return group >= kPinned && std::binary_search(before.begin(), before.end(), group);
  }));
}

TEST(ReplayedSelection, RepeatsTheShareThatWasAskedFor) {
  for (const double share : {0.0, 0.5, 0.78, 0.905, 1.0}) {
    ReplayedSelection selection(share, kPinned, kChosen, 7);
    std::vector<uint32_t> before;
    double repeated = 0.0;
    constexpr int kSteps = 200;
    for (int step = 0; step <= kSteps; ++step) {
      const std::span<const uint32_t> now = selection.Next(1000 + step / 4);
      ExpectIsAChoice(now, 1000 + step / 4);
      if (step > 0) repeated += CountRepeated(before, now);
      before.assign(now.begin(), now.end());
    }
    EXPECT_NEAR(repeated / kSteps / (kChosen - kPinned), share, 0.01) << share;
  }
}

TEST(ReplayedSelection, TakesWhatThereIsWhereGroupsAreFew) {
  ReplayedSelection selection(0.5, kPinned, kChosen, 3);
  for (uint32_t n_groups = 0; n_groups < 120; ++n_groups) {
    ExpectIsAChoice(selection.Next(n_groups), n_groups);
    ExpectIsAChoice(selection.Next(n_groups), n_groups);
  }
  // A step back, to where the last step's choice was not yet.
  ExpectIsAChoice(selection.Next(40), 40);
  ExpectIsAChoice(selection.Next(1), 1);
  ExpectIsAChoice(selection.Next(500), 500);
}

TEST(ReplayedSelection, ReachesEveryGroup) {
  ReplayedSelection selection(0.78, kPinned, kChosen, 11);
  std::set<uint32_t> seen;
  for (int step = 0; step < 400; ++step) {
    const std::span<const uint32_t> now = selection.Next(300);
    seen.insert(now.begin(), now.end());
  }
  EXPECT_EQ(seen.size(), 300U);
}

TEST(ReplayedSelection, IsTheSameForTheSameSeedOnly) {
  ReplayedSelection one(0.5, kPinned, kChosen, 5);
  ReplayedSelection same(0.5, kPinned, kChosen, 5);
  ReplayedSelection other(0.5, kPinned, kChosen, 6);
  for (int step = 0; step < 10; ++step) {
    const std::span<const uint32_t> a = one.Next(1000);
    const std::span<const uint32_t> b = same.Next(1000);
    const std::span<const uint32_t> c = other.Next(1000);
    EXPECT_TRUE(std::equal(a.begin(), a.end(), b.begin(), b.end()));
    EXPECT_FALSE(std::equal(a.begin(), a.end(), c.begin(), c.end()));
  }
}

}  // namespace
}  // namespace kvrun
