// The sinks and nothing else: with the window, what StreamingLLM attends to (arXiv 2309.17453).
#pragma once

#include <algorithm>
#include <numeric>

#include "runtime/kv/select/host_selector.h"

namespace kvrun {

class PinnedSelector final : public HostSelector {
 public:
  using HostSelector::HostSelector;

 private:
  uint32_t Fill(const StreamStep& step, std::span<uint32_t> groups) override {
    const uint32_t n = std::min(plan().choice.n_pinned, step.n_groups);
    std::iota(groups.begin(), groups.begin() + n, 0U);
    return n;
  }
};

}  // namespace kvrun
