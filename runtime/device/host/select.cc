// Chooses the groups with the largest scores: finds the smallest chosen score by bisection (some twenty
// passes over the scores, which are few and read at a vector a cycle), then writes what is above it.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/device/host/select.cc"
#include <hwy/foreach_target.h>
// What is compiled for each target may use these.
#include <hwy/highway.h>

#include <algorithm>
#include <bit>
#include <cmath>

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

}  // namespace
}  // namespace kvrun::host::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvrun::host {
namespace {

HWY_EXPORT(Choose);

}  // namespace

void SelectGroups(const float* scores, uint32_t n_groups, uint32_t n_pinned, uint32_t n_chosen,
                  uint32_t* chosen) {
  n_chosen = std::min(n_chosen, n_groups);
  n_pinned = std::min(n_pinned, n_chosen);
  *chosen++ = n_chosen;
  const uint32_t n_sure = n_chosen == n_groups ? n_groups : n_pinned;
  for (uint32_t group = 0; group < n_sure; ++group) *chosen++ = group;
  if (n_sure < n_chosen) {
    HWY_DYNAMIC_DISPATCH(Choose)(scores, n_sure, n_groups, n_chosen - n_sure, chosen);
  }
}

}  // namespace kvrun::host
#endif  // HWY_ONCE
