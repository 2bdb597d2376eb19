// How often a chosen group is in the reuse buffer already, by the buffer's capacity: what each layer chose,
// step by step, replayed through slots. Pure. Source: KVSwap, appendix A.1.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/kv/math/adapter.h"
#include "runtime/kv/math/slot_cache.h"

namespace kvrun {

// The choices of one setting on one text. What is chosen depends neither on the capacity nor on the policy.
struct ReuseTrace {
  uint32_t group_tokens = 0;
  uint32_t n_chosen = 0;  // M: the most groups of a step, pinned ones left out
  uint32_t n_pinned = 0;  // groups 0 to n_pinned - 1: always there, and not counted
  uint32_t n_groups = 0;  // that there were to choose from at the end, pinned ones left out
  uint32_t n_ctx = 0;     // tokens before the first step
  // [layers * streams, steps]: of each step ascending groups, pinned ones included.
  std::vector<std::vector<std::vector<uint32_t>>> streams;
};

// Over all streams, as KvStats counts them: of the groups that steps from `n_warm_up` on chose, the share
// that a slot held. The steps before fill `n_slots` slots, which are empty at first. n_slots >= n_chosen, and
// equal where the policy needs it. 0 where nothing was chosen.
double ReuseRateOf(const ReuseTrace& trace, const ReplacementPolicy& policy, uint32_t n_slots,
                   uint32_t n_warm_up);

// A row for each policy and each capacity of n_chosen times a factor (>= 1, ascending), rounded to groups;
// not more slots than there are groups, nor a capacity twice. Policies for C == M have the one row.
std::vector<ReuseRate> ReuseRatesOf(const ReuseTrace& trace, std::span<const double> factors,
                                    uint32_t n_warm_up);

}  // namespace kvrun
