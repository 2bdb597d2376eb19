#include "runtime/kv/replay/replayed_selection.h"

#include <algorithm>
#include <utility>

#include "platform/base/check.h"

namespace kvrun {

ReplayedSelection::ReplayedSelection(double repeated_share, uint32_t n_pinned, uint32_t n_chosen,
                                     uint64_t seed)
    : repeated_share_(repeated_share), n_pinned_(n_pinned), n_chosen_(n_chosen), random_(seed) {
  KVRUN_CHECK(repeated_share >= 0.0 && repeated_share <= 1.0 && n_pinned <= n_chosen);
  last_.reserve(n_chosen);
  free_.reserve(n_chosen);
  chosen_.reserve(n_chosen);
}

std::span<const uint32_t> ReplayedSelection::Next(uint32_t n_groups) {
  const uint32_t n_pinned = std::min(n_pinned_, n_groups);
  const uint32_t n_free = std::min(n_chosen_, n_groups) - n_pinned;
  // After a step back there are fewer groups.
  while (!last_.empty() && last_.back() >= n_groups) last_.pop_back();
  const auto n_last = static_cast<uint32_t>(last_.size());
  const uint32_t n_unseen = n_groups - n_pinned - n_last;
  const double wanted = repeated_share_ * n_free + carried_;
  const auto n_wanted = static_cast<uint32_t>(wanted);
  carried_ = wanted - n_wanted;
  const uint32_t n_least = n_free > n_unseen ? n_free - n_unseen : 0;
  const uint32_t n_kept = std::max(std::min(n_wanted, std::min(n_last, n_free)), n_least);
  free_.clear();
  KeepSome(n_kept);
  DrawNew(n_free - n_kept, n_groups);
  std::sort(free_.begin(), free_.end());
  chosen_.clear();
  for (uint32_t group = 0; group < n_pinned; ++group) chosen_.push_back(group);
  chosen_.insert(chosen_.end(), free_.begin(), free_.end());
  std::swap(last_, free_);
  return chosen_;
}

// Selection sampling: each group of the last step with the same chance.
void ReplayedSelection::KeepSome(uint32_t n_kept) {
  for (uint32_t i = 0; i < last_.size() && n_kept > 0; ++i) {
    if (random_.Below(static_cast<uint32_t>(last_.size()) - i) >= n_kept) continue;
    free_.push_back(last_[i]);
    --n_kept;
  }
}

bool ReplayedSelection::WasChosen(uint32_t group) const {
  return std::binary_search(last_.begin(), last_.end(), group);
}

// Of the groups that are neither pinned nor of the last step.
void ReplayedSelection::DrawNew(uint32_t n_new, uint32_t n_groups) {
  const auto n_unseen = static_cast<uint32_t>(n_groups - n_pinned_ - last_.size());
  const size_t begin = free_.size();
  if (n_new > n_unseen / 2) {
    uint32_t left = n_unseen;
    for (uint32_t group = n_pinned_; n_new > 0; ++group) {
      if (WasChosen(group)) continue;
      if (random_.Below(left--) >= n_new) continue;
      free_.push_back(group);
      --n_new;
    }
    return;
  }
  // The groups before `begin` are of the last step: they need not be looked at.
  while (n_new > 0) {
    const uint32_t group = n_pinned_ + random_.Below(n_groups - n_pinned_);
    if (WasChosen(group)) continue;
    if (std::find(free_.begin() + static_cast<std::ptrdiff_t>(begin), free_.end(), group) != free_.end()) {
      continue;
    }
    free_.push_back(group);
    --n_new;
  }
}

}  // namespace kvrun
