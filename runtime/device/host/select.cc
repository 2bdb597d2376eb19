// Chooses the groups with the largest scores: finds the smallest chosen score by bisection (some twenty
// passes over the scores, which are few and read at a vector a cycle), then writes what is above it. Where a
// share of all scores' sum may end the choice, what is above a score is also summed, always in the same
// order: a larger one then never has a larger sum.
#include "runtime/device/instruction_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/device/host/select.cc"
#include <hwy/foreach_target.h>
// What is compiled for each target may use these.
#include <hwy/highway.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "runtime/device/host/score.h"

HWY_BEFORE_NAMESPACE();
namespace kvrun::host::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// Floats as whole numbers of the same order, and back.
int32_t KeyOf(float score) {
  const auto bits = std::bit_cast<int32_t>(score);
  return bits ^ ((bits >> 31) & 0x7fffffff);
}
float ScoreOf(int32_t key) { return std::bit_cast<float>(key ^ ((key >> 31) & 0x7fffffff)); }

struct Range {
  float smallest;
  float largest;
};

Range FindRange(const float* scores, size_t n) {
  const hn::ScalableTag<float> d;
  const size_t lanes = hn::Lanes(d);
  auto smallest = hn::Set(d, scores[0]);
  auto largest = smallest;
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto v = hn::LoadU(d, scores + i);
    smallest = hn::Min(smallest, v);
    largest = hn::Max(largest, v);
  }
  Range range{hn::GetLane(hn::MinOfLanes(d, smallest)), hn::GetLane(hn::MaxOfLanes(d, largest))};
  for (; i < n; ++i) {
    range.smallest = std::min(range.smallest, scores[i]);
    range.largest = std::max(range.largest, scores[i]);
  }
  return range;
}

// Scores of at least `limit`.
size_t CountFrom(const float* scores, size_t n, float limit) {
  const hn::ScalableTag<float> d;
  const hn::RebindToSigned<decltype(d)> di;
  const size_t lanes = hn::Lanes(d);
  const auto limits = hn::Set(d, limit);
  auto count0 = hn::Zero(di);  // minus the counts: a mask's lanes are -1
  auto count1 = hn::Zero(di);
  size_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    count0 =
        hn::Add(count0, hn::VecFromMask(di, hn::RebindMask(di, hn::Ge(hn::LoadU(d, scores + i), limits))));
    count1 = hn::Add(
        count1, hn::VecFromMask(di, hn::RebindMask(di, hn::Ge(hn::LoadU(d, scores + i + lanes), limits))));
  }
  auto count = static_cast<size_t>(-hn::GetLane(hn::SumOfLanes(di, hn::Add(count0, count1))));
  for (; i < n; ++i) count += scores[i] >= limit ? 1 : 0;
  return count;
}

// Groups, and the sum of their scores.
struct Mass {
  size_t count = 0;
  double sum = 0.0;
};

// Of scores of at least `limit`. Vectors of floats are summed in blocks, so that errors stay small.
Mass MassFrom(const float* scores, size_t n, float limit) {
  constexpr size_t kBlock = 2048;
  const hn::ScalableTag<float> d;
  const hn::RebindToSigned<decltype(d)> di;
  const size_t lanes = hn::Lanes(d);
  const auto limits = hn::Set(d, limit);
  auto count0 = hn::Zero(di);  // minus the counts, as above
  auto count1 = hn::Zero(di);
  const auto add = [&](const float* from, auto& sum, auto& count) HWY_ATTR {
    const auto v = hn::LoadU(d, from);
    const auto does_reach = hn::Ge(v, limits);
    sum = hn::Add(sum, hn::IfThenElseZero(does_reach, v));
    count = hn::Add(count, hn::VecFromMask(di, hn::RebindMask(di, does_reach)));
  };
  Mass mass;
  size_t i = 0;
  while (i + 4 * lanes <= n) {
    const size_t block_end = std::min(n, i + kBlock);
    auto sum0 = hn::Zero(d), sum1 = hn::Zero(d), sum2 = hn::Zero(d), sum3 = hn::Zero(d);
    for (; i + 4 * lanes <= block_end; i += 4 * lanes) {
      add(scores + i, sum0, count0);
      add(scores + i + lanes, sum1, count1);
      add(scores + i + 2 * lanes, sum2, count0);
      add(scores + i + 3 * lanes, sum3, count1);
    }
    mass.sum += hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(sum0, sum1), hn::Add(sum2, sum3))));
  }
  mass.count = static_cast<size_t>(-hn::GetLane(hn::SumOfLanes(di, hn::Add(count0, count1))));
  for (; i < n; ++i) {
    mass.count += scores[i] >= limit ? 1 : 0;
    mass.sum += scores[i] >= limit ? scores[i] : 0.0F;
  }
  return mass;
}

// Writes the first n_wanted of the groups from `begin` on that score at least `limit`, but only n_ties of
// those that score just that.
void Write(const float* scores, size_t begin, size_t end, float limit, size_t n_ties, size_t n_wanted,
           uint32_t* to) {
  const hn::ScalableTag<float> d;
  const size_t lanes = hn::Lanes(d);
  const auto limits = hn::Set(d, limit);
  const uint32_t* const to_end = to + n_wanted;
  const auto take = [&](size_t group) {
    if (to == to_end) return;
    if (scores[group] == limit) {
      if (n_ties == 0) return;
      --n_ties;
    }
    *to++ = static_cast<uint32_t>(group);
  };
  size_t i = begin;
  for (; i + lanes <= end && to != to_end; i += lanes) {
    uint8_t bytes[HWY_MAX_BYTES / sizeof(float) / 8 + 8] = {};
    const size_t n_bytes = hn::StoreMaskBits(d, hn::Ge(hn::LoadU(d, scores + i), limits), bytes);
    for (size_t b = 0; b < n_bytes; ++b) {
      for (uint32_t bits = bytes[b]; bits != 0; bits &= bits - 1) {
        take(i + 8 * b + static_cast<size_t>(std::countr_zero(bits)));
      }
    }
  }
  for (; i < end && to != to_end; ++i) {
    if (scores[i] >= limit) take(i);
  }
}

// The n_wanted best of groups [begin, end), 0 < n_wanted < end - begin.
void Choose(const float* scores, size_t begin, size_t end, size_t n_wanted, uint32_t* to) {
  const float* from = scores + begin;
  const size_t n = end - begin;
  const Range range = FindRange(from, n);
  // At least n_wanted score `low` or more; fewer score more than `high`.
  int64_t low = KeyOf(range.smallest);
  int64_t high = KeyOf(range.largest);
  size_t count = n;
  while (low < high && count != n_wanted) {
    const int64_t middle = low + (high - low + 1) / 2;
    const size_t found = CountFrom(from, n, ScoreOf(static_cast<int32_t>(middle)));
    if (found >= n_wanted) {
      low = middle;
      count = found;
    } else {
      high = middle - 1;
    }
  }
  const float limit = ScoreOf(static_cast<int32_t>(low));
  // Those that score more than the limit are fewer than n_wanted: the others are the first of those that tie.
  size_t n_ties = n;
  if (count != n_wanted) {
    size_t above = 0;
    if (limit < range.largest) above = CountFrom(from, n, std::nextafter(limit, range.largest));
    n_ties = n_wanted - above;
  }
  Write(scores, begin, end, limit, n_ties, n_wanted, to);
}

// The best of groups [begin, end), begin < end: n_wanted, or those whose scores reach mass_wanted, one at
// least. How many they are.
size_t ChooseMass(const float* scores, size_t begin, size_t end, size_t n_wanted, double mass_wanted,
                  uint32_t* to) {
  const float* from = scores + begin;
  const size_t n = end - begin;
  const auto is_enough = [mass_wanted](const Mass& mass) {
    return mass.count > 0 && mass.sum >= mass_wanted;
  };
  const Range range = FindRange(from, n);
  // Those that score `low` or more are enough, in number or in mass; `above`, that score more than `high`,
  // not.
  int64_t low = KeyOf(range.smallest);
  int64_t high = KeyOf(range.largest);
  Mass found = MassFrom(from, n, range.smallest);
  Mass above;
  // Whether no fewer than those that were found are enough.
  bool is_found = found.count == n_wanted && !is_enough(found);
  while (low < high && !is_found) {
    const int64_t middle = low + (high - low + 1) / 2;
    const Mass mass = MassFrom(from, n, ScoreOf(static_cast<int32_t>(middle)));
    if (mass.count >= n_wanted || is_enough(mass)) {
      low = middle;
      found = mass;
    } else {
      high = middle - 1;
      above = mass;
    }
    is_found = found.count == above.count + 1 || (found.count == n_wanted && !is_enough(found));
  }
  const float limit = ScoreOf(static_cast<int32_t>(low));
  // Else of equal scores as many as are enough.
  size_t n_ties = std::min(found.count, n_wanted) - above.count;
  if (!is_found) {
    const double left = mass_wanted - above.sum;
    if (left <= limit) {
      n_ties = 1;
    } else if (left < limit * static_cast<double>(n_ties)) {
      n_ties = static_cast<size_t>(std::ceil(left / limit));
    }
  }
  const size_t n_chosen = is_found ? found.count : above.count + n_ties;
  Write(scores, begin, end, limit, is_found ? n : n_ties, n_chosen, to);
  return n_chosen;
}

// What groups weigh that score at least `limit`.
uint32_t WeightFrom(const float* scores, const uint32_t* weights, size_t n, float limit) {
  const hn::ScalableTag<float> d;
  const hn::RebindToUnsigned<decltype(d)> du;
  const size_t lanes = hn::Lanes(d);
  const auto limits = hn::Set(d, limit);
  auto sum = hn::Zero(du);
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto does_reach = hn::RebindMask(du, hn::Ge(hn::LoadU(d, scores + i), limits));
    sum = hn::Add(sum, hn::IfThenElseZero(does_reach, hn::LoadU(du, weights + i)));
  }
  uint32_t weight = hn::GetLane(hn::SumOfLanes(du, sum));
  for (; i < n; ++i) weight += scores[i] >= limit ? weights[i] : 0;
  return weight;
}

// The best of groups [begin, end), begin < end, until they would weigh more than most_weight. How many they
// are.
size_t ChooseWeighted(const float* scores, const uint32_t* weights, size_t begin, size_t end,
                      uint32_t most_weight, uint32_t* to) {
  const auto weight_from = [&](float limit) {
    return WeightFrom(scores + begin, weights + begin, end - begin, limit);
  };
  const Range range = FindRange(scores + begin, end - begin);
  // Groups that score `low` or more weigh too much; those that score `high` or more, `above`, do not.
  int64_t low = KeyOf(range.smallest);
  int64_t high = int64_t{KeyOf(range.largest)} + 1;
  uint64_t above = 0;
  if (const uint32_t all = weight_from(range.smallest); all <= most_weight) {
    high = low;
    above = all;
  }
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    const uint32_t weight = weight_from(ScoreOf(static_cast<int32_t>(middle)));
    if (weight > most_weight) {
      low = middle;
    } else {
      high = middle;
      above = weight;
    }
  }
  // Of those that score just `low`, the first ones that fit.
  const bool are_all = high == low;
  const float tie = ScoreOf(static_cast<int32_t>(low));
  const uint32_t* const first = to;
  uint64_t written = 0;
  for (size_t group = begin; group < end; ++group) {
    if (weights[group] == 0 || !(scores[group] >= tie)) continue;
    if (scores[group] == tie && !are_all) {
      above += weights[group];
      if (above > most_weight) continue;
    }
    written += weights[group];
    if (written > most_weight) break;  // of NaNs alone, which have no order
    *to++ = static_cast<uint32_t>(group);
  }
  return static_cast<size_t>(to - first);
}

// The sum of n scores.
double SumMass(const float* scores, size_t n) { return MassFrom(scores, n, 0.0F).sum; }

}  // namespace
}  // namespace kvrun::host::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvrun::host {
namespace {

HWY_EXPORT(Choose);
HWY_EXPORT(ChooseMass);
HWY_EXPORT(SumMass);
HWY_EXPORT(ChooseWeighted);

// At least one group more than is pinned.
void SelectMass(const float* scores, uint32_t n_groups, uint32_t n_pinned, uint32_t n_chosen,
                float mass_share, uint32_t* chosen) {
  const double pinned = HWY_DYNAMIC_DISPATCH(SumMass)(scores, n_pinned);
  const double all = pinned + HWY_DYNAMIC_DISPATCH(SumMass)(scores + n_pinned, n_groups - n_pinned);
  std::iota(chosen + 1, chosen + 1 + n_pinned, 0U);
  const size_t n = HWY_DYNAMIC_DISPATCH(ChooseMass)(scores, n_pinned, n_groups, n_chosen - n_pinned,
                                                    mass_share * all - pinned, chosen + 1 + n_pinned);
  *chosen = n_pinned + static_cast<uint32_t>(n);
}

}  // namespace

void SelectGroups(const float* scores, uint32_t n_groups, uint32_t n_pinned, uint32_t n_chosen,
                  float mass_share, uint32_t* chosen) {
  n_chosen = std::min(n_chosen, n_groups);
  n_pinned = std::min(n_pinned, n_chosen);
  if (mass_share > 0.0F && mass_share < 1.0F && n_pinned < n_chosen) {
    SelectMass(scores, n_groups, n_pinned, n_chosen, mass_share, chosen);
    return;
  }
  *chosen++ = n_chosen;
  const uint32_t n_sure = n_chosen == n_groups ? n_groups : n_pinned;
  for (uint32_t group = 0; group < n_sure; ++group) *chosen++ = group;
  if (n_sure < n_chosen) {
    HWY_DYNAMIC_DISPATCH(Choose)(scores, n_sure, n_groups, n_chosen - n_sure, chosen);
  }
}

void DivideByWeights(const float* scores, const uint32_t* weights, size_t n, float* quotients) {
  for (size_t i = 0; i < n; ++i) quotients[i] = scores[i] / static_cast<float>(std::max(weights[i], 1U));
}

void SelectWeighted(const float* scores, const uint32_t* weights, uint32_t n_groups, uint32_t n_pinned,
                    uint32_t most_weight, uint32_t* chosen) {
  n_pinned = std::min(n_pinned, n_groups);
  std::iota(chosen + 1, chosen + 1 + n_pinned, 0U);
  size_t n = 0;
  if (n_pinned < n_groups) {
    n = HWY_DYNAMIC_DISPATCH(ChooseWeighted)(scores, weights, n_pinned, n_groups, most_weight,
                                             chosen + 1 + n_pinned);
  }
  *chosen = n_pinned + static_cast<uint32_t>(n);
}

}  // namespace kvrun::host
#endif  // HWY_ONCE
