#include "runtime/kv/groups/static_set.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "platform/base/check.h"
#include "runtime/device/record_codec.h"
#include "runtime/kv/math/cluster_records.h"

namespace kvrun {

StaticSet::StaticSet(Device& device, const KvPlan& plan, uint32_t n_layers, StaticPages* pages)
    : device_(device),
      plan_(plan),
      n_layers_(n_layers),
      choice_(plan, n_layers),
      pages_(pages),
      taken_out_(size_t{n_layers} * plan.n_streams),
      entry_(record_of(KeptTier::kOriginal).size_bytes()) {
  entries_.reserve(plan.record.group_tokens);
}

void StaticSet::DropPages(uint32_t sequence) {
  const uint32_t heads = plan_.heads_per_sequence();
  for (uint32_t stream = sequence * heads; pages_ != nullptr && stream < (sequence + 1) * heads; ++stream) {
    pages_->Drop(stream);
  }
}

// Positions of a tier ascend, as do its slots.
void StaticSet::Truncate(uint32_t sequence, uint32_t end) {
  DropPages(sequence);
  choice_.Truncate(sequence, end);
  const uint32_t heads = plan_.heads_per_sequence();
  for (uint32_t layer = 0; layer < n_layers_; ++layer) {
    for (const KeptTier tier : kKeptTiers) {
      if (sources_of(tier).empty()) continue;
      SlotBuffers& source = sources_of(tier)[layer];
      for (uint32_t stream = sequence * heads; stream < (sequence + 1) * heads; ++stream) {
        source.NameFirst(stream, static_cast<uint32_t>(choice_.positions(layer, stream, tier).size()));
      }
      (void)source.FlushTable();
    }
  }
}

std::span<const uint32_t> StaticSet::EntriesOf(uint32_t layer, uint32_t stream, uint32_t group) {
  entries_.clear();
  for (const KeptTier tier : kKeptTiers) AddEntriesOf(choice_.positions(layer, stream, tier), group);
  std::sort(entries_.begin(), entries_.end());
  return entries_;
}

void StaticSet::AddEntriesOf(std::span<const uint32_t> positions, uint32_t group) {
  for (const uint32_t position : PositionsIn(positions, group))
    entries_.push_back(position - group * plan_.record.group_tokens);
}

// Of ascending positions, those of a group. Groups are mostly asked for in their order, so it is near the
// last.
std::span<const uint32_t> StaticSet::PositionsIn(std::span<const uint32_t> positions, uint32_t group) {
  constexpr std::ptrdiff_t kNear = 8;
  const uint32_t begin = group * plan_.record.group_tokens;
  auto from = positions.begin();
  if (positions.data() == last_list_ && last_place_ <= positions.size() &&
      (last_place_ == 0 || positions[last_place_ - 1] < begin)) {
    from += static_cast<std::ptrdiff_t>(last_place_);
  }
  const auto near = from + std::min(kNear, positions.end() - from);
  auto first = std::find_if(from, near, [begin](uint32_t position) { return position >= begin; });
  if (first == near) first = std::lower_bound(near, positions.end(), begin);
  last_list_ = positions.data();
  last_place_ = static_cast<size_t>(first - positions.begin());
  auto last = first;
  while (last != positions.end() && *last < begin + plan_.record.group_tokens) ++last;
  return {first, last};
}

uint32_t StaticSet::CountOthers(uint32_t layer, uint32_t stream, uint32_t group) {
  if (IsPage(layer, stream, group)) return pages_->CountEntries(layer, stream, group);
  size_t n_taken = 0;
  for (const KeptTier tier : kKeptTiers) {
    const std::span<const uint32_t> of_tier = choice_.positions(layer, stream, tier);
    if (!of_tier.empty()) n_taken += PositionsIn(of_tier, group).size();
  }
  return plan_.record.group_tokens - static_cast<uint32_t>(n_taken);
}

void StaticSet::AddOthers(uint32_t layer, uint32_t stream, uint32_t group, std::vector<uint32_t>* positions) {
  if (IsPage(layer, stream, group)) return pages_->AddPositions(layer, stream, group, positions);
  const std::span<const uint32_t> taken = EntriesOf(layer, stream, group);
  for (uint32_t i = 0; i < plan_.record.group_tokens; ++i) {
    if (std::binary_search(taken.begin(), taken.end(), i)) continue;
    positions->push_back(group * plan_.record.group_tokens + i);
  }
}

void StaticSet::Compact(uint32_t layer, uint32_t stream, uint32_t group, std::span<std::byte> record) {
  if (IsPage(layer, stream, group)) return;
  const std::span<const uint32_t> taken = EntriesOf(layer, stream, group);
  if (taken.empty()) return;
  auto next_taken = taken.begin();
  uint32_t n = 0;
  for (uint32_t entry = 0; entry < plan_.record.group_tokens; ++entry) {
    if (next_taken != taken.end() && *next_taken == entry) {
      ++next_taken;
      continue;
    }
    if (n != entry) CopyEntry(plan_.slots.record, record, entry, plan_.slots.record, record, n);
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
  const uint32_t begin = group * plan_.record.group_tokens;
  for (const KeptTier tier : kKeptTiers) {
    const std::span<const uint32_t> all = choice_.positions(layer, stream, tier);
    auto at = std::lower_bound(all.begin(), all.end(), begin);
    for (; at != all.end() && *at < begin + plan_.record.group_tokens; ++at) {
      CopyEntry(plan_.record, record, *at - begin, record_of(KeptTier::kOriginal), entry_, 0);
      const auto slot = static_cast<uint32_t>(at - all.begin());
      std::byte* const to = sources_of(tier)[layer].Record(stream, slot);
      TranscodeRecord(record_of(KeptTier::kOriginal), entry_, record_of(tier),
                      {to, record_of(tier).size_bytes()});
    }
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

Status StaticSet::LoadStream(uint32_t layer, uint32_t stream, uint32_t first_window_group, const ReadFn& read,
                             KvIndex* index) {
  std::vector<uint32_t>& taken_out = taken_out_[ListOf(layer, stream)];
  std::vector<uint32_t> all = choice_.AllPositions(layer, stream);
  const bool lays_pages = pages_ != nullptr && (!all.empty() || has_rows_of_pages(layer, stream));
  const std::vector<uint32_t> groups = lays_pages ? GroupsOf(all, {}) : GroupsOf(all, taken_out);
  // Until all of it has succeeded, any of both may be out.
  std::vector<uint32_t> any;
  std::set_union(all.begin(), all.end(), taken_out.begin(), taken_out.end(), std::back_inserter(any));
  taken_out = std::move(any);
  const auto visit = [&](uint32_t group, std::span<const std::byte> record) -> Status {
    CopyEntries(layer, stream, group, record);
    if (index == nullptr || lays_pages) return Status::Ok();
    return index->TakeOut(layer, stream, group, record, EntriesOf(layer, stream, group));
  };
  KVRUN_RETURN_IF_ERROR(VisitGroups(layer, stream, groups, read, visit));
  if (lays_pages) KVRUN_RETURN_IF_ERROR(pages_->Lay(layer, stream, first_window_group, all, read));
  taken_out = std::move(all);
  for (const KeptTier tier : kKeptTiers) {
    if (sources_of(tier).empty()) continue;
    sources_of(tier)[layer].NameFirst(stream,
                                      static_cast<uint32_t>(choice_.positions(layer, stream, tier).size()));
  }
  return Status::Ok();
}

// Each layer has a source of each precision, so that sources have the same places. With a share of nothing
// there is no source.
Status StaticSet::MakeSources(const PrecisionShares& counts) {
  for (const KeptTier tier : kKeptTiers) {
    if (plan_.of_groups().statics.n_entries == 0 ||
        (tier == KeptTier::kLow && !choice_.precisions().go_by_score()))
      continue;
    const uint32_t n = std::max(tier == KeptTier::kLow ? counts.n_quantised : counts.n_original, 1U);
    const SlotShape shape = {.record = record_of(tier),
                             .n_streams = plan_.n_streams,
                             .n_slots = n,
                             .n_window_slots = 0,
                             .table_slots = n};
    KVRUN_ASSIGN_OR_RETURN(SlotBuffers source, SlotBuffers::Create(device_, shape));
    sources_of(tier).push_back(std::move(source));
  }
  return Status::Ok();
}

// An error of a write may come late: pages that were laid before may not be there.
Status StaticSet::Load(const ReadFn& read, std::span<const uint32_t> first_window_groups, KvIndex* index) {
  Status loaded = LoadAll(read, first_window_groups, index);
  if (loaded.ok() && pages_ != nullptr) loaded = pages_->Flush();
  for (uint32_t sequence = 0; !loaded.ok() && sequence < plan_.n_sequences; ++sequence) DropPages(sequence);
  records_ = {};
  return loaded;
}

Status StaticSet::LoadAll(const ReadFn& read, std::span<const uint32_t> first_window_groups, KvIndex* index) {
  const std::vector<PrecisionShares> counts = choice_.Settle();
  for (uint32_t layer = 0; layer < n_layers_; ++layer) {
    KVRUN_RETURN_IF_ERROR(MakeSources(counts[layer]));
    for (uint32_t stream = 0; stream < plan_.n_streams; ++stream) {
      const uint32_t sequence = stream / plan_.heads_per_sequence();
      const uint32_t end = pages_ != nullptr ? first_window_groups[sequence] : 0;
      KVRUN_RETURN_IF_ERROR(LoadStream(layer, stream, end, read, index));
    }
    for (std::vector<SlotBuffers>& sources : sources_) {
      if (!sources.empty()) KVRUN_RETURN_IF_ERROR(sources[layer].FlushAll());
    }
  }
  return Status::Ok();
}

void StaticSet::Drop() {
  for (std::vector<SlotBuffers>& sources : sources_) sources.clear();
}

Status StaticSet::TakeBack(uint32_t sequence, uint32_t end, const ReadFn& read, KvIndex* index) {
  const uint32_t heads = plan_.heads_per_sequence();
  for (const bool is_stored : {false, true}) {
    for (uint32_t layer = 0; layer < n_layers_; ++layer) {
      for (uint32_t stream = sequence * heads; stream < (sequence + 1) * heads; ++stream) {
        KVRUN_RETURN_IF_ERROR(is_stored ? TakeStreamBack(layer, stream, end, read, index)
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

Status StaticSet::PutBack(uint32_t sequence, KvIndex& index) {
  const uint32_t heads = plan_.heads_per_sequence();
  for (uint32_t layer = 0; layer < n_layers_; ++layer) {
    for (uint32_t stream = sequence * heads; stream < (sequence + 1) * heads; ++stream) {
      KVRUN_RETURN_IF_ERROR(TakeUnstoredBack(layer, stream, 0, &index));
    }
  }
  return Status::Ok();
}

// After an error, what has to be read is still out.
Status StaticSet::TakeStreamBack(uint32_t layer, uint32_t stream, uint32_t end, const ReadFn& read,
                                 KvIndex* index) {
  std::vector<uint32_t>& taken_out = taken_out_[ListOf(layer, stream)];
  const std::span<const uint32_t> ranked = choice_.ranked(layer, stream);
  std::vector<uint32_t> kept(ranked.begin(), ranked.end());
  std::sort(kept.begin(), kept.end());
  std::vector<uint32_t> lost;
  std::vector<uint32_t> out;
  std::set_difference(taken_out.begin(), taken_out.end(), kept.begin(), kept.end(), std::back_inserter(lost));
  std::set_intersection(taken_out.begin(), taken_out.end(), kept.begin(), kept.end(),
                        std::back_inserter(out));
  const auto visit = [&](uint32_t group, std::span<const std::byte> record) -> Status {
    entries_.clear();
    AddEntriesOf(out, group);
    return index->TakeOut(layer, stream, group, record, entries_);
  };
  if (index != nullptr) {
    const std::vector<uint32_t> groups =
        has_rows_of_pages(layer, stream) ? pages_->GroupsOfRows(layer, stream, end) : GroupsOf(lost, {});
    KVRUN_RETURN_IF_ERROR(VisitGroups(layer, stream, groups, read, visit));
  }
  if (pages_ != nullptr) pages_->NoteRows(layer, stream);
  taken_out = std::move(out);
  return Status::Ok();
}

void StaticSet::AddSources(uint32_t layer, SlotAttentionArgs* args) const {
  for (const std::vector<SlotBuffers>& sources : sources_) {
    if (!sources.empty()) args->Add(sources[layer].source());
  }
}

Status StaticSet::VisitState(StateVisitor& visitor) {
  enum Item : uint16_t { kTakenOut = 0 };
  KVRUN_RETURN_IF_ERROR(choice_.VisitState(visitor));
  for (uint32_t layer = 0; layer < n_layers_; ++layer) {
    for (uint32_t stream = 0; stream < plan_.n_streams; ++stream) {
      std::vector<uint32_t>& taken_out = taken_out_[ListOf(layer, stream)];
      KVRUN_RETURN_IF_ERROR(
          visitor.Vector({StatePart::kStaticSet, kTakenOut, layer, stream}, &taken_out, plan_.n_ctx));
      if (AreAscending(taken_out, plan_.n_ctx)) continue;
      return {StatusCode::kCorrupt,
              fmt::format("what is taken out of layer {}, stream {} is in no order", layer, stream)};
    }
  }
  return pages_ != nullptr ? pages_->VisitState(visitor) : Status::Ok();
}

}  // namespace kvrun
