// Entries side by side, as a KeepRule sees them (KeptView), and the scores that it gives them.
//
// Threads: one at a time. Add and Score allocate nothing beyond what was reserved.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/kv/math/keep_rule.h"

namespace kvrun {

// When an entry was needed (KeptView).
struct Recurrence {
  uint32_t seen_at = 0;
  uint32_t longest_gap = 0;
};

class ScoredEntries {
 public:
  // Room for so many; gives up what is more.
  void Reserve(size_t n);
  // Of none; to be added are `n_more`, of so many moments.
  void Clear(size_t n_more = 0, uint32_t n_moments = 1);

  // masses: as many moments as the rule asks for, at most two of which count.
  void Add(uint32_t position, std::span<const float> masses, uint32_t n_rows);
  // Where the rule tracks them, of each entry, in the same order.
  void AddRecurrence(const Recurrence& recurrence);
  // Of all that was added, when the sequence has `now` entries.
  void Score(const KeepRule& rule, uint32_t now);

  size_t size() const { return positions_.size(); }
  uint32_t position(size_t i) const { return positions_[i]; }
  std::span<const float> mass() const { return mass_; }  // first moments
  std::span<float> scores() { return scores_; }
  // The least score; of equal ones the oldest.
  size_t Worst() const;
  // The n best, the best first; of equal ones the newer. Valid until the next call.
  std::span<const uint32_t> Best(size_t n);
  // The last answer of Best.
  std::span<const uint32_t> ranked() const { return order_; }

 private:
  std::vector<uint32_t> positions_;
  std::vector<float> mass_;
  std::vector<float> squares_;
  std::vector<uint32_t> rows_;
  std::vector<uint32_t> seen_;
  std::vector<uint32_t> gaps_;
  std::vector<float> scores_;
  std::vector<uint32_t> order_;
};

}  // namespace kvrun
