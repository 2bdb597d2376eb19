#include "runtime/kv/slot_cache.h"

#include <algorithm>

#include "platform/base/check.h"

namespace kvrun {

SlotCache::SlotCache(uint32_t n_slots, uint32_t max_chosen, const ReplacementPolicy* policy)
    : policy_(policy),
      extents_(n_slots, kNoExtent),
      loaded_at_(n_slots, 0),
      used_at_(n_slots, 0),
      by_extent_(n_slots),
      victims_(n_slots),
      slots_(max_chosen),
      loads_(max_chosen) {
  KVRUN_CHECK(policy != nullptr);
  KVRUN_CHECK(n_slots >= max_chosen);
  KVRUN_CHECK(!policy->needs_equal_capacity || n_slots == max_chosen);
  for (uint32_t slot = 0; slot < n_slots; ++slot) by_extent_[slot] = slot;
}

uint64_t SlotCache::MemoryBytes(uint32_t n_slots, uint32_t max_chosen) {
  constexpr uint64_t kPerSlot = 3 * sizeof(uint32_t) + 2 * sizeof(uint64_t);
  constexpr uint64_t kPerChosen = sizeof(uint32_t) + sizeof(SlotLoad);
  return kPerSlot * n_slots + kPerChosen * max_chosen;
}

SlotCache::PlanResult SlotCache::Plan(std::span<const uint32_t> chosen) {
  KVRUN_CHECK(chosen.size() <= slots_.size());
  ++step_;
  const size_t n_loads = FindHits(chosen);
  ChooseVictims(n_loads);
  size_t load = 0;
  for (size_t i = 0; i < chosen.size(); ++i) {
    if (slots_[i] != kNoSlot) continue;
    const uint32_t slot = victims_[load];
    slots_[i] = slot;
    loads_[load++] = {chosen[i], slot};
    extents_[slot] = chosen[i];
    loaded_at_[slot] = used_at_[slot] = step_;
  }
  MergeLoads(n_loads);
  return {std::span(slots_).first(chosen.size()), std::span(loads_).first(n_loads),
          static_cast<uint32_t>(chosen.size() - n_loads)};
}

// Both lists ascend: one walk over both. Answers how many of `chosen` no slot holds.
size_t SlotCache::FindHits(std::span<const uint32_t> chosen) {
  size_t held = 0;
  size_t n_misses = 0;
  for (size_t i = 0; i < chosen.size(); ++i) {
    KVRUN_CHECK(chosen[i] != kNoExtent && (i == 0 || chosen[i - 1] < chosen[i]));
    while (held < by_extent_.size() && extents_[by_extent_[held]] < chosen[i]) ++held;
    if (held < by_extent_.size() && extents_[by_extent_[held]] == chosen[i]) {
      slots_[i] = by_extent_[held];
      used_at_[slots_[i]] = step_;
    } else {
      slots_[i] = kNoSlot;
      ++n_misses;
    }
  }
  return n_misses;
}

// The first `count` of victims_: free slots, then what the policy gives up. Hits of this step are left out.
void SlotCache::ChooseVictims(size_t count) {
  if (count == 0) return;
  const SlotView view = {extents_, loaded_at_, used_at_};
  size_t n_candidates = 0;
  for (uint32_t slot = 0; slot < extents_.size(); ++slot) {
    if (used_at_[slot] != step_) victims_[n_candidates++] = slot;
  }
  const auto goes_first = [&](uint32_t a, uint32_t b) {
    const bool a_is_free = extents_[a] == kNoExtent;
    const bool b_is_free = extents_[b] == kNoExtent;
    if (a_is_free != b_is_free) return a_is_free;
    if (!a_is_free && policy_->better_victim(view, a, b)) return true;
    if (!a_is_free && policy_->better_victim(view, b, a)) return false;
    return a < b;
  };
  const auto begin = victims_.begin();
  std::partial_sort(begin, begin + static_cast<std::ptrdiff_t>(count),
                    begin + static_cast<std::ptrdiff_t>(n_candidates), goes_first);
}

// by_extent_ ascends again: what stayed keeps its order, and the loads, which ascend too, are merged in from
// the end.
void SlotCache::MergeLoads(size_t n_loads) {
  if (n_loads == 0) return;
  const auto is_new = [this](uint32_t slot) { return loaded_at_[slot] == step_; };
  const auto kept_end = std::remove_if(by_extent_.begin(), by_extent_.end(), is_new);
  auto kept = static_cast<size_t>(kept_end - by_extent_.begin());
  size_t to = by_extent_.size();
  while (n_loads > 0) {
    const bool takes_kept = kept > 0 && extents_[by_extent_[kept - 1]] > loads_[n_loads - 1].extent;
    by_extent_[--to] = takes_kept ? by_extent_[--kept] : loads_[--n_loads].slot;
  }
}

void SlotCache::Drop(uint32_t slot) {
  KVRUN_CHECK(slot < extents_.size());
  extents_[slot] = kNoExtent;
  const auto at = std::find(by_extent_.begin(), by_extent_.end(), slot);
  std::rotate(at, at + 1, by_extent_.end());
}

void SlotCache::Truncate(uint32_t first) {
  for (uint32_t& extent : extents_) {
    if (extent >= first) extent = kNoExtent;
  }
}

}  // namespace kvrun
