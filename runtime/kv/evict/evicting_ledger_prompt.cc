// What stays of a prompt, and where it is while prompts are computed.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>

#include "platform/base/check.h"
#include "runtime/device/record_codec.h"
#include "runtime/kv/evict/evicting_ledger.h"
#include "runtime/kv/memory/host_buffer.h"

namespace kvrun {
namespace {

constexpr double kHeadFloorShare = 0.2;   // Ada-KV's safeguard
constexpr uint32_t kLeastLayerParts = 4;  // a layer has a fourth of its even share at least
constexpr uint32_t kLeastOriginals = 8;   // what leaves the window is exact at first
constexpr uint32_t kNotKept = UINT32_MAX;

}  // namespace

// What layers have kept of a prompt that failed is nobody's.
Status EvictingLedger::UndoPrefill() {
  if (!window_.in_prefill()) return Status::Ok();
  Clear(window_.prefilled_sequence());
  return window_.UndoPrefill();
}

void EvictingLedger::Clear(uint32_t sequence) {
  sequences_[sequence] = {};
  std::erase_if(seen_, [sequence](const KvSpan& span) { return span.sequence == sequence; });
  for (uint32_t layer = 0; layer < n_layers_; ++layer) {
    shares_[size_t{layer} * plan_.n_sequences + sequence] = {};
    for (uint32_t stream = sequence * heads(); stream < (sequence + 1) * heads(); ++stream) {
      vault_.list(layer, stream) = {};
      list_entries_[ListOf(layer, stream)] = plan_.of_kept().n_entries;
      if (rule_.tracks_recurrence) recurrences_[ListOf(layer, stream)].clear();
      if (layers_.empty()) continue;
      for (const KeptTier tier : kKeptTiers) {
        marks_.assign(layers_[layer].count(stream, tier), true);
        layers_[layer].Drop(stream, tier, marks_);
      }
    }
  }
}

Status EvictingLedger::BeginPrefill(uint32_t sequence, uint32_t begin) {
  KVRUN_CHECK(begin == 0);  // further prompts are computed row by row
  KVRUN_RETURN_IF_ERROR(UndoPrefill());
  Clear(sequence);
  KVRUN_RETURN_IF_ERROR(PutAside());
  KVRUN_RETURN_IF_ERROR(window_.BeginPrefill(sequence, 0, 0));
  loaded_quotas_.clear();  // lists are made anew afterwards
  return Status::Ok();
}

Status EvictingLedger::PutAside() {
  for (uint32_t layer = 0; layer < layers_.size(); ++layer) {
    KVRUN_RETURN_IF_ERROR(layers_[layer].Refresh());
    for (uint32_t stream = 0; stream < plan_.n_streams; ++stream) {
      KVRUN_RETURN_IF_ERROR(PutListAside(layer, stream));
    }
  }
  return Status::Ok();
}

Status EvictingLedger::PutListAside(uint32_t layer, uint32_t stream) {
  vault_.list(layer, stream) = {};
  vault_.list(layer, stream) = ListOnDevice(layer, stream);
  return vault_.Write(layer, stream, RecordsOnDevice(layer, stream));
}

Vault::List EvictingLedger::ListOnDevice(uint32_t layer, uint32_t stream) const {
  const KeptLists& lists = layers_[layer];
  Vault::List list;
  for (const KeptTier tier : kKeptTiers) {
    const std::span<const uint32_t> positions = lists.positions(stream, tier);
    list.positions.insert(list.positions.end(), positions.begin(), positions.end());
    for (uint32_t i = 0; i < positions.size(); ++i) {
      for (uint32_t m = 0; m < n_moments(); ++m) list.mass.push_back(lists.Mass(stream, tier, i, m));
    }
  }
  list.n_low = lists.count(stream, KeptTier::kLow);
  if (rule_.tracks_recurrence) list.recurrences = recurrences_[ListOf(layer, stream)];
  return list;
}

std::span<const std::byte> EvictingLedger::RecordsOnDevice(uint32_t layer, uint32_t stream) {
  const KeptLists& lists = layers_[layer];
  std::vector<std::byte>& records = vault_.records();
  records.clear();
  for (const KeptTier tier : kKeptTiers) {
    for (uint32_t i = 0; i < lists.count(stream, tier); ++i) {
      const std::span<const std::byte> record = lists.Record(stream, tier, i);
      records.insert(records.end(), record.begin(), record.end());
    }
  }
  return records;
}

// Scores of one head's entries before `end`, which are then entries_. mass: [1 or 2 moments, end].
void EvictingLedger::ScorePrompt(std::span<const float> mass, uint32_t end, uint32_t prompt_end) {
  entries_.Clear(end, mass.size() > end ? 2 : 1);
  for (uint32_t position = 0; position < end; ++position) {
    const uint32_t seen_by = prompt_end - position;
    const float moments[] = {mass[position], mass.size() > end ? mass[size_t{end} + position] : 0.0F};
    entries_.Add(position, std::span(moments).first(mass.size() > end ? 2 : 1),
                 rule_.observes_last_rows ? std::min(seen_by, plan_.of_kept().observed_rows) : seen_by);
    if (!rule_.tracks_recurrence) continue;
    entries_.AddRecurrence({moments[0] > kRecurrenceWeight ? prompt_end - 1 : position, 0});
  }
  entries_.Score(rule_, prompt_end);
  if (rule_.tracks_recurrence) {
    // Until something recurs, what the last rows attended to most.
    std::transform(entries_.mass().begin(), entries_.mass().end(), entries_.scores().begin(),
                   [](float value) { return std::isfinite(value) ? value : 0.0F; });
  }
  PoolLargest(rule_.pool_entries, entries_.scores());
}

Status EvictingLedger::StoreLayer(uint32_t layer, const KvRange& prompt, PromptEntries& entries) {
  const uint32_t end = window_.FirstGroup(prompt.end);  // the window has the rest
  const size_t head_floats = prompt.end;
  MassForm form = rule_.prompt_form;
  const bool reads_rows = has_two_tiers() && plan_.of_kept().moments == AttentionMoments::kRows;
  if (reads_rows) form.n_moments = 4;
  std::vector<float> mass(size_t{form.n_moments} * heads() * head_floats);
  KVRUN_RETURN_IF_ERROR(entries.Mass(form, prompt.end, PromptEntries::Rows::kAll, mass));
  // Of all rows some are observed; in steps every row counts.
  const auto stride = static_cast<float>(rule_.observes_last_rows ? 1 : entries.observed().stride);
  for (float& value : mass) value *= stride;
  if (has_two_tiers()) {
    LayerAttention& attention = shares_[size_t{layer} * plan_.n_sequences + prompt.sequence].attention;
    std::vector<float> before_window;
    for (size_t list = 0; list < size_t{form.n_moments} * heads(); ++list) {
      const auto first = mass.begin() + static_cast<ptrdiff_t>(list * head_floats);
      before_window.insert(before_window.end(), first, first + end);
    }
    const size_t n_first = size_t{heads()} * end;
    attention = reads_rows ? AttentionOverRows(before_window, heads(), entries.observed().n_rows)
                           : AttentionOverKeys(std::span(before_window).first(n_first), heads());
  }
  prompt_scores_.resize(size_t{heads()} * end);
  std::vector<float> of_head;
  for (uint32_t head = 0; head < heads(); ++head) {
    of_head.clear();
    for (uint32_t moment = 0; moment < std::min(form.n_moments, 2U); ++moment) {
      const auto first =
          mass.begin() + static_cast<ptrdiff_t>((size_t{moment} * heads() + head) * head_floats);
      of_head.insert(of_head.end(), first, first + end);
    }
    ScorePrompt(of_head, end, prompt.end);
    std::copy(entries_.scores().begin(), entries_.scores().end(),
              prompt_scores_.begin() + static_cast<ptrdiff_t>(size_t{head} * end));
    KVRUN_RETURN_IF_ERROR(
        KeepBest(layer, prompt.sequence * heads() + head, head, prompt, of_head, end, entries));
  }
  ShareHeads(layer, prompt, end);
  return FillWindowMass(layer, prompt, mass, end);
}

// Of a head's entries before `end`, by their scores: the best into the vault.
// mass: [n_moments, end].
Status EvictingLedger::KeepBest(uint32_t layer, uint32_t stream, uint32_t head, const KvRange& prompt,
                                std::span<const float> mass, uint32_t end, PromptEntries& entries) {
  const uint32_t n = std::min(end, plan_.of_kept().most_entries);
  const std::span<const uint32_t> best = entries_.Best(n);
  Vault::List& aside = vault_.list(layer, stream);
  aside = {};
  std::vector<uint32_t> ranks(end, kNotKept);
  for (uint32_t rank = 0; rank < n; ++rank) {
    const uint32_t position = best[rank];
    ranks[position] = rank;
    aside.positions.push_back(position);
    for (uint32_t m = 0; m < n_moments(); ++m) aside.mass.push_back(mass[size_t{m} * end + position]);
    if (!rule_.tracks_recurrence) continue;
    aside.recurrences.push_back({mass[position] > kRecurrenceWeight ? prompt.end - 1 : position, 0});
  }
  if (n == 0) return Status::Ok();
  const uint64_t bytes = plan_.record.size_bytes();
  std::vector<std::byte>& kept = vault_.records();
  kept.resize(n * bytes);
  KVRUN_RETURN_IF_ERROR(
      entries.VisitRecords(head, 0, end, PromptEntries::Want::kKeysAndValues,
                           [&](uint32_t first, std::span<const std::byte> records) -> Status {
                             for (uint32_t i = 0; i < records.size() / bytes; ++i) {
                               const uint32_t rank = ranks[first + i];
                               if (rank == kNotKept) continue;
                               std::memcpy(kept.data() + rank * bytes, records.data() + i * bytes, bytes);
                             }
                             return Status::Ok();
                           }));
  return vault_.Write(layer, stream, kept);
}

// How a layer's heads share its entries, as if it had its even share (Ada-KV); and what its own share goes by
// (LAVa).
void EvictingLedger::ShareHeads(uint32_t layer, const KvRange& prompt, uint32_t n_entries) {
  const uint32_t first = prompt.sequence * heads();
  if (plan_.of_kept().shares == KeptShares::kEven || n_entries == 0) return;
  shares_[size_t{layer} * plan_.n_sequences + prompt.sequence].entropy = ScoreEntropy(prompt_scores_);
  const uint32_t n = plan_.of_kept().n_entries;
  if (n_entries <= n) return;  // all of it stays
  const std::vector<uint32_t> shares =
      AdaptiveHeadShares(prompt_scores_, heads(), n * heads(), kHeadFloorShare);
  // Twice an even share at most: the tables have room for that. One at least, where all have one.
  const uint32_t n_none = static_cast<uint32_t>(std::count(shares.begin(), shares.end(), 0U));
  for (uint32_t head = 0; head < heads(); ++head) {
    list_entries_[ListOf(layer, first + head)] = n_none > 0 ? n : std::min(shares[head], 2 * n);
  }
}

Status EvictingLedger::FillWindowMass(uint32_t layer, const KvRange& prompt, std::span<const float> mass,
                                      uint32_t end) {
  for (uint32_t head = 0; head < heads(); ++head) {
    const uint32_t stream = prompt.sequence * heads() + head;
    for (uint32_t position = end; position < prompt.end; ++position) {
      for (uint32_t moment = 0; moment < n_moments(); ++moment) {
        WindowMass(layer, stream, position, moment) =
            mass[(size_t{moment} * heads() + head) * prompt.end + position];
      }
      if (!rule_.tracks_recurrence) continue;
      WindowRecurrence(layer, stream, position) = {position, 0};
    }
  }
  return n_moments() == 0 ? Status::Ok() : FlushAll(*window_mass_[layer]);
}

// Of a prompt's size: decoding looks at lists.
void EvictingLedger::DropPromptScratch() {
  prompt_scores_ = {};
  vault_.DropRecords();
  ReserveScratch();
}

// All layers of a prompt have said what they need.
Status EvictingLedger::ShareOut(uint32_t sequence) {
  std::vector<LayerAttention> attention;
  std::vector<double> entropies;
  for (uint32_t layer = 0; layer < n_layers_; ++layer) {
    const LayerShare& share = shares_[size_t{layer} * plan_.n_sequences + sequence];
    attention.push_back(share.attention);
    entropies.push_back(share.entropy);
  }
  if (has_two_tiers()) {
    const std::vector<double> originals = OriginalShares(attention, ArkvConstants());
    for (uint32_t layer = 0; layer < n_layers_; ++layer) {
      shares_[size_t{layer} * plan_.n_sequences + sequence].original_share = originals[layer];
    }
  }
  if (plan_.of_kept().shares != KeptShares::kLayers) return Status::Ok();
  const uint32_t n = plan_.of_kept().n_entries;
  KVRUN_ASSIGN_OR_RETURN(
      const std::vector<uint32_t> layers,
      LayerShares(entropies, n * n_layers_, (n + kLeastLayerParts - 1) / kLeastLayerParts, 2 * n));
  for (uint32_t layer = 0; layer < n_layers_; ++layer) {
    for (uint32_t stream = sequence * heads(); stream < (sequence + 1) * heads(); ++stream) {
      uint32_t& entries = list_entries_[ListOf(layer, stream)];
      entries = static_cast<uint32_t>(
          std::min<uint64_t>(uint64_t{entries} * layers[layer] / n, plan_.of_kept().most_entries));
    }
  }
  return Status::Ok();
}

Status EvictingLedger::EndPrefill(uint32_t sequence, uint32_t length) {
  KVRUN_RETURN_IF_ERROR(ShareOut(sequence));
  KVRUN_RETURN_IF_ERROR(window_.EndPrefill(length));
  DropPromptScratch();
  Sequence& state = sequences_[sequence];
  state.length = length;
  state.prompt_end = length;
  state.settled = window_.FirstGroup(length);
  for (uint32_t layer = 0; layer < n_layers_; ++layer) {
    for (uint32_t stream = sequence * heads(); stream < (sequence + 1) * heads(); ++stream) {
      const uint32_t n_kept = std::min<uint32_t>(
          static_cast<uint32_t>(vault_.list(layer, stream).positions.size()), QuotaOf(layer, stream).all());
      state.n_evicted += state.settled - std::min(state.settled, n_kept);
    }
  }
  return Status::Ok();
}

// For benchmarks: each list has as many entries as it may, evenly spaced.
Status EvictingLedger::StoreRepeated(uint32_t layer, uint32_t sequence, uint32_t length,
                                     std::span<const std::byte> records) {
  const uint64_t bytes = plan_.record.size_bytes();
  const uint64_t n_records = records.size() / bytes;
  const uint32_t end = window_.FirstGroup(length);
  const uint32_t n = std::min(end, plan_.of_kept().n_entries);
  std::vector<std::byte>& kept = vault_.records();
  kept.resize(n * bytes);
  for (uint32_t stream = sequence * heads(); stream < (sequence + 1) * heads(); ++stream) {
    Vault::List& aside = vault_.list(layer, stream);
    aside = {};
    for (uint32_t i = 0; i < n; ++i) {
      aside.positions.push_back(static_cast<uint32_t>(uint64_t{i} * end / n));
      std::memcpy(kept.data() + i * bytes, records.data() + (i + stream) % n_records * bytes, bytes);
    }
    aside.mass.assign(size_t{n} * n_moments(), 0.0F);
    if (rule_.tracks_recurrence) aside.recurrences.assign(n, {});
    KVRUN_RETURN_IF_ERROR(vault_.Write(layer, stream, kept));
  }
  return Status::Ok();
}

KeptQuota EvictingLedger::QuotaOf(uint32_t layer, uint32_t stream) const {
  // Where there is room for everything, nothing is shared out.
  const uint32_t n = keeps_all() ? plan_.n_ctx : std::max(list_entries_[ListOf(layer, stream)], 1U);
  if (!has_two_tiers() || keeps_all()) {
    return entry_tier() == KeptTier::kOriginal ? KeptQuota{{n, 0}} : KeptQuota{{0, n}};
  }
  const double share = shares_[size_t{layer} * plan_.n_sequences + stream / heads()].original_share;
  const uint64_t original_bytes = plan_.record.size_bytes();
  const uint64_t low_bytes = plan_.of_kept().low_record.size_bytes();
  const bool by_bytes = plan_.of_kept().precisions == KeptPrecisions::kBytes;
  PrecisionShares shares =
      by_bytes ? SharesOfBytes(share, n, original_bytes, low_bytes) : SharesOfEntries(share, n);
  if (const uint32_t least = std::min(kLeastOriginals, n); shares.n_original < least) {
    shares = {least, by_bytes ? static_cast<uint32_t>((n - least) * original_bytes / low_bytes) : n - least};
  }
  return KeptQuota{{shares.n_original, shares.n_quantised}};
}

Status EvictingLedger::BeginDecode() {
  // What has been kept of a prompt that failed need not be in the vault.
  KVRUN_RETURN_IF_ERROR(UndoPrefill());
  layers_.clear();
  for (uint32_t layer = 0; layer < n_layers_; ++layer) {
    const Status loaded = LoadLayer(layer);
    if (!loaded.ok()) {
      layers_.clear();  // all of it is aside still
      return loaded;
    }
  }
  vault_.Empty();
  loaded_quotas_.clear();
  return Status::Ok();
}

Status EvictingLedger::LoadLayer(uint32_t layer) {
  std::vector<KeptQuota> quotas;
  for (uint32_t stream = 0; stream < plan_.n_streams; ++stream) {
    quotas.push_back(loaded_quotas_.empty() ? QuotaOf(layer, stream) : loaded_quotas_[ListOf(layer, stream)]);
  }
  KVRUN_ASSIGN_OR_RETURN(KeptLists lists, KeptLists::Create(device_, plan_, n_moments(), quotas));
  for (uint32_t stream = 0; stream < plan_.n_streams; ++stream) {
    KVRUN_RETURN_IF_ERROR(LoadList(layer, stream, lists));
  }
  KVRUN_RETURN_IF_ERROR(lists.FlushAll());
  layers_.push_back(std::move(lists));
  return Status::Ok();
}

// The best keep their precision; what finds no room is gone.
Status EvictingLedger::LoadList(uint32_t layer, uint32_t stream, KeptLists& lists) {
  const Vault::List& aside = vault_.list(layer, stream);
  if (rule_.tracks_recurrence) recurrences_[ListOf(layer, stream)].clear();
  if (aside.positions.empty()) return Status::Ok();
  const uint32_t n = static_cast<uint32_t>(aside.positions.size());
  const uint64_t original_bytes = plan_.record.size_bytes();
  const uint64_t low_bytes = plan_.of_kept().low_record.size_bytes();
  KVRUN_ASSIGN_OR_RETURN(std::span<const std::byte> rest, vault_.Read(layer, stream));
  for (uint32_t i = 0; i < n; ++i) {
    const bool is_low = i >= n - aside.n_low;
    const std::span<const std::byte> record = rest.first(is_low ? low_bytes : original_bytes);
    rest = rest.subspan(record.size());
    KeptTier tier = is_low ? KeptTier::kLow : KeptTier::kOriginal;
    if (!is_low && lists.is_full(stream, tier)) tier = KeptTier::kLow;
    if (lists.is_full(stream, tier)) continue;
    const uint32_t to = lists.Add(stream, tier, aside.positions[i]);
    TranscodeRecord(is_low ? plan_.of_kept().low_record : plan_.record, record,
                    tier == KeptTier::kLow ? plan_.of_kept().low_record : plan_.record,
                    lists.Record(stream, tier, to));
    for (uint32_t m = 0; m < n_moments(); ++m) {
      lists.Mass(stream, tier, to, m) = aside.mass[size_t{i} * n_moments() + m];
    }
    if (rule_.tracks_recurrence) recurrences_[ListOf(layer, stream)].push_back(aside.recurrences[i]);
  }
  return Status::Ok();
}

}  // namespace kvrun
