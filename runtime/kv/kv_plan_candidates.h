// How many groups are scored one by one in a step: all of them, or those of the blocks that score best as a
// whole (ScoreArgs::block_groups).
#pragma once

#include <cstdint>

#include "runtime/kv/kv_plan.h"

namespace kvrun {

struct CandidateInput {
  uint32_t n_queries = 0;  // that each row of the index is multiplied with
  uint32_t rank = 0;
  uint32_t group_tokens = 0;
  uint32_t n_groups = 0;  // of a sequence, at most
  uint32_t n_pinned = 0;
  uint32_t n_chosen = 0;  // of any layer, pinned ones included
};

// Zeros where scoring all takes little, or where candidates would be most of all.
//
// No plan asks for it yet: the mean of a block hides an entry that is attended to alone. Measured on a text
// (frankenstein.txt, 1/13) KL is 3 % more than with one stage; of a model that must retrieve single pairs
// (retrieval_model.py), 41 % of the tokens are as with all KV, not 81 %. What finds those must come first.
CandidatePlan PlanCandidates(const CandidateInput& input);

}  // namespace kvrun
