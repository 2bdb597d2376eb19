// The rules of what is kept, on examples by hand, and shares beside what defines them.
#include "runtime/kv/math/keep_rule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "platform/base/random.h"

namespace kvrun {
namespace {

using Shares = std::vector<uint32_t>;

const KeepRule& RuleOf(std::string_view name) { return **FindKeepRule(name); }

std::vector<float> ScoresOf(std::string_view name, const KeptView& view, size_t n) {
  std::vector<float> scores(n, -1.0F);
  RuleOf(name).score(view, scores);
  return scores;
}

// What rows of weights of one query head give to n entries: first moments, as a device gathers them.
std::vector<float> Gather(const MassForm& form, const std::vector<std::vector<float>>& rows, size_t n) {
  std::vector<float> mass(n);
  for (const std::vector<float>& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) {
      if (form.rows == MassForm::Rows::kAdd) mass[i] += row[i];
      if (form.rows == MassForm::Rows::kLargest) mass[i] = std::max(mass[i], row[i]);
      if (form.rows == MassForm::Rows::kReplace) mass[i] = row[i];
    }
  }
  return mass;
}

uint32_t SumOf(const Shares& shares) { return std::accumulate(shares.begin(), shares.end(), 0U); }

std::vector<float> RandomScores(Random& random, size_t n, uint32_t n_values) {
  std::vector<float> scores(n);
  for (float& score : scores) score = static_cast<float>(random.Below(n_values)) / 8.0F;
  return scores;
}

TEST(KeepRule, AnUnknownNameIsAnsweredWithTheKnown) {
  for (const KeepRule& rule : KeepRules()) EXPECT_EQ(*FindKeepRule(rule.name), &rule);
  const auto unknown = FindKeepRule("H2O");
  ASSERT_FALSE(unknown.ok());
  EXPECT_EQ(unknown.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(unknown.status().message(),
            "unknown keep rule 'H2O'; known: h2o, snapkv, defensivekv, lazyeviction, arkv");
}

// Entry 0 was seen by all rows, entry 1 by two, which gave it more each; sums say 1.75, 1.0 and 0.25. Then a
// step gives entry 2 all.
TEST(KeepRule, H2oAddsUpAllRows) {
  const KeepRule& rule = RuleOf("h2o");
  std::vector<float> mass = Gather(rule.prompt_form, {{1.0F}, {0.5F, 0.5F}, {0.25F, 0.5F, 0.25F}}, 3);
  std::vector<float> scores = ScoresOf("h2o", {.mass = mass}, 3);
  EXPECT_EQ(scores, (std::vector<float>{1.75F, 1.0F, 0.25F}));
  EXPECT_EQ(LargestScores(scores, 2), (Shares{0, 1}));
  EXPECT_EQ(rule.step_form.rows, MassForm::Rows::kAdd);
  mass[2] += 1.0F;
  scores = ScoresOf("h2o", {.mass = mass}, 3);
  EXPECT_EQ(LargestScores(scores, 2), (Shares{0, 2}));
  EXPECT_FALSE(rule.observes_last_rows);
  EXPECT_TRUE(rule.evicts_prompt);
  EXPECT_EQ(rule.evicted_percent, 0U);
  EXPECT_EQ(rule.pool_entries, 1U);
}

// Two rows give entry 4 0.8 in all, entry 20 0.7; of what the worst row asks for, entry 20 has more.
// Neighbours of what stays, three on each side, stay with it.
TEST(KeepRule, SnapKvGoesByTheSumAndDefensiveKvByTheWorstRow) {
  std::vector<std::vector<float>> rows(2, std::vector<float>(24));
  rows[0][4] = 0.4F;
  rows[1][4] = 0.4F;
  rows[0][20] = 0.6F;
  rows[1][20] = 0.1F;
  for (const auto& [name, first] : {std::pair("snapkv", 1U), std::pair("defensivekv", 17U)}) {
    const KeepRule& rule = RuleOf(name);
    EXPECT_TRUE(rule.observes_last_rows && !rule.evicts_prompt) << name;
    const std::vector<float> mass = Gather(rule.prompt_form, rows, 24);
    std::vector<float> scores = ScoresOf(name, {.mass = mass}, 24);
    PoolLargest(rule.pool_entries, scores);
    EXPECT_EQ(LargestScores(scores, 7),
              (Shares{first, first + 1, first + 2, first + 3, first + 4, first + 5, first + 6}))
        << name;
  }
}

// Entries were last seen 0, 10, 10 and 16 rows ago and came back after 0, 0, 4 and 15 rows at most: 1 / (1 +
// 0 / 1), 1 / (1 + 10 / 1), 1 / (1 + 10 / 5) and 1 / (1 + 16 / 16).
TEST(KeepRule, LazyEvictionKeepsWhatComesBackAfterLong) {
  constexpr std::array<uint32_t, 4> kSeen = {20, 10, 10, 4};
  constexpr std::array<uint32_t, 4> kGaps = {0, 0, 4, 15};
  const std::vector<float> scores =
      ScoresOf("lazyeviction", {.seen_at = kSeen, .longest_gap = kGaps, .now = 20}, 4);
  EXPECT_FLOAT_EQ(scores[0], 1.0F);
  EXPECT_FLOAT_EQ(scores[1], 1.0F / 11);
  EXPECT_FLOAT_EQ(scores[2], 1.0F / 3);
  EXPECT_FLOAT_EQ(scores[3], 0.5F);
  const KeepRule& rule = RuleOf("lazyeviction");
  EXPECT_TRUE(rule.tracks_recurrence);
  EXPECT_EQ(rule.evicted_percent, 10U);
  EXPECT_EQ(rule.step_form.rows, MassForm::Rows::kReplace);
  EXPECT_NE(rule.prompt_form.rows, MassForm::Rows::kReplace);  // AttentionMass has no such form
}

// However long ago: of what was seen as long ago, that with the longer gap; with the same gap, the later.
TEST(KeepRule, LazyEvictionHasAnOrderInLongContexts) {
  constexpr std::array<uint32_t, 4> kSeen = {1000, 1000, 0, 999};
  constexpr std::array<uint32_t, 4> kGaps = {1, 0, 0, 0};
  const std::vector<float> scores =
      ScoresOf("lazyeviction", {.seen_at = kSeen, .longest_gap = kGaps, .now = 131000}, 4);
  EXPECT_GT(scores[0], scores[1]);
  EXPECT_GT(scores[1], scores[3]);
  EXPECT_GT(scores[3], scores[2]);
  EXPECT_GT(scores[2], 0.0F);
}

// Three weights of 0.2: mean 0.2, no variance. 0, 0.2 and 0.4: mean 0.2, mean square 0.2 / 3, variance 0.08 /
// 3, times 263.81. One row of 0.5 alone: its mean. None: 0.
TEST(KeepRule, ArkvKeepsWhatVaries) {
  constexpr std::array<float, 4> kMass = {0.6F, 0.6F, 0.5F, 0.0F};
  constexpr std::array<float, 4> kSquares = {0.12F, 0.2F, 0.25F, 0.0F};
  constexpr std::array<uint32_t, 4> kRows = {3, 3, 1, 0};
  const std::vector<float> scores =
      ScoresOf("arkv", {.mass = kMass, .squares = kSquares, .n_rows = kRows}, 4);
  EXPECT_NEAR(scores[0], 0.2, 1e-5);
  EXPECT_NEAR(scores[1], 0.2 + 263.81 * 0.08 / 3, 1e-5);
  EXPECT_NEAR(scores[2], 0.5, 1e-5);
  EXPECT_EQ(scores[3], 0.0F);
  const KeepRule& rule = RuleOf("arkv");
  EXPECT_TRUE(rule.prompt_form.n_moments == 2 && rule.step_form.n_moments == 2);
  EXPECT_TRUE(rule.observes_last_rows);
  EXPECT_EQ(rule.evicted_percent, 25U);
}

// Entries that no row could see, and what a model that overflowed gives.
TEST(KeepRule, ScoresAreFiniteWhateverThereIs) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kMost = std::numeric_limits<float>::max();
  const std::vector<float> mass = {0.0F, std::nanf(""), kInfinity, -kInfinity, kMost, 1.0F, 1e-45F};
  const std::vector<float> squares = {kMost, 0.0F, std::nanf(""), kInfinity, kMost, kMost, 1e-45F};
  constexpr uint32_t kLatest = std::numeric_limits<uint32_t>::max();
  const std::vector<uint32_t> times = {0, 1, kLatest, 2, kLatest - 1, 3, 4};
  for (const uint32_t n : {0U, 1U, kLatest}) {
    const std::vector<uint32_t> n_rows(mass.size(), n);
    for (const KeepRule& rule : KeepRules()) {
      std::vector<float> scores(mass.size(), std::nanf(""));
      rule.score({.positions = times,
                  .mass = mass,
                  .squares = squares,
                  .n_rows = n_rows,
                  .seen_at = times,
                  .longest_gap = times,
                  .now = kLatest},
                 scores);
      for (const float score : scores) EXPECT_TRUE(std::isfinite(score)) << rule.name << " " << score;
    }
  }
  for (const KeepRule& rule : KeepRules()) rule.score({}, {});
}

TEST(KeepRule, AViewMustHaveWhatTheRuleLooksAt) {
  std::vector<float> scores(2);
  const std::vector<float> mass(2);
  const std::vector<uint32_t> rows = {1, 2};
  EXPECT_DEATH(RuleOf("h2o").score({}, scores), "mass");
  EXPECT_DEATH(RuleOf("arkv").score({.mass = mass, .n_rows = rows}, scores), "squares");
  EXPECT_DEATH(RuleOf("lazyeviction").score({.mass = mass, .seen_at = rows, .now = 2}, scores),
               "longest_gap");
  const KeptView later = {.seen_at = rows, .longest_gap = rows, .now = 1};
  EXPECT_DEATH(RuleOf("lazyeviction").score(later, scores), "now");
}

TEST(KeepRulePool, TheLargestOfNeighbours) {
  std::vector<float> scores = {1, 4, 2, 2, 9};
  PoolLargest(1, scores);
  EXPECT_EQ(scores, (std::vector<float>{1, 4, 2, 2, 9}));
  PoolLargest(3, scores);
  EXPECT_EQ(scores, (std::vector<float>{4, 4, 4, 9, 9}));
  PoolLargest(4294967295U, scores);
  EXPECT_EQ(scores, (std::vector<float>(5, 9.0F)));
  PoolLargest(7, {});
  EXPECT_DEATH(PoolLargest(6, scores), "pool_entries");
  EXPECT_DEATH(PoolLargest(0, scores), "pool_entries");
}

TEST(KeepRuleSelection, OfEqualScoresTheNewerStay) {
  const std::vector<float> scores = {2, 1, 2, 1, 1, 3};
  EXPECT_EQ(LargestScores(scores, 0), Shares{});
  EXPECT_EQ(LargestScores(scores, 2), (Shares{2, 5}));
  EXPECT_EQ(LargestScores(scores, 4), (Shares{0, 2, 4, 5}));
  EXPECT_EQ(LargestScores(scores, 9), (Shares{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(LargestScores({}, 3), Shares{});
  const std::vector<float> broken = {std::nanf(""), 1, std::nanf(""), -5};
  EXPECT_EQ(LargestScores(broken, 3), (Shares{1, 2, 3}));
}

// No entry that stays is worse than one that does not: by score, then by age.
TEST(KeepRuleSelection, IsThatOfAStableOrder) {
  Random random(11);
  for (int round = 0; round < 300; ++round) {
    const std::vector<float> scores = RandomScores(random, random.Below(40), 1 + random.Below(12));
    const uint32_t n = random.Below(45);
    Shares all(scores.size());
    std::iota(all.rbegin(), all.rend(), 0U);
    std::stable_sort(all.begin(), all.end(), [&](uint32_t a, uint32_t b) { return scores[a] > scores[b]; });
    all.resize(std::min<size_t>(n, all.size()));
    std::sort(all.begin(), all.end());
    EXPECT_EQ(LargestScores(scores, n), all) << "round " << round;
  }
}

// The four largest are 9, 8 and 7 of one head and 3 of the other. With a floor of half of an equal share:
// half of 3 and of 1, and 0.5 * 2 each, 2.5 and 1.5; the earlier has the fourth.
TEST(KeepRuleHeads, TheLargestOfAllHeadsDecide) {
  const std::vector<float> scores = {9, 8, 7, 1, /**/ 2, 3, 0, 0};
  EXPECT_EQ(AdaptiveHeadShares(scores, 2, 4, 0.0), (Shares{3, 1}));
  EXPECT_EQ(AdaptiveHeadShares(scores, 2, 4, 0.2), (Shares{3, 1}));
  EXPECT_EQ(AdaptiveHeadShares(scores, 2, 4, 0.5), (Shares{3, 1}));
  EXPECT_EQ(AdaptiveHeadShares(scores, 2, 4, 0.6), (Shares{2, 2}));  // 2.4 and 1.6
  EXPECT_EQ(AdaptiveHeadShares(scores, 2, 4, 1.0), (Shares{2, 2}));
  EXPECT_EQ(AdaptiveHeadShares(scores, 2, 0, 0.2), (Shares{0, 0}));
  EXPECT_EQ(AdaptiveHeadShares(scores, 2, 100, 0.2), (Shares{4, 4}));
  EXPECT_EQ(AdaptiveHeadShares({}, 2, 100, 0.2), (Shares{0, 0}));
}

// One head has all that is large: of ten entries the floor leaves two to each of the others, 0.2 * 10.
TEST(KeepRuleHeads, TheFloorIsEveryHeads) {
  std::vector<float> scores(3 * 30);
  std::fill_n(scores.begin() + 30, 30, 1.0F);
  EXPECT_EQ(AdaptiveHeadShares(scores, 3, 30, 0.0), (Shares{0, 30, 0}));
  EXPECT_EQ(AdaptiveHeadShares(scores, 3, 30, 0.2), (Shares{2, 26, 2}));
}

TEST(KeepRuleHeads, HeadsThatAreAlikeHaveEqualShares) {
  EXPECT_EQ(AdaptiveHeadShares(std::vector<float>(4 * 9), 4, 20, 0.2), (Shares{5, 5, 5, 5}));
  EXPECT_EQ(AdaptiveHeadShares(std::vector<float>(4 * 9), 4, 22, 0.0), (Shares{6, 6, 5, 5}));
}

TEST(KeepRuleHeads, SharesAddUpAndKeepTheirBounds) {
  Random random(12);
  for (int round = 0; round < 500; ++round) {
    const uint32_t n_heads = 1 + random.Below(9);
    const uint32_t n = random.Below(20);
    const std::vector<float> scores = RandomScores(random, size_t{n_heads} * n, 1 + random.Below(50));
    const uint32_t total = random.Below(n_heads * n + 10);
    const double floor_share = random.Below(11) / 10.0;
    const Shares shares = AdaptiveHeadShares(scores, n_heads, total, floor_share);
    ASSERT_EQ(shares.size(), n_heads);
    const uint32_t expected = std::min(total, n_heads * n);
    EXPECT_EQ(SumOf(shares), expected);
    for (const uint32_t share : shares) {
      EXPECT_LE(share, n);
      EXPECT_GE(share, std::floor(floor_share * expected / n_heads)) << "round " << round;
    }
    if (floor_share != 0.0) continue;
    // What is kept is what all heads together would keep: no head's share leaves out a larger score.
    std::vector<float> kept;
    for (uint32_t head = 0; head < n_heads; ++head) {
      const auto own = std::span(scores).subspan(size_t{head} * n, n);
      for (const uint32_t i : LargestScores(own, shares[head])) kept.push_back(own[i]);
    }
    std::vector<float> sorted = scores;
    std::sort(sorted.rbegin(), sorted.rend());
    sorted.resize(expected);
    std::sort(kept.rbegin(), kept.rend());
    EXPECT_EQ(kept, sorted) << "round " << round;
  }
  EXPECT_DEATH((void)AdaptiveHeadShares(std::vector<float>(7), 2, 3, 0.2), "n_heads");
  EXPECT_DEATH((void)AdaptiveHeadShares(std::vector<float>(8), 0, 3, 0.2), "n_heads");
  EXPECT_DEATH((void)AdaptiveHeadShares(std::vector<float>(8), 2, 3, 1.5), "floor_share");
}

// 0.75 and 0.25: (0.75 ln 4/3 + 0.25 ln 4) / ln 2 = 0.811278.
TEST(KeepRuleLayers, EntropyOfScores) {
  EXPECT_NEAR(ScoreEntropy(std::vector<float>(7, 0.3F)), 1.0, 1e-12);
  EXPECT_NEAR(ScoreEntropy(std::vector<float>{1, 0, 1, 0}), 0.5, 1e-12);
  EXPECT_NEAR(ScoreEntropy(std::vector<float>{6, 2}), 0.811278, 1e-6);
  EXPECT_EQ(ScoreEntropy(std::vector<float>{0, 5, 0}), 0.0);
  EXPECT_EQ(ScoreEntropy(std::vector<float>{0, 0, 0}), 0.0);
  EXPECT_EQ(ScoreEntropy(std::vector<float>{2}), 0.0);
  EXPECT_EQ(ScoreEntropy({}), 0.0);
  EXPECT_NEAR(ScoreEntropy(std::vector<float>{1, std::nanf(""), 1, -3}), 0.5, 1e-12);
  for (const size_t n : {3U, 1000U, 100000U}) {
    EXPECT_LE(ScoreEntropy(std::vector<float>(n, 0.1F)), 1.0) << n;
  }
}

Shares ShareLayers(const std::vector<double>& weights, uint32_t total, uint32_t least, uint32_t most) {
  auto shares = LayerShares(weights, total, least, most);
  EXPECT_TRUE(shares.ok()) << shares.status().message();
  return shares.ok() ? *shares : Shares{};
}

// Ten by 3, 5 and 6 of 14: 2.14, 3.57 and 4.29; what rounding down leaves is the second's. Ten thirds: the
// first has one more. Of 20 by 1, 1 and 8 the third would have 16 and may have 10: the others have 5 each,
// though by weight alone, 2, they would be below least.
TEST(KeepRuleLayers, SharesAreInProportionWithinBounds) {
  EXPECT_EQ(ShareLayers({1, 2, 3}, 12, 0, 12), (Shares{2, 4, 6}));
  EXPECT_EQ(ShareLayers({3, 5, 6}, 10, 0, 10), (Shares{2, 4, 4}));
  EXPECT_EQ(ShareLayers({0.1, 0.1, 0.1}, 10, 0, 10), (Shares{4, 3, 3}));
  EXPECT_EQ(ShareLayers({1, 1, 8}, 20, 3, 10), (Shares{5, 5, 10}));
  EXPECT_EQ(ShareLayers({1, 9, 10}, 20, 4, 20), (Shares{4, 8, 8}));  // 9 and 10 of 19, of 16: 7.58 and 8.42
  EXPECT_EQ(ShareLayers({0, 0, 0}, 7, 1, 7), (Shares{3, 2, 2}));
  EXPECT_EQ(ShareLayers({0, 5, 0}, 12, 1, 6), (Shares{3, 6, 3}));
  EXPECT_EQ(ShareLayers({0, 5, 0}, 12, 1, 20), (Shares{1, 10, 1}));
  EXPECT_EQ(ShareLayers({0.5e308, 1.5e308}, 8, 0, 8), (Shares{2, 6}));
  EXPECT_EQ(ShareLayers({1e-310, 1e300}, 5, 1, 5), (Shares{1, 4}));
  EXPECT_EQ(ShareLayers({}, 0, 3, 5), Shares{});
  EXPECT_EQ(ShareLayers({2, 1}, 4294967295U, 0, 4294967295U), (Shares{2863311530U, 1431655765U}));
}

TEST(KeepRuleLayers, ATotalThatBoundsExcludeIsRefused) {
  const std::vector<double> weights = {1, 2, 3};
  const auto small = LayerShares(weights, 11, 4, 9);
  ASSERT_FALSE(small.ok());
  EXPECT_EQ(small.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(small.status().message(),
            "11 entries are too few for 3 layers of at least 4 each: give room for 12");
  const auto large = LayerShares(weights, 28, 4, 9);
  ASSERT_FALSE(large.ok());
  EXPECT_EQ(large.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(large.status().message(),
            "3 layers of at most 9 entries each cannot have 28 entries: share 27 at most");
  EXPECT_FALSE(LayerShares(weights, 9, 4, 2).ok());
  EXPECT_FALSE(LayerShares({}, 1, 0, 5).ok());
  EXPECT_FALSE(LayerShares(std::vector<double>(4, 1.0), 1, 1U << 31, 1U << 31).ok());
  EXPECT_DEATH((void)LayerShares(std::vector<double>{1, -1}, 5, 0, 5), "weight");
  EXPECT_DEATH((void)LayerShares(std::vector<double>{std::nan(""), 1}, 5, 0, 5), "weight");
}

// The factor that all shares have in common, within bounds, by bisection.
std::vector<double> SharesByBisection(const std::vector<double>& weights, double total, double least,
                                      double most) {
  double low = 0.0;
  double high = 1e9;
  std::vector<double> shares(weights.size());
  for (int i = 0; i < 200; ++i) {
    const double factor = (low + high) / 2;
    double sum = 0.0;
    for (size_t k = 0; k < weights.size(); ++k) {
      sum += shares[k] = std::clamp(factor * weights[k], least, most);
    }
    (sum < total ? low : high) = factor;
  }
  return shares;
}

TEST(KeepRuleLayers, SharesAreWithinOneOfTheExact) {
  Random random(13);
  for (int round = 0; round < 1000; ++round) {
    std::vector<double> weights(1 + random.Below(40));
    for (double& weight : weights) weight = 1 + random.Below(1U << random.Below(16));
    const auto n = static_cast<uint32_t>(weights.size());
    const uint32_t least = random.Below(30);
    const uint32_t most = least + random.Below(300);
    const uint32_t total = n * least + random.Below(n * (most - least) + 1);
    const Shares shares = ShareLayers(weights, total, least, most);
    ASSERT_EQ(shares.size(), n);
    EXPECT_EQ(SumOf(shares), total);
    EXPECT_EQ(ShareLayers(weights, total, least, most), shares);
    const std::vector<double> exact = SharesByBisection(weights, total, least, most);
    double smallest_up = 1.0;
    double largest_down = 0.0;
    for (uint32_t i = 0; i < n; ++i) {
      EXPECT_GE(shares[i], least);
      EXPECT_LE(shares[i], most);
      ASSERT_NEAR(shares[i], exact[i], 1.0) << "round " << round;
      if (shares[i] > exact[i] + 1e-4) smallest_up = std::min(smallest_up, exact[i] + 1 - shares[i]);
      if (shares[i] < exact[i] - 1e-4) largest_down = std::max(largest_down, exact[i] - shares[i]);
    }
    // Largest remainder: whoever is rounded up has the larger fraction.
    EXPECT_GE(smallest_up, largest_down - 1e-4) << "round " << round;
  }
}

}  // namespace
}  // namespace kvrun
