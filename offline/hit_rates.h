// How many of the chosen groups are in the reuse buffer already: an adapter file's table, corrected by what
// is measured on the way. Pure. Source: KVSwap, appendix A.1.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "offline/candidate.h"
#include "runtime/kv/math/adapter.h"

namespace kvrun::offline {

// The share of what a step needs that the step before has needed too, where `hit_rate` of it is found in
// slots.
double RepeatedShare(const SizedCandidate& candidate, double hit_rate);

class HitRates {
 public:
  // `table` may be empty: then a rate that is usual for texts is assumed until something is measured.
  explicit HitRates(std::span<const ReuseRate> table);

  // Interpolated between the table's selected entries and between its capacities, at the nearest group size.
  // What is read into the pool is not there again in the next step: of C groups, so many hit as where no more
  // are selected.
  double Rate(const SizedCandidate& candidate, const std::string& policy) const;
  // Later answers are corrected by how far off this one was.
  void Correct(const SizedCandidate& candidate, double measured_rate);
  // Of the policies that suit M and C, the one with the highest rate; of equal ones the first.
  std::string BestPolicy(const SizedCandidate& candidate) const;

 private:
  double Table(uint32_t group_tokens, uint32_t select_entries, double capacity_share,
               const std::string& policy) const;

  // Hit rates by capacity (in groups chosen), by selected entries: of a policy and a group size.
  struct Curves {
    std::string policy;
    uint32_t group_tokens = 0;
    std::map<double, std::map<double, double>> by_select;
  };
  std::vector<Curves> curves_;
  double log_miss_correction_ = 0.0;
  uint32_t n_corrections_ = 0;
};

}  // namespace kvrun::offline
