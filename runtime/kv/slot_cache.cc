#include "runtime/kv/slot_cache.h"

#include <algorithm>

#include "platform/base/check.h"

namespace kvrun {
namespace {

// So many of a frequency's steps make it half as large: 5.
constexpr uint32_t kFrequencyDecay = 8;
constexpr uint8_t kFrequencyGain = 31;

}  // namespace

SlotCache::SlotCache(const SlotCacheShape& shape, const ReplacementPolicy* policy)
    : policy_(policy),
      max_rest_(shape.max_rest),
      extents_(shape.n_slots, kNoExtent),
      loaded_at_(shape.n_slots, 0),
      used_at_(shape.n_slots, 0),
      by_extent_(shape.n_slots),
      victims_(shape.n_slots),
      slots_(shape.max_chosen),
      misses_(shape.max_chosen),
      rest_(shape.max_rest),
      loads_(shape.max_chosen) {
  KVRUN_CHECK(policy != nullptr);
  KVRUN_CHECK(uint64_t{shape.n_slots} + shape.max_rest >= shape.max_chosen);
  KVRUN_CHECK(!policy->needs_equal_capacity || shape.n_slots == shape.max_chosen);
  if (policy->goes_by_frequency) frequency_.resize(shape.n_extents);
  for (uint32_t slot = 0; slot < shape.n_slots; ++slot) by_extent_[slot] = slot;
}

uint64_t SlotCache::MemoryBytes(const SlotCacheShape& shape, const ReplacementPolicy& policy) {
  constexpr uint64_t kPerSlot = 3 * sizeof(uint32_t) + 2 * sizeof(uint64_t);
  constexpr uint64_t kPerChosen = 2 * sizeof(uint32_t) + sizeof(SlotLoad);
  return kPerSlot * shape.n_slots + kPerChosen * shape.max_chosen + sizeof(uint32_t) * shape.max_rest +
         (policy.goes_by_frequency ? shape.n_extents : 0);
}

SlotCache::PlanResult SlotCache::Plan(std::span<const uint32_t> chosen) {
  KVRUN_CHECK(chosen.size() <= slots_.size());
  ++step_;
  NoteFrequency(chosen);
  const size_t n_misses = FindHits(chosen);
  const size_t n_loads = Admit(chosen, n_misses, ChooseVictims(n_misses));
  size_t load = 0;
  size_t n_slots = 0;
  size_t n_rest = 0;
  for (size_t i = 0; i < chosen.size(); ++i) {
    const uint32_t slot = slots_[i];
    if (slot == kNoSlot) {
      rest_[n_rest++] = chosen[i];
      continue;
    }
    if (extents_[slot] != chosen[i]) {
      loads_[load++] = {chosen[i], slot};
      extents_[slot] = chosen[i];
      loaded_at_[slot] = used_at_[slot] = step_;
    }
    slots_[n_slots++] = slot;
  }
  MergeLoads(n_loads);
  return {std::span(slots_).first(n_slots), std::span(loads_).first(n_loads), std::span(rest_).first(n_rest),
          static_cast<uint32_t>(chosen.size() - n_misses)};
}

void SlotCache::NoteFrequency(std::span<const uint32_t> chosen) {
  if (frequency_.empty()) return;
  for (uint8_t& frequency : frequency_) {
    frequency = static_cast<uint8_t>(frequency - (frequency + kFrequencyDecay - 1U) / kFrequencyDecay);
  }
  for (const uint32_t extent : chosen) {
    KVRUN_CHECK(extent < frequency_.size());
    frequency_[extent] = static_cast<uint8_t>(frequency_[extent] + kFrequencyGain);
  }
}

// Both lists ascend: one walk over both. Answers how many of `chosen` no slot holds: misses_.
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
      misses_[n_misses++] = static_cast<uint32_t>(i);
    }
  }
  return n_misses;
}

// The first of victims_, at most `most`: free slots, then what the policy gives up. Hits of this step are
// left out. Answers how many there are.
size_t SlotCache::ChooseVictims(size_t most) {
  if (most == 0) return 0;
  const SlotView view = this->view();
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
  const size_t count = std::min(most, n_candidates);
  const auto begin = victims_.begin();
  std::partial_sort(begin, begin + static_cast<std::ptrdiff_t>(count),
                    begin + static_cast<std::ptrdiff_t>(n_candidates), goes_first);
  return count;
}

// Gives victims' slots to misses, the first to the first; answers to how many. ChooseVictims has found no
// more victims than misses.
size_t SlotCache::Admit(std::span<const uint32_t> chosen, size_t n_misses, size_t n_victims) {
  const auto begin = misses_.begin();
  if (policy_->goes_by_frequency) {
    const auto comes_first = [&](uint32_t a, uint32_t b) {
      const uint8_t frequency_a = frequency_[chosen[a]];
      const uint8_t frequency_b = frequency_[chosen[b]];
      return frequency_a != frequency_b ? frequency_a > frequency_b : a < b;
    };
    std::partial_sort(begin, begin + static_cast<std::ptrdiff_t>(n_victims),
                      begin + static_cast<std::ptrdiff_t>(n_misses), comes_first);
  }
  size_t n = 0;
  while (n < n_victims && (n_misses - n > max_rest_ || IsWorthIt(chosen[misses_[n]], victims_[n]))) {
    slots_[misses_[n]] = victims_[n];
    ++n;
  }
  return n;
}

bool SlotCache::IsWorthIt(uint32_t extent, uint32_t victim) const {
  if (!policy_->goes_by_frequency || extents_[victim] == kNoExtent) return true;
  return frequency_[extent] > frequency_[extents_[victim]];
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
  for (size_t extent = first; extent < frequency_.size(); ++extent) frequency_[extent] = 0;
}

}  // namespace kvrun
