// What a sequence was given last: to compute it again, as a prompt, when its static set is chosen while
// decoding (StaticPlan::steps).
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/engine/pass/forward_pass.h"

namespace kvrun {

// The last tokens of a sequence, before position `end`.
struct RecentTokens {
  std::vector<TokenId> ids;
  uint32_t end = 0;
  uint32_t chosen_at = 0;  // how many entries there were when its static set was chosen

  uint32_t begin() const { return end - static_cast<uint32_t>(ids.size()); }
  TokenId At(uint32_t position) const { return ids[position - begin()]; }
  void Add(const StepRow& row, uint32_t most) {
    if (ids.empty() || row.position < begin() || row.position > end) {
      ids.clear();
      chosen_at = row.position;
    } else {
      ids.resize(row.position - begin());
    }
    ids.push_back(row.id);
    end = row.position + 1;
    if (ids.size() > most) ids.erase(ids.begin());
  }
};

}  // namespace kvrun
