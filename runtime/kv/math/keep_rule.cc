// The rules: a function each, and a row of the table; and who has how much of a budget.
#include "runtime/kv/math/keep_rule.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>

#include "platform/base/check.h"
#include "runtime/kv/math/layer_attention.h"

namespace kvrun {
namespace {

// What a model that overflowed gave is no number: it counts as nothing, so that scores have an order.
float FiniteScore(double score) {
  constexpr double kMost = std::numeric_limits<float>::max();
  return std::isfinite(score) ? static_cast<float>(std::clamp(score, -kMost, kMost)) : 0.0F;
}

void ScoreMass(const KeptView& view, std::span<float> scores) {
  KVRUN_CHECK(view.mass.size() == scores.size());
  for (size_t i = 0; i < scores.size(); ++i) scores[i] = FiniteScore(view.mass[i]);
}

// What was last seen long ago, beside the longest time after which it has come back yet, does not come back.
// 1 / (1 + x) falls as exp(-x) does, but that is 0 for all that was not seen for a hundred times its gap: in
// a long context that is most entries, and they would have no order.
void ScoreRecurrence(const KeptView& view, std::span<float> scores) {
  KVRUN_CHECK(view.seen_at.size() == scores.size() && view.longest_gap.size() == scores.size());
  for (size_t i = 0; i < scores.size(); ++i) {
    KVRUN_CHECK(view.seen_at[i] <= view.now);
    const double gap = view.longest_gap[i] + 1.0;
    scores[i] = FiniteScore(gap / (gap + (view.now - view.seen_at[i])));
  }
}

void ScoreHeavyHitters(const KeptView& view, std::span<float> scores) {
  KVRUN_CHECK(view.mass.size() == scores.size() && view.squares.size() == scores.size() &&
              view.n_rows.size() == scores.size());
  for (size_t i = 0; i < scores.size(); ++i) {
    scores[i] =
        FiniteScore(HeavyHitterScore(view.mass[i], view.squares[i], view.n_rows[i], ArkvConstants().gamma));
  }
}

constexpr MassForm kSums = {1, MassForm::Heads::kMean, MassForm::Rows::kAdd};
constexpr MassForm kSumsOfTwo = {2, MassForm::Heads::kMean, MassForm::Rows::kAdd};
constexpr MassForm kLargestRow = {1, MassForm::Heads::kMean, MassForm::Rows::kLargest};
constexpr MassForm kLastRow = {1, MassForm::Heads::kMean, MassForm::Rows::kReplace};

constexpr uint32_t kArkvEvictedPercent = 25;
static_assert(kArkvEvictedPercent == 100 - 100 * ArkvConstants().slack);

constexpr std::array kRules = {
    KeepRule{.name = "h2o",
             .prompt_form = kSums,
             .step_form = kSums,
             .observes_last_rows = false,
             .score = ScoreMass},
    // It compresses prompts alone: what is generated and finds no room goes oldest first.
    KeepRule{.name = "snapkv",
             .prompt_form = kSums,
             .step_form = kSums,
             .pool_entries = 7,
             .evicts_prompt = false,
             .score = ScoreMass},
    // From its abstract: the worst case takes the place of the mean over rows. What else is in its two steps
    // the abstract does not say. (Its authors' code takes the largest of a group's query heads, too, raises
    // all scores to at least their head's mean, and weighs them with what values are worth.)
    KeepRule{.name = "defensivekv",
             .prompt_form = kLargestRow,
             .step_form = kLargestRow,
             .pool_entries = 7,
             .evicts_prompt = false,
             .score = ScoreMass},
    // From its abstract, which has no formula: evictions lag, the times after which an entry comes back are
    // tracked, and the longest of them decides. The score, the lag of a tenth and kRecurrenceWeight are
    // kvrun's own. Of a prompt's rows the largest says whether any of them needed the entry; their sum
    // would not.
    KeepRule{.name = "lazyeviction",
             .prompt_form = kLargestRow,
             .step_form = kLastRow,
             .evicted_percent = 10,
             .tracks_recurrence = true,
             .score = ScoreRecurrence},
    KeepRule{.name = "arkv",
             .prompt_form = kSumsOfTwo,
             .step_form = kSumsOfTwo,
             .evicted_percent = kArkvEvictedPercent,
             .score = ScoreHeavyHitters},
};

// The n best of n_items, in no order. is_better: a strict order of all of them.
template <typename Order>
std::vector<uint32_t> BestItems(size_t n_items, uint32_t n, Order is_better) {
  KVRUN_CHECK(n_items <= std::numeric_limits<uint32_t>::max());
  std::vector<uint32_t> items(n_items);
  std::iota(items.begin(), items.end(), 0U);
  if (n < n_items) {
    std::nth_element(items.begin(), items.begin() + n, items.end(), is_better);
    items.resize(n);
  }
  return items;
}

// What is no number is the least of all, so that there is an order even where a rule was not asked.
float Ordered(float score) { return std::isnan(score) ? -std::numeric_limits<float>::infinity() : score; }

// Whole numbers that add up to total, as `exact` does: rounded down, and what is left goes to the largest
// fractions, of equal ones to the earlier. None exceeds most.
std::vector<uint32_t> WholeShares(std::span<const double> exact, uint32_t total, uint32_t most) {
  // Fractions that differ by rounding alone are equal, on every processor.
  constexpr uint32_t kFractionBits = 20;
  std::vector<uint64_t> fractions;
  std::vector<uint32_t> shares;
  uint64_t sum = 0;
  for (const double value : exact) {
    const auto units = static_cast<uint64_t>(std::llround(std::ldexp(std::max(value, 0.0), kFractionBits)));
    fractions.push_back(units & ((1U << kFractionBits) - 1));
    shares.push_back(static_cast<uint32_t>(std::min<uint64_t>(units >> kFractionBits, most)));
    sum += shares.back();
  }
  KVRUN_CHECK(sum <= total && total <= uint64_t{most} * shares.size());
  std::vector<uint32_t> order(shares.size());
  std::iota(order.begin(), order.end(), 0U);
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return fractions[a] > fractions[b]; });
  while (sum < total) {
    for (const uint32_t i : order) {
      if (sum == total || shares[i] == most) continue;
      ++shares[i];
      ++sum;
    }
  }
  return shares;
}

// In proportion to weights, but for what would be less than least or more than most and so is that: with one
// factor for all, each is the factor times its weight, as far as bounds let it. They add up to total.
// As long as shares overstep bounds, those that overstep the side that matters more are fixed there, for
// good: Bitran and Hax, Management Science 27 (1981).
std::vector<double> BoundedShares(std::span<const double> weights, double total, double least, double most) {
  std::vector<double> shares(weights.size());
  std::vector<bool> is_fixed(weights.size());
  for (;;) {
    double left = total;
    double weight = 0.0;
    size_t n_free = 0;
    for (size_t i = 0; i < weights.size(); ++i) {
      if (is_fixed[i]) {
        left -= shares[i];
      } else {
        weight += weights[i];
        ++n_free;
      }
    }
    double excess = 0.0;
    double deficit = 0.0;
    for (size_t i = 0; i < weights.size(); ++i) {
      if (is_fixed[i]) continue;
      shares[i] = weight > 0.0 ? left * (weights[i] / weight) : left / static_cast<double>(n_free);
      excess += std::max(shares[i] - most, 0.0);
      deficit += std::max(least - shares[i], 0.0);
    }
    if (excess == 0.0 && deficit == 0.0) return shares;
    for (size_t i = 0; i < weights.size(); ++i) {
      const bool oversteps =
          (excess >= deficit && shares[i] > most) || (deficit >= excess && shares[i] < least);
      if (is_fixed[i] || !oversteps) continue;
      shares[i] = std::clamp(shares[i], least, most);
      is_fixed[i] = true;
    }
  }
}

}  // namespace

std::span<const KeepRule> KeepRules() { return kRules; }

Result<const KeepRule*> FindKeepRule(std::string_view name) {
  std::string known;
  for (const KeepRule& rule : kRules) {
    if (rule.name == name) return &rule;
    if (!known.empty()) known += ", ";
    known += rule.name;
  }
  return Status(StatusCode::kInvalidArgument, fmt::format("unknown keep rule '{}'; known: {}", name, known));
}

void PoolLargest(uint32_t pool_entries, std::span<float> scores) {
  KVRUN_CHECK(pool_entries % 2 == 1);
  const size_t reach = pool_entries / 2;
  if (reach == 0) return;
  const std::vector<float> own(scores.begin(), scores.end());
  for (size_t i = 0; i < own.size(); ++i) {
    const size_t begin = i - std::min(i, reach);
    const size_t end = std::min(i + reach + 1, own.size());
    scores[i] = *std::max_element(own.begin() + begin, own.begin() + end);
  }
}

std::vector<uint32_t> LargestScores(std::span<const float> scores, uint32_t n) {
  std::vector<uint32_t> largest = BestItems(scores.size(), n, [&](uint32_t a, uint32_t b) {
    const float score_a = Ordered(scores[a]);
    const float score_b = Ordered(scores[b]);
    return score_a != score_b ? score_a > score_b : a > b;
  });
  std::sort(largest.begin(), largest.end());
  return largest;
}

std::vector<uint32_t> AdaptiveHeadShares(std::span<const float> scores, uint32_t n_heads, uint32_t total,
                                         double floor_share) {
  KVRUN_CHECK(n_heads > 0 && scores.size() % n_heads == 0);
  KVRUN_CHECK(floor_share >= 0.0 && floor_share <= 1.0);
  const size_t n = scores.size() / n_heads;
  total = static_cast<uint32_t>(std::min<size_t>(total, scores.size()));
  // Of equal scores the newer, whichever its head: heads that are alike have equal shares.
  const std::vector<uint32_t> largest = BestItems(scores.size(), total, [&](uint32_t a, uint32_t b) {
    const float score_a = Ordered(scores[a]);
    const float score_b = Ordered(scores[b]);
    if (score_a != score_b) return score_a > score_b;
    return a % n != b % n ? a % n > b % n : a < b;
  });
  std::vector<uint32_t> counts(n_heads);
  for (const uint32_t i : largest) ++counts[i / n];
  std::vector<double> shares;
  for (const uint32_t count : counts) {
    shares.push_back((1.0 - floor_share) * count + floor_share * total / n_heads);
  }
  return WholeShares(shares, total, static_cast<uint32_t>(n));
}

double ScoreEntropy(std::span<const float> scores) {
  double sum = 0.0;
  for (const float score : scores) sum += std::max(FiniteScore(score), 0.0F);
  if (scores.size() < 2 || sum == 0.0) return 0.0;
  double entropy = 0.0;
  for (const float score : scores) {
    const double share = std::max(FiniteScore(score), 0.0F) / sum;
    if (share > 0.0) entropy -= share * std::log(share);
  }
  return std::clamp(entropy / std::log(static_cast<double>(scores.size())), 0.0, 1.0);
}

Result<std::vector<uint32_t>> LayerShares(std::span<const double> weights, uint32_t total, uint32_t least,
                                          uint32_t most) {
  const size_t n_layers = weights.size();
  if (total < n_layers * uint64_t{least}) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("{} entries are too few for {} layers of at least {} each: give room for {}",
                              total, n_layers, least, n_layers * uint64_t{least}));
  }
  if (total > n_layers * uint64_t{most}) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("{} layers of at most {} entries each cannot have {} entries: share {} at most",
                              n_layers, most, total, n_layers * uint64_t{most}));
  }
  double largest = 0.0;
  for (const double weight : weights) {
    KVRUN_CHECK(std::isfinite(weight) && weight >= 0.0);
    largest = std::max(largest, weight);
  }
  // Sums of what is at most 1 do not overflow.
  std::vector<double> relative(weights.begin(), weights.end());
  for (double& weight : relative) weight = largest > 0.0 ? weight / largest : 1.0;
  return WholeShares(BoundedShares(relative, total, least, most), total, most);
}

}  // namespace kvrun
