#include "runtime/kv/groups/static_set.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <utility>

#include "platform/base/check.h"
#include "runtime/device/record_codec.h"
#include "runtime/kv/math/cluster_records.h"

namespace kvrun {

StaticSet::StaticSet(Device& device, const KvPlan& plan, uint32_t n_layers, StaticPages* pages)
    : device_(device),
      plan_(plan),
      n_layers_(n_layers),
      pages_(pages),
      entry_record_(plan.entry_record()),
      has_share_(!plan.of_groups().statics.share.by_prompt),
      ranked_(size_t{n_layers} * plan.n_streams),
      taken_out_(ranked_.size()),
      has_attention_(plan.n_sequences),
      entry_(entry_record_.size_bytes()) {
  for (Tier& tier : tiers_) tier.positions.resize(ranked_.size());
  if (goes_by_score()) attention_.resize(size_t{n_layers} * plan.n_sequences);
  entries_.reserve(plan.record.group_tokens);
}

// Until prompts have said the share, all that it could be.
uint32_t StaticSet::most_entries() const {
  return has_share_ ? plan_.of_groups().statics.most_entries
                    : plan_.of_groups().statics.n_total * plan_.record.group_tokens;
}

MassForm StaticSet::mass_form() const {
  if (!goes_by_score()) return {};
  return {.n_moments = plan_.of_groups().statics.moments == AttentionMoments::kRows ? 4U : 2U};
}

// mass: [n_moments, n_kv_heads, end], of which the stream's heads are added up.
void StaticSet::ScoreStream(uint32_t head, uint32_t end, std::span<const float> mass, uint32_t n_rows,
                            std::span<float> scores) const {
  std::fill(scores.begin(), scores.end(), 0.0F);
  const size_t squares = size_t{model_heads()} * end;
  for (uint32_t i = head * plan_.record.n_heads; i < (head + 1) * plan_.record.n_heads; ++i) {
    for (uint32_t position = 0; position < end; ++position) {
      const size_t at = size_t{i} * end + position;
      double score = mass[at];
      if (goes_by_score()) {
        score = HeavyHitterScore(score, mass[squares + at], n_rows, ArkvConstants().gamma);
      }
      // What is no number would have no order.
      scores[position] += std::isfinite(score) ? static_cast<float>(score) : 0.0F;
    }
  }
}

void StaticSet::NoteAttention(uint32_t layer, uint32_t sequence, uint32_t end, std::span<const float> mass,
                              uint32_t n_rows) {
  const size_t n_first = size_t{model_heads()} * end;
  attention_[size_t{sequence} * n_layers_ + layer] =
      plan_.of_groups().statics.moments == AttentionMoments::kRows
          ? AttentionOverRows(mass, model_heads(), n_rows)
          : AttentionOverKeys(mass.first(n_first), model_heads());
  has_attention_[sequence] = true;
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
  const uint32_t first_stream = prompt.sequence * heads;
  const uint32_t end = plan_.FirstWindowGroup(prompt.end) * plan_.record.group_tokens;
  const uint32_t begin = plan_.choice.n_pinned * plan_.record.group_tokens;
  for (uint32_t stream = first_stream; stream < first_stream + heads; ++stream) {
    ranked_[ListOf(layer, stream)].clear();
    Split(layer, stream, {});
  }
  if (end <= begin) return Status::Ok();
  KVRUN_RETURN_IF_ERROR(Rank(layer, prompt, begin, end, entries));
  return has_share_ ? Status::Ok() : MeasureOverlap(end, entries);
}

Status StaticSet::Rank(uint32_t layer, const KvRange& prompt, uint32_t begin, uint32_t end,
                       PromptEntries& entries) {
  const uint32_t heads = plan_.heads_per_sequence();
  const uint32_t first_stream = prompt.sequence * heads;
  const MassForm form = mass_form();
  std::vector<float> mass(size_t{form.n_moments} * model_heads() * end);
  KVRUN_RETURN_IF_ERROR(entries.Mass(form, end, PromptEntries::Rows::kAll, mass));
  const uint32_t n_rows = entries.observed().n_rows;
  if (goes_by_score()) NoteAttention(layer, prompt.sequence, end, mass, n_rows);
  std::vector<float> scores(end);
  for (uint32_t head = 0; head < heads; ++head) {
    ScoreStream(head, end, mass, n_rows, scores);
    KeepLargest(scores, begin, most_entries(), &ranked_[ListOf(layer, first_stream + head)]);
    if (has_share_ && !goes_by_score()) Split(layer, first_stream + head, CountsOf(layer, {}));
  }
  order_ = {};
  return Status::Ok();
}

// Where a selection would hold all of it, rows do not differ, and say nothing.
Status StaticSet::MeasureOverlap(uint32_t end, PromptEntries& entries) {
  const uint32_t k = plan_.of_groups().statics.n_total * plan_.record.group_tokens;
  if (end <= k) return Status::Ok();
  std::vector<uint32_t> of_rows[2];
  std::vector<float> mass[2];
  for (const bool is_last : {false, true}) {
    mass[is_last].resize(size_t{model_heads()} * end);
    const auto rows = is_last ? PromptEntries::Rows::kLast : PromptEntries::Rows::kFirst;
    KVRUN_RETURN_IF_ERROR(entries.Mass(MassForm(), end, rows, mass[is_last]));
    for (float& value : mass[is_last]) value = std::isfinite(value) ? value : 0.0F;
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

std::vector<double> StaticSet::original_shares() const {
  std::vector<double> shares;
  if (!goes_by_score()) return shares;
  uint32_t n = 0;
  for (uint32_t sequence = 0; sequence < plan_.n_sequences; ++sequence) {
    if (!has_attention_[sequence]) continue;
    const std::vector<double> of_sequence = OriginalShares(
        std::span(attention_).subspan(size_t{sequence} * n_layers_, n_layers_), ArkvConstants());
    shares.resize(n_layers_);
    for (uint32_t layer = 0; layer < n_layers_; ++layer) shares[layer] += of_sequence[layer];
    ++n;
  }
  for (double& share : shares) share = std::min(share / n, 1.0);
  return shares;
}

PrecisionShares StaticSet::CountsOf(uint32_t layer, std::span<const double> original_shares) const {
  const uint32_t n = plan_.of_groups().statics.n_entries;
  if (!goes_by_score()) return {.n_original = n};
  const double share = original_shares.empty() ? 1.0 : original_shares[layer];
  switch (plan_.of_groups().statics.precisions) {
    case KeptPrecisions::kOriginal: return {.n_original = n};
    case KeptPrecisions::kQuantised: return {.n_quantised = n};
    case KeptPrecisions::kEntries: return SharesOfEntries(share, n);
    case KeptPrecisions::kBytes: break;
  }
  return SharesOfBytes(share, n, entry_record_.size_bytes(),
                       plan_.of_groups().statics.low_record.size_bytes());
}

// The best keep their precision, the next have fewer bits.
void StaticSet::Split(uint32_t layer, uint32_t stream, const PrecisionShares& counts) {
  const std::span<const uint32_t> ranked = ranked_[ListOf(layer, stream)];
  size_t first = 0;
  for (const KeptTier tier : kKeptTiers) {
    const uint32_t most = tier == KeptTier::kLow ? counts.n_quantised : counts.n_original;
    const auto some = ranked.subspan(first, std::min<size_t>(most, ranked.size() - first));
    std::vector<uint32_t>& positions = tiers_[static_cast<size_t>(tier)].positions[ListOf(layer, stream)];
    positions.assign(some.begin(), some.end());
    std::sort(positions.begin(), positions.end());
    first += some.size();
  }
}

std::vector<uint32_t> StaticSet::AllPositions(uint32_t layer, uint32_t stream) const {
  std::vector<uint32_t> all;
  const auto originals = positions(layer, stream, KeptTier::kOriginal);
  const auto lows = positions(layer, stream, KeptTier::kLow);
  std::merge(originals.begin(), originals.end(), lows.begin(), lows.end(), std::back_inserter(all));
  return all;
}

void StaticSet::ChooseEvenly(uint32_t sequence, uint32_t end) {
  const uint32_t heads = plan_.heads_per_sequence();
  const uint32_t begin = std::min(plan_.choice.n_pinned * plan_.record.group_tokens, end);
  const uint32_t n = std::min(plan_.of_groups().statics.most_entries, end - begin);
  for (uint32_t layer = 0; layer < n_layers_; ++layer) {
    for (uint32_t stream = sequence * heads; stream < (sequence + 1) * heads; ++stream) {
      std::vector<uint32_t>& ranked = ranked_[ListOf(layer, stream)];
      ranked.resize(n);
      for (uint32_t i = 0; i < n; ++i) {
        ranked[i] = begin + static_cast<uint32_t>(uint64_t{i} * (end - begin) / n);
      }
      if (has_share_ && !goes_by_score()) Split(layer, stream, CountsOf(layer, {}));
    }
  }
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
  const uint32_t heads = plan_.heads_per_sequence();
  const auto is_gone = [end](uint32_t position) { return position >= end; };
  for (uint32_t layer = 0; layer < n_layers_; ++layer) {
    for (uint32_t stream = sequence * heads; stream < (sequence + 1) * heads; ++stream) {
      std::erase_if(ranked_[ListOf(layer, stream)], is_gone);
      for (Tier& tier : tiers_) {
        std::vector<uint32_t>& positions = tier.positions[ListOf(layer, stream)];
        std::erase_if(positions, is_gone);
        if (tier.sources.empty()) continue;
        tier.sources[layer].NameFirst(stream, static_cast<uint32_t>(positions.size()));
        (void)tier.sources[layer].FlushTable();
      }
    }
  }
}

std::span<const uint32_t> StaticSet::EntriesOf(uint32_t layer, uint32_t stream, uint32_t group) {
  entries_.clear();
  for (const KeptTier tier : kKeptTiers) AddEntriesOf(positions(layer, stream, tier), group);
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
    const std::span<const uint32_t> of_tier = positions(layer, stream, tier);
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
    const std::span<const uint32_t> all = positions(layer, stream, tier);
    auto at = std::lower_bound(all.begin(), all.end(), begin);
    for (; at != all.end() && *at < begin + plan_.record.group_tokens; ++at) {
      CopyEntry(plan_.record, record, *at - begin, entry_record_, entry_, 0);
      const auto slot = static_cast<uint32_t>(at - all.begin());
      std::byte* const to = tiers_[static_cast<size_t>(tier)].sources[layer].Record(stream, slot);
      TranscodeRecord(entry_record_, entry_, record_of(tier), {to, record_of(tier).size_bytes()});
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
  std::vector<uint32_t> all = AllPositions(layer, stream);
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
    const std::vector<SlotBuffers>& sources = tiers_[static_cast<size_t>(tier)].sources;
    if (sources.empty()) continue;
    sources[layer].NameFirst(stream, static_cast<uint32_t>(positions(layer, stream, tier).size()));
  }
  return Status::Ok();
}

// Each layer has a source of each precision, so that sources have the same places. With a share of nothing
// there is no source.
Status StaticSet::MakeSources(const PrecisionShares& counts) {
  for (const KeptTier tier : kKeptTiers) {
    if (plan_.of_groups().statics.n_entries == 0 || (tier == KeptTier::kLow && !goes_by_score())) continue;
    const uint32_t n = std::max(tier == KeptTier::kLow ? counts.n_quantised : counts.n_original, 1U);
    const SlotShape shape = {.record = record_of(tier),
                             .n_streams = plan_.n_streams,
                             .n_slots = n,
                             .n_window_slots = 0,
                             .table_slots = n};
    KVRUN_ASSIGN_OR_RETURN(SlotBuffers source, SlotBuffers::Create(device_, shape));
    tiers_[static_cast<size_t>(tier)].sources.push_back(std::move(source));
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

// Where prompts have not said the share yet, a later one may.
Status StaticSet::LoadAll(const ReadFn& read, std::span<const uint32_t> first_window_groups, KvIndex* index) {
  has_share_ = !plan_.of_groups().statics.share.by_prompt || measured_share();
  const std::vector<double> shares = original_shares();
  for (uint32_t layer = 0; layer < n_layers_; ++layer) {
    const PrecisionShares counts = CountsOf(layer, shares);
    KVRUN_RETURN_IF_ERROR(MakeSources(counts));
    for (uint32_t stream = 0; stream < plan_.n_streams; ++stream) {
      Split(layer, stream, counts);
      const uint32_t sequence = stream / plan_.heads_per_sequence();
      const uint32_t end = pages_ != nullptr ? first_window_groups[sequence] : 0;
      KVRUN_RETURN_IF_ERROR(LoadStream(layer, stream, end, read, index));
    }
    for (Tier& tier : tiers_) {
      if (!tier.sources.empty()) KVRUN_RETURN_IF_ERROR(tier.sources[layer].FlushAll());
    }
  }
  return Status::Ok();
}

void StaticSet::Drop() {
  for (Tier& tier : tiers_) tier.sources.clear();
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

// After an error, what has to be read is still out.
Status StaticSet::TakeStreamBack(uint32_t layer, uint32_t stream, uint32_t end, const ReadFn& read,
                                 KvIndex* index) {
  std::vector<uint32_t>& taken_out = taken_out_[ListOf(layer, stream)];
  std::vector<uint32_t> kept = ranked_[ListOf(layer, stream)];
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
  for (const Tier& tier : tiers_) {
    if (!tier.sources.empty()) args->Add(tier.sources[layer].source());
  }
}

}  // namespace kvrun
