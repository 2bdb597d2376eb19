#include "runtime/kv/serve/group_server.h"

#include <algorithm>

namespace kvrun {

ReadingServer::Wanted GroupServer::RecordsOf(const StreamStep& step, std::span<const uint32_t> chosen,
                                             const GroupSample& sample) {
  // The exact groups come first.
  const auto others = std::lower_bound(chosen.begin(), chosen.end(), plan_.window.n_exact_groups);
  const auto n_first = static_cast<size_t>(others - chosen.begin());
  Wanted wanted{.records = chosen.subspan(n_first), .may_stay_unread = MayStayUnread(step, n_first)};
  if (!sample.groups.empty()) wanted.records = WithSample(wanted.records, sample);
  return wanted;
}

std::span<const GroupFetch> GroupServer::Reads(uint32_t layer, std::span<const GroupFetch> fetches) {
  return statics_ != nullptr ? statics_->Reads(layer, fetches) : fetches;
}

void GroupServer::NoteRead(uint32_t layer, std::span<const GroupFetch> fetches) {
  if (statics_ == nullptr) return;
  for (const GroupFetch& fetch : fetches) {
    statics_->Compact(layer, fetch.stream, fetch.group, {fetch.memory, plan_.slots.record.size_bytes()});
  }
}

uint32_t GroupServer::CountOf(const StreamStep& step, uint32_t record) const {
  if (statics_ == nullptr || !plan_.has_statics()) return plan_.record.group_tokens;
  return statics_->CountOthers(step.layer, step.stream, record);
}

void GroupServer::AddPositionsOf(const StreamStep& step, std::vector<uint32_t>* positions) {
  for (const uint32_t group : LastAttended(step)) {
    statics_->AddOthers(step.layer, step.stream, group, positions);
  }
}

}  // namespace kvrun
