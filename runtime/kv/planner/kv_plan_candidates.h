// How many groups are scored by all heads in a step: all of them, or the best by few products (ScoreStages).
#pragma once

#include <cstdint>

#include "runtime/kv/plan/kv_plan.h"

namespace kvrun {

struct CandidateInput {
  uint32_t n_queries = 0;   // that each row of the index is multiplied with
  uint32_t n_kv_heads = 0;  // as many queries as the first stage has
  uint32_t rank = 0;
  uint32_t group_tokens = 0;
  uint32_t n_groups = 0;  // of a sequence, at most
  uint32_t n_chosen = 0;  // of any layer, pinned ones included
};

// Zeros where scoring all takes little, or where two stages would not take much less: the first of them more
// than a quarter, or the second more than half.
CandidatePlan PlanCandidates(const CandidateInput& input);

}  // namespace kvrun
