#include "runtime/kv/math/slot_cache.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "platform/base/check.h"

namespace kvrun {
namespace {

// So many of a frequency's steps make it half as large: 5.
constexpr uint32_t kFrequencyDecay = 8;
constexpr uint8_t kFrequencyGain = 31;
// In place of a slot, of what stays out.
constexpr uint32_t kLeftOut = SlotCache::kNoSlot - 1;

// What was touched within so many steps may be reserved, within that share of what could be given up.
constexpr uint64_t kReservedSteps = 16;
constexpr size_t kReservedShare = 16;  // one in so many

}  // namespace

SlotCache::SlotCache(const SlotCacheShape& shape, const ReplacementPolicy* policy)
    : policy_(policy),
      max_rest_(shape.max_rest),
      extent_records_(shape.extent_records),
      extents_(shape.n_slots, kNoExtent),
      loaded_at_(shape.n_slots, 0),
      used_at_(shape.n_slots, 0),
      by_extent_(shape.n_slots),
      victims_(shape.n_slots),
      slots_(shape.max_chosen),
      rest_(shape.max_rest),
      loads_(shape.max_chosen) {
  KVRUN_CHECK(policy != nullptr && shape.extent_records > 0);
  KVRUN_CHECK(uint64_t{shape.n_slots} + shape.max_rest >= shape.max_chosen);
  KVRUN_CHECK(!policy->needs_equal_capacity || shape.n_slots == shape.max_chosen);
  if (policy->goes_by_frequency) frequency_.resize(shape.n_frequencies());
  if (policy->goes_by_changes) {
    weights_.resize(shape.n_slots, 1);
    touched_at_.resize(shape.n_slots, 0);
  }
  for (uint32_t slot = 0; slot < shape.n_slots; ++slot) by_extent_[slot] = slot;
}

uint64_t SlotCache::MemoryBytes(const SlotCacheShape& shape, const ReplacementPolicy& policy) {
  constexpr uint64_t kPerSlot = 3 * sizeof(uint32_t) + 2 * sizeof(uint64_t);
  constexpr uint64_t kPerChosen = sizeof(uint32_t) + sizeof(SlotLoad);
  return kPerSlot * shape.n_slots + kPerChosen * shape.max_chosen + sizeof(uint32_t) * shape.max_rest +
         (policy.goes_by_frequency ? shape.n_frequencies() : 0) +
         (policy.goes_by_changes ? (sizeof(uint32_t) + sizeof(uint64_t)) * shape.n_slots : 0);
}

SlotCache::PlanResult SlotCache::Plan(std::span<const uint32_t> chosen, std::span<const uint32_t> weights,
                                      std::span<const uint8_t> is_passing, const StayOut& stay_out) {
  KVRUN_CHECK(chosen.size() <= slots_.size());
  KVRUN_CHECK(is_passing.empty() || is_passing.size() == chosen.size());
  KVRUN_CHECK(weights.empty() || weights.size() == chosen.size());
  KVRUN_CHECK(stay_out.may_stay.empty() || (stay_out.may_stay.size() == chosen.size() && is_passing.empty()));
  ++step_;
  NoteFrequency(chosen);
  const size_t n_misses = FindHits(chosen);
  const size_t n_read = LeaveOutStaying(stay_out.may_stay, n_misses);
  const size_t n_lasting = LeaveOutPassing(is_passing, n_read);
  const size_t n_loads = Admit(chosen, n_lasting, ChooseVictims(n_lasting), n_read - n_lasting);
  size_t load = 0;
  size_t n_slots = 0;
  size_t n_rest = 0;
  for (size_t i = 0; i < chosen.size(); ++i) {
    const uint32_t slot = slots_[i];
    if (slot == kLeftOut) continue;
    if (slot == kNoSlot) {
      rest_[n_rest++] = chosen[i];
      continue;
    }
    if (extents_[slot] != chosen[i]) {
      loads_[load++] = {chosen[i], slot, extents_[slot]};
      extents_[slot] = chosen[i];
      loaded_at_[slot] = used_at_[slot] = step_;
      if (!touched_at_.empty()) touched_at_[slot] = 0;
    }
    if (!weights_.empty()) weights_[slot] = weights.empty() ? 1 : weights[i];
    slots_[n_slots++] = slot;
  }
  MergeLoads(n_loads);
  n_planned_ = n_slots + AddStandIns(stay_out.stand_ins_below, n_misses - n_read, n_slots);
  return {planned_slots(), std::span(loads_).first(n_loads), std::span(rest_).first(n_rest),
          static_cast<uint32_t>(chosen.size() - n_misses), static_cast<uint32_t>(n_misses - n_read)};
}

void SlotCache::NoteFrequency(std::span<const uint32_t> chosen) {
  if (frequency_.empty()) return;
  for (uint8_t& frequency : frequency_) {
    frequency = static_cast<uint8_t>(frequency - (frequency + kFrequencyDecay - 1U) / kFrequencyDecay);
  }
  for (size_t i = 0; i < chosen.size(); ++i) {
    if (i > 0 && chosen[i] / extent_records_ == chosen[i - 1] / extent_records_) continue;
    KVRUN_CHECK(chosen[i] / extent_records_ < frequency_.size());
    uint8_t& frequency = FrequencyOf(chosen[i]);
    frequency = static_cast<uint8_t>(frequency + kFrequencyGain);
  }
}

// Both lists ascend: one walk over both. Answers how many of `chosen` no slot holds, the misses.
// Until Plan makes loads of them, loads_ holds their places in `chosen`.
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
      loads_[n_misses++].extent = static_cast<uint32_t>(i);
    }
  }
  return n_misses;
}

// candidates: slots, which are put in another order.
uint64_t SlotCache::FindReservedAfter(std::span<uint32_t> candidates) const {
  const auto first_not = candidates.begin() + static_cast<std::ptrdiff_t>(candidates.size() / kReservedShare);
  std::nth_element(candidates.begin(), first_not, candidates.end(),
                   [this](uint32_t a, uint32_t b) { return touched_at_[a] > touched_at_[b]; });
  return std::max(touched_at_[*first_not], step_ - std::min(step_, kReservedSteps));
}

// The first of victims_, at most `most`: free slots, then what the policy gives up. Hits of this step are
// left out. Answers how many there are.
size_t SlotCache::ChooseVictims(size_t most) {
  if (most == 0) return 0;
  size_t n_candidates = 0;
  for (uint32_t slot = 0; slot < extents_.size(); ++slot) {
    if (used_at_[slot] != step_) victims_[n_candidates++] = slot;
  }
  SlotView view = {extents_, loaded_at_, used_at_, frequency_, extent_records_, weights_, touched_at_, step_};
  if (!touched_at_.empty() && n_candidates > 0) {
    view.reserved_after = FindReservedAfter(std::span(victims_).first(n_candidates));
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

// Of the misses, those that may take slots come first; answers how many they are.
size_t SlotCache::LeaveOutPassing(std::span<const uint8_t> is_passing, size_t n_misses) {
  if (is_passing.empty()) return n_misses;
  size_t n = 0;
  for (size_t i = 0; i < n_misses; ++i) {
    if (is_passing[loads_[i].extent] == 0) loads_[n++].extent = loads_[i].extent;
  }
  return n;
}

// Of the misses, those that are read come first, ascending; answers how many they are. Free slots are given
// to what must be read first.
size_t SlotCache::LeaveOutStaying(std::span<const uint8_t> may_stay, size_t n_misses) {
  if (may_stay.empty()) return n_misses;
  size_t n_must = 0;
  for (size_t i = 0; i < n_misses; ++i) n_must += may_stay[loads_[i].extent] != 0 ? 0 : 1;
  const auto n_free = static_cast<size_t>(std::count(extents_.begin(), extents_.end(), kNoExtent));
  size_t n_free_left = n_free - std::min(n_free, n_must);
  size_t n = 0;
  for (size_t i = 0; i < n_misses; ++i) {
    const uint32_t place = loads_[i].extent;
    if (may_stay[place] != 0 && n_free_left == 0) {
      slots_[place] = kLeftOut;
      continue;
    }
    if (may_stay[place] != 0) --n_free_left;
    loads_[n++].extent = place;
  }
  return n;
}

// Behind the first n_slots of slots_, at most `most` others that hold what this step has not named, of
// extents below that one, the last used first. Answers how many.
size_t SlotCache::AddStandIns(uint32_t below, size_t most, size_t n_slots) {
  if (most == 0) return 0;
  size_t n_candidates = 0;
  for (uint32_t slot = 0; slot < extents_.size(); ++slot) {
    if (used_at_[slot] != step_ && extents_[slot] < below) victims_[n_candidates++] = slot;
  }
  const size_t n = std::min(most, n_candidates);
  const auto begin = victims_.begin();
  std::partial_sort(begin, begin + static_cast<std::ptrdiff_t>(n),
                    begin + static_cast<std::ptrdiff_t>(n_candidates), [this](uint32_t a, uint32_t b) {
                      return used_at_[a] != used_at_[b] ? used_at_[a] > used_at_[b] : a < b;
                    });
  std::copy_n(begin, n, slots_.begin() + static_cast<std::ptrdiff_t>(n_slots));
  return n;
}

// Gives victims' slots to misses, the first to the first; answers to how many. ChooseVictims has found no
// more victims than misses. n_passing: misses that take none.
size_t SlotCache::Admit(std::span<const uint32_t> chosen, size_t n_misses, size_t n_victims,
                        size_t n_passing) {
  const auto begin = loads_.begin();
  if (policy_->goes_by_frequency) {
    const auto comes_first = [&](const SlotLoad& a, const SlotLoad& b) {
      const uint8_t frequency_a = FrequencyOf(chosen[a.extent]);
      const uint8_t frequency_b = FrequencyOf(chosen[b.extent]);
      return frequency_a != frequency_b ? frequency_a > frequency_b : a.extent < b.extent;
    };
    std::partial_sort(begin, begin + static_cast<std::ptrdiff_t>(n_victims),
                      begin + static_cast<std::ptrdiff_t>(n_misses), comes_first);
  }
  size_t n = 0;
  while (n < n_victims) {
    const uint32_t place = loads_[n].extent;
    if (n_misses - n + n_passing <= max_rest_ && !IsWorthIt(chosen[place], victims_[n])) break;
    slots_[place] = victims_[n++];
  }
  return n;
}

bool SlotCache::IsWorthIt(uint32_t extent, uint32_t victim) {
  if (!policy_->goes_by_frequency || extents_[victim] == kNoExtent) return true;
  return FrequencyOf(extent) > FrequencyOf(extents_[victim]);
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

// Of an extent that some slot holds: its place in by_extent_. Otherwise: that of the next greater one.
size_t SlotCache::PlaceOf(uint32_t extent) const {
  KVRUN_CHECK(extent != kNoExtent);
  const auto at = std::lower_bound(by_extent_.begin(), by_extent_.end(), extent,
                                   [this](uint32_t slot, uint32_t value) { return extents_[slot] < value; });
  return static_cast<size_t>(at - by_extent_.begin());
}

uint32_t SlotCache::SlotOf(uint32_t record) const {
  const size_t place = PlaceOf(record);
  if (place == by_extent_.size() || extents_[by_extent_[place]] != record) return kNoSlot;
  return by_extent_[place];
}

void SlotCache::Touch(uint32_t record, uint32_t weight) {
  const uint32_t slot = SlotOf(record);
  if (slot == kNoSlot || touched_at_.empty()) return;
  touched_at_[slot] = step_;
  weights_[slot] = weight;
}

void SlotCache::Rename(uint32_t from, uint32_t to) {
  const uint32_t slot = SlotOf(from);
  KVRUN_CHECK(slot != kNoSlot && SlotOf(to) == kNoSlot);
  const auto begin = by_extent_.begin();
  const auto before = begin + static_cast<std::ptrdiff_t>(PlaceOf(from));
  const auto after = begin + static_cast<std::ptrdiff_t>(PlaceOf(to));
  if (from < to) {
    std::rotate(before, before + 1, after);
  } else {
    std::rotate(after, before, before + 1);
  }
  extents_[slot] = to;
  if (frequency_.empty()) return;
  FrequencyOf(to) = FrequencyOf(from);
  if (extent_records_ == 1) FrequencyOf(from) = 0;
}

void SlotCache::DropRecord(uint32_t record) {
  if (const uint32_t slot = SlotOf(record); slot != kNoSlot) Drop(slot);
}

void SlotCache::Free(uint32_t slot) {
  extents_[slot] = kNoExtent;
  if (!touched_at_.empty()) touched_at_[slot] = 0;
}

void SlotCache::Drop(uint32_t slot) {
  KVRUN_CHECK(slot < extents_.size());
  Free(slot);
  const auto at = std::find(by_extent_.begin(), by_extent_.end(), slot);
  std::rotate(at, at + 1, by_extent_.end());
}

void SlotCache::Truncate(uint32_t first) {
  for (uint32_t slot = 0; slot < extents_.size(); ++slot) {
    if (extents_[slot] >= first) Free(slot);
  }
  for (size_t i = (first + uint64_t{extent_records_} - 1) / extent_records_; i < frequency_.size(); ++i)
    frequency_[i] = 0;
}

SlotCache::Memory SlotCache::Remember() const {
  return {step_, extents_, by_extent_, loaded_at_, used_at_, frequency_, weights_, touched_at_};
}

bool SlotCache::Recall(const Memory& memory) {
  const size_t n = extents_.size();
  if (memory.extents.size() != n || memory.by_extent.size() != n || memory.loaded_at.size() != n ||
      memory.used_at.size() != n || memory.frequency.size() != frequency_.size() ||
      memory.weights.size() != weights_.size() || memory.touched_at.size() != touched_at_.size()) {
    return false;
  }
  std::vector<bool> is_named(n);
  for (size_t i = 0; i < n; ++i) {
    const uint32_t slot = memory.by_extent[i];
    if (slot >= n || is_named[slot]) return false;
    is_named[slot] = true;
    const uint32_t before = i == 0 ? 0 : memory.extents[memory.by_extent[i - 1]];
    const uint32_t extent = memory.extents[slot];
    const bool ascends = i == 0 || extent > before || (extent == kNoExtent && before == kNoExtent);
    const uint64_t touched_at = touched_at_.empty() ? 0 : memory.touched_at[slot];
    if (!ascends || std::max({memory.used_at[slot], memory.loaded_at[slot], touched_at}) > memory.step)
      return false;
  }
  step_ = memory.step;
  extents_ = memory.extents;
  by_extent_ = memory.by_extent;
  loaded_at_ = memory.loaded_at;
  used_at_ = memory.used_at;
  frequency_ = memory.frequency;
  weights_ = memory.weights;
  touched_at_ = memory.touched_at;
  return true;
}

}  // namespace kvrun
