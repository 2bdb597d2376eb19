#include "runtime/kv/static_set.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <utility>

#include "platform/base/check.h"
#include "runtime/kv/cluster_records.h"

namespace kvrun {

StaticSet::StaticSet(Device& device, const KvPlan& plan, uint32_t n_layers)
    : device_(device),
      plan_(plan),
      n_layers_(n_layers),
      has_share_(!plan.statics.share.by_prompt),
      positions_(size_t{n_layers} * plan.n_streams),
      taken_out_(positions_.size()) {
  entries_.reserve(plan.record.group_tokens);
}

// Until prompts have said the share, all that it could be.
uint32_t StaticSet::most_entries() const {
  return has_share_ ? plan_.statics.n_entries : plan_.statics.n_total * plan_.record.group_tokens;
}

// The n positions with the largest scores of [begin, scores.size()), by rank.
void StaticSet::KeepLargest(std::span<const float> scores, uint32_t begin, uint32_t n,
                            std::vector<uint32_t>* kept) {
  const auto end = static_cast<uint32_t>(scores.size());
  order_.resize(end - std::min(begin, end));
  std::iota(order_.begin(), order_.end(), begin);
  n = std::min(n, static_cast<uint32_t>(order_.size()));
  std::partial_sort(order_.begin(), order_.begin() + n, order_.end(), [&](uint32_t a, uint32_t b) {
    return scores[a] != scores[b] ? scores[a] > scores[b] : a > b;
  });
  kept->assign(order_.begin(), order_.begin() + n);
}

Status StaticSet::Choose(uint32_t layer, const KvRange& prompt, PromptEntries& entries) {
  const uint32_t heads = plan_.heads_per_sequence();
  const uint32_t end = plan_.FirstWindowGroup(prompt.end) * plan_.record.group_tokens;
  const uint32_t begin = plan_.n_pinned * plan_.record.group_tokens;
  for (uint32_t head = 0; head < heads; ++head) {
    positions_[ListOf(layer, prompt.sequence * heads + head)].clear();
  }
  if (end <= begin) return Status::Ok();
  std::vector<float> mass(size_t{model_heads()} * end);
  KVRUN_RETURN_IF_ERROR(entries.Mass(MassForm(), end, PromptEntries::Rows::kAll, mass));
  const uint32_t heads_of_stream = plan_.record.n_heads;
  std::vector<float> scores(end);
  for (uint32_t head = 0; head < heads; ++head) {
    std::fill(scores.begin(), scores.end(), 0.0F);
    for (uint32_t i = head * heads_of_stream; i < (head + 1) * heads_of_stream; ++i) {
      for (uint32_t position = 0; position < end; ++position) {
        const float value = mass[size_t{i} * end + position];
        // What is no number would have no order.
        scores[position] += std::isfinite(value) ? value : 0.0F;
      }
    }
    std::vector<uint32_t>& positions = positions_[ListOf(layer, prompt.sequence * heads + head)];
    KeepLargest(scores, begin, most_entries(), &positions);
    if (has_share_) std::sort(positions.begin(), positions.end());
  }
  order_ = {};
  return has_share_ ? Status::Ok() : MeasureOverlap(end, entries);
}

Status StaticSet::MeasureOverlap(uint32_t end, PromptEntries& entries) {
  const uint32_t k = std::min(plan_.statics.n_total * plan_.record.group_tokens, end);
  std::vector<uint32_t> of_rows[2];
  std::vector<float> mass[2];
  for (const bool is_last : {false, true}) {
    mass[is_last].resize(size_t{model_heads()} * end);
    const auto rows = is_last ? PromptEntries::Rows::kLast : PromptEntries::Rows::kFirst;
    KVRUN_RETURN_IF_ERROR(entries.Mass(MassForm(), end, rows, mass[is_last]));
  }
  if (!overlap_) overlap_.emplace();
  for (uint32_t head = 0; head < model_heads(); ++head) {
    for (const bool is_last : {false, true}) {
      KeepLargest(std::span(mass[is_last]).subspan(size_t{head} * end, end), 0, k, &of_rows[is_last]);
      std::sort(of_rows[is_last].begin(), of_rows[is_last].end());
    }
    std::vector<uint32_t> both;
    std::set_intersection(of_rows[0].begin(), of_rows[0].end(), of_rows[1].begin(), of_rows[1].end(),
                          std::back_inserter(both));
    overlap_->sum += both.size();
    overlap_->n_entries += k;
    ++overlap_->n_heads;
  }
  order_ = {};
  return Status::Ok();
}

std::optional<double> StaticSet::measured_share() const {
  if (!overlap_ || overlap_->n_heads == 0 || overlap_->n_entries == 0) return std::nullopt;
  const auto n_heads = static_cast<double>(overlap_->n_heads);
  const double group = plan_.record.group_tokens;
  const double mean = group * std::floor(static_cast<double>(overlap_->sum) / n_heads / group);
  return mean * n_heads / static_cast<double>(overlap_->n_entries);
}

void StaticSet::ChooseEvenly(uint32_t sequence, uint32_t end) {
  const uint32_t heads = plan_.heads_per_sequence();
  const uint32_t begin = std::min(plan_.n_pinned * plan_.record.group_tokens, end);
  const uint32_t n = std::min(plan_.statics.n_entries, end - begin);
  for (uint32_t layer = 0; layer < n_layers_; ++layer) {
    for (uint32_t stream = sequence * heads; stream < (sequence + 1) * heads; ++stream) {
      std::vector<uint32_t>& positions = positions_[ListOf(layer, stream)];
      positions.resize(n);
      for (uint32_t i = 0; i < n; ++i) {
        positions[i] = begin + static_cast<uint32_t>(uint64_t{i} * (end - begin) / n);
      }
    }
  }
}

// Where there is a source, positions ascend, and so do its slots.
void StaticSet::Truncate(uint32_t sequence, uint32_t end) {
  const uint32_t heads = plan_.heads_per_sequence();
  for (uint32_t layer = 0; layer < n_layers_; ++layer) {
    for (uint32_t stream = sequence * heads; stream < (sequence + 1) * heads; ++stream) {
      std::vector<uint32_t>& positions = positions_[ListOf(layer, stream)];
      std::erase_if(positions, [end](uint32_t position) { return position >= end; });
      if (sources_.empty()) continue;
      sources_[layer].NameFirst(stream, static_cast<uint32_t>(positions.size()));
      (void)sources_[layer].FlushTable();
    }
  }
}

std::span<const uint32_t> StaticSet::EntriesOf(uint32_t layer, uint32_t stream, uint32_t group) {
  return EntriesOfGroup(positions(layer, stream), group);
}

std::span<const uint32_t> StaticSet::EntriesOfGroup(std::span<const uint32_t> all, uint32_t group) {
  const uint32_t begin = group * plan_.record.group_tokens;
  entries_.clear();
  for (auto at = std::lower_bound(all.begin(), all.end(), begin);
       at != all.end() && *at < begin + plan_.record.group_tokens; ++at) {
    entries_.push_back(*at - begin);
  }
  return entries_;
}

uint32_t StaticSet::CountOthers(uint32_t layer, uint32_t stream, uint32_t group) {
  return plan_.record.group_tokens - static_cast<uint32_t>(EntriesOf(layer, stream, group).size());
}

void StaticSet::Compact(uint32_t layer, uint32_t stream, uint32_t group, std::span<std::byte> record) {
  const std::span<const uint32_t> taken = EntriesOf(layer, stream, group);
  if (taken.empty()) return;
  auto next_taken = taken.begin();
  uint32_t n = 0;
  for (uint32_t entry = 0; entry < plan_.record.group_tokens; ++entry) {
    if (next_taken != taken.end() && *next_taken == entry) {
      ++next_taken;
      continue;
    }
    if (n != entry) CopyEntry(plan_.slot_record, record, entry, plan_.slot_record, record, n);
    ++n;
  }
}

// Numbers of groups that hold any of them, ascending.
std::vector<uint32_t> StaticSet::GroupsOf(std::span<const uint32_t> a, std::span<const uint32_t> b) const {
  std::vector<uint32_t> groups;
  for (const std::span<const uint32_t> positions : {a, b}) {
    for (const uint32_t position : positions) groups.push_back(position / plan_.record.group_tokens);
  }
  std::sort(groups.begin(), groups.end());
  groups.erase(std::unique(groups.begin(), groups.end()), groups.end());
  return groups;
}

void StaticSet::CopyEntries(uint32_t layer, uint32_t stream, uint32_t group,
                            std::span<const std::byte> record) {
  const KvRecordShape entry = plan_.entry_record();
  const std::span<const uint32_t> all = positions(layer, stream);
  for (const uint32_t i : EntriesOf(layer, stream, group)) {
    const uint32_t position = group * plan_.record.group_tokens + i;
    const auto slot = static_cast<uint32_t>(std::lower_bound(all.begin(), all.end(), position) - all.begin());
    CopyEntry(plan_.record, record, i, entry, {sources_[layer].Record(stream, slot), entry.size_bytes()}, 0);
  }
}

Status StaticSet::VisitGroups(uint32_t layer, uint32_t stream, std::span<const uint32_t> groups,
                              const ReadFn& read, const VisitFn& visit) {
  const uint64_t bytes = plan_.record.size_bytes();
  for (size_t first = 0; first < groups.size(); first += kGroupsAtOnce) {
    const auto some = groups.subspan(first, std::min<size_t>(kGroupsAtOnce, groups.size() - first));
    records_.resize(some.size() * bytes);
    KVRUN_RETURN_IF_ERROR(read(layer, stream, some, records_));
    for (size_t i = 0; i < some.size(); ++i) {
      KVRUN_RETURN_IF_ERROR(visit(some[i], std::span<const std::byte>(records_).subspan(i * bytes, bytes)));
    }
  }
  return Status::Ok();
}

Status StaticSet::LoadStream(uint32_t layer, uint32_t stream, const ReadFn& read, KvIndex* index) {
  std::vector<uint32_t>& positions = positions_[ListOf(layer, stream)];
  std::vector<uint32_t>& taken_out = taken_out_[ListOf(layer, stream)];
  if (positions.size() > plan_.statics.n_entries) positions.resize(plan_.statics.n_entries);
  std::sort(positions.begin(), positions.end());
  const std::vector<uint32_t> groups = GroupsOf(positions, taken_out);
  // Until all of it has succeeded, any of both may be out.
  std::vector<uint32_t> any;
  std::set_union(positions.begin(), positions.end(), taken_out.begin(), taken_out.end(),
                 std::back_inserter(any));
  taken_out = std::move(any);
  const auto visit = [&](uint32_t group, std::span<const std::byte> record) -> Status {
    CopyEntries(layer, stream, group, record);
    if (index == nullptr) return Status::Ok();
    return index->TakeOut(layer, stream, group, record, EntriesOf(layer, stream, group));
  };
  KVRUN_RETURN_IF_ERROR(VisitGroups(layer, stream, groups, read, visit));
  taken_out = positions;
  if (!sources_.empty()) sources_[layer].NameFirst(stream, static_cast<uint32_t>(positions.size()));
  return Status::Ok();
}

// Where prompts have not said the share yet, a later one may. With a share of nothing there is no source.
Status StaticSet::Load(const ReadFn& read, KvIndex* index) {
  has_share_ = !plan_.statics.share.by_prompt || measured_share();
  const uint32_t n = plan_.statics.n_entries;
  const SlotShape shape = {.record = plan_.entry_record(),
                           .n_streams = plan_.n_streams,
                           .n_slots = n,
                           .n_window_slots = 0,
                           .table_slots = n};
  for (uint32_t layer = 0; layer < n_layers_; ++layer) {
    if (n > 0) {
      KVRUN_ASSIGN_OR_RETURN(SlotBuffers source, SlotBuffers::Create(device_, shape));
      sources_.push_back(std::move(source));
    }
    for (uint32_t stream = 0; stream < plan_.n_streams; ++stream) {
      KVRUN_RETURN_IF_ERROR(LoadStream(layer, stream, read, index));
    }
    if (n > 0) KVRUN_RETURN_IF_ERROR(sources_[layer].FlushAll());
  }
  records_ = {};
  return Status::Ok();
}

void StaticSet::Drop() { sources_.clear(); }

// What cannot be read comes first: after an error all that is still out can be read.
Status StaticSet::TakeBack(uint32_t sequence, uint32_t end, const ReadFn& read, KvIndex* index) {
  const uint32_t heads = plan_.heads_per_sequence();
  for (const bool is_stored : {false, true}) {
    for (uint32_t layer = 0; layer < n_layers_; ++layer) {
      for (uint32_t stream = sequence * heads; stream < (sequence + 1) * heads; ++stream) {
        KVRUN_RETURN_IF_ERROR(is_stored ? TakeStreamBack(layer, stream, read, index)
                                        : TakeUnstoredBack(layer, stream, end, index));
      }
    }
  }
  records_ = {};
  return Status::Ok();
}

Status StaticSet::TakeUnstoredBack(uint32_t layer, uint32_t stream, uint32_t end, KvIndex* index) {
  std::vector<uint32_t>& taken_out = taken_out_[ListOf(layer, stream)];
  const uint32_t first = end / plan_.record.group_tokens * plan_.record.group_tokens;
  const auto lost = std::lower_bound(taken_out.begin(), taken_out.end(), first);
  for (const uint32_t group : GroupsOf({lost, taken_out.end()}, {})) {
    if (index != nullptr) KVRUN_RETURN_IF_ERROR(index->TakeOut(layer, stream, group, {}, {}));
  }
  taken_out.erase(lost, taken_out.end());
  return Status::Ok();
}

Status StaticSet::TakeStreamBack(uint32_t layer, uint32_t stream, const ReadFn& read, KvIndex* index) {
  std::vector<uint32_t>& taken_out = taken_out_[ListOf(layer, stream)];
  std::vector<uint32_t> kept = positions_[ListOf(layer, stream)];
  std::sort(kept.begin(), kept.end());
  std::vector<uint32_t> lost;
  std::vector<uint32_t> out;
  std::set_difference(taken_out.begin(), taken_out.end(), kept.begin(), kept.end(), std::back_inserter(lost));
  std::set_intersection(taken_out.begin(), taken_out.end(), kept.begin(), kept.end(),
                        std::back_inserter(out));
  if (lost.empty()) return Status::Ok();
  if (index != nullptr) {
    KVRUN_RETURN_IF_ERROR(VisitGroups(layer, stream, GroupsOf(lost, {}), read,
                                      [&](uint32_t group, std::span<const std::byte> record) -> Status {
                                        return index->TakeOut(layer, stream, group, record,
                                                              EntriesOfGroup(out, group));
                                      }));
  }
  taken_out = std::move(out);
  return Status::Ok();
}

void StaticSet::AddSource(uint32_t layer, SlotAttentionArgs* args) const {
  if (!sources_.empty()) args->Add(sources_[layer].source());
}

}  // namespace kvrun
