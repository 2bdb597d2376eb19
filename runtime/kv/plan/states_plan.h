// What layers without growing KV keep of a sequence, and the copies of it that a cut goes back to.
#pragma once

#include <algorithm>
#include <cstdint>

#include "platform/base/units.h"

namespace kvrun {

// Of a sequence, whatever the budget.
inline constexpr uint32_t kLeastStateCopies = 2;
// Copies are no closer to each other: a chunk of a prompt.
inline constexpr uint32_t kStateCopyTokens = 256;
// Further copies take at most this part of what a budget has beside the states and the least copies; without
// a budget, of the f16 KV of the context.
inline constexpr uint64_t kStateCopiesShare = 8;

struct StatesPlan {
  uint64_t sequence_bytes = 0;  // of one sequence, and of one copy; 0: all layers keep growing KV
  uint32_t n_copies = 0;        // of a sequence, where all have as many
  // Of each sequence one more, with which a static set is chosen again while decoding (StaticPlan::steps).
  bool has_aside = false;

  uint64_t bytes(uint32_t n_sequences) const {
    return n_sequences * (1 + n_copies + (has_aside ? 1 : 0)) * sequence_bytes;
  }
  // Of a text that fills the context. Begins with nothing, and the last copy is at its end.
  uint32_t tokens_per_copy(uint32_t n_ctx) const { return n_copies == 0 ? n_ctx : CeilDiv(n_ctx, n_copies); }

  static StatesPlan Least(uint64_t sequence_bytes) {
    return {.sequence_bytes = sequence_bytes, .n_copies = sequence_bytes == 0 ? 0 : kLeastStateCopies};
  }
  static uint32_t MostCopies(uint32_t n_ctx) {
    return std::max(CeilDiv(n_ctx, kStateCopyTokens), kLeastStateCopies);
  }
};

}  // namespace kvrun
