#include "runtime/kv/serve/attended_entries.h"

#include <algorithm>
#include <utility>

namespace kvrun {

void AttendedEntries::BeginStep() {
  notes_ = false;
  counts_ = std::exchange(counts_next_, false);
}

void AttendedEntries::CountInText(uint32_t layer) {
  for (uint32_t head = 0; head < parts_.plan.heads_per_sequence(); ++head) {
    wanted_.clear();
    parts_.server->AddPositions(layer, 0, head, &wanted_);
    std::sort(wanted_.begin(), wanted_.end());
    for (size_t i = 0; i < wanted_.size(); ++i) {
      wanted_in_text_.runs += i == 0 || wanted_[i] != wanted_[i - 1] + 1 ? 1 : 0;
    }
    wanted_in_text_.entries += wanted_.size();
  }
}

void AttendedEntries::NoteLayer(uint32_t layer) {
  if (counts_) CountInText(layer);
  if (!notes_) return;
  const uint32_t heads = parts_.plan.heads_per_sequence();
  positions_.resize(size_t{parts_.n_layers} * heads);
  for (uint32_t head = 0; head < heads; ++head) {
    std::vector<uint32_t>& positions = positions_[size_t{layer} * heads + head];
    positions.clear();
    if (parts_.family.reader != nullptr) parts_.server->AddPositions(layer, 0, head, &positions);
    if (parts_.family.kept != nullptr) parts_.family.kept->AddKeptPositions(layer, 0, head, &positions);
    std::sort(positions.begin(), positions.end());
  }
}

std::vector<std::vector<uint32_t>> AttendedEntries::BeforeWindow(uint32_t layer, uint32_t row,
                                                                 uint32_t position) const {
  if (!tells_entries()) return parts_.server->GroupsBeforeWindow(layer, row, position);
  const uint32_t heads = parts_.plan.heads_per_sequence();
  const auto first = positions_.begin() + static_cast<ptrdiff_t>(size_t{layer} * heads);
  return {first, first + heads};
}

}  // namespace kvrun
