// What a plan has of a selection from groups: how it is scored, and what has decided how much it is.
#pragma once

#include <cstdint>

namespace kvrun {

// Of the groups that are scored, so many are by all heads: the best by few products (ScoreStages). Zeros: all
// are.
struct CandidatePlan {
  uint32_t n_groups = 0;
  uint32_t first_columns = 0;
};

// What a prompt attends to of a text that is there before it. kExact: to all of it, which is read. kSelected:
// to groups that its rows choose together (SelectedPrefill). kAuto: as kSelected where that takes clearly
// less time, and the other a while.
enum class LaterPrompts : uint8_t { kAuto, kExact, kSelected };

// How much of a layer is read in a step, where that has decided how much is selected.
struct ReadingPlan {
  double hide = 0.0;                // KvOptions::hide
  double reads = 0.0;               // expected: groups of a layer that no slot has
  double read_us = 0.0;             // they take; 0: not known
  double layer_us = 0.0;            // 0: not known
  double layer_share = 1.0;         // of it, what reads of more than has slots may take
  bool is_limited_by_time = false;  // else by the budget
};

}  // namespace kvrun
