// Groups by chance, beside the pinned ones: what a selection has to be better than.
#pragma once

#include <algorithm>

#include "platform/base/random.h"
#include "runtime/kv/select/host_selector.h"

namespace kvrun {

// A choice depends on layer, head and position alone: the same prompt has the same answer whatever its batch,
// and a step that is done again chooses the same.
class RandomSelector final : public HostSelector {
 public:
  using HostSelector::HostSelector;

 private:
  // Selection sampling: each group with the same chance, in one pass, in order.
  uint32_t Fill(const StreamStep& step, std::span<uint32_t> groups) override {
    const uint64_t stream = uint64_t{step.layer} * plan().heads_per_sequence() + step.head;
    Random random((stream << 32) + step.position);
    const uint32_t n_pinned = std::min(plan().choice.n_pinned, step.n_groups);
    uint32_t left = std::min(plan().choice.n_chosen, step.n_groups) - n_pinned;
    uint32_t n = 0;
    for (; n < n_pinned; ++n) groups[n] = n;
    for (uint32_t group = n_pinned; left > 0; ++group) {
      if (random.Below(step.n_groups - group) >= left) continue;
      groups[n++] = group;
      --left;
    }
    return n;
  }
};

}  // namespace kvrun
