// What an evicting ledger is, as items of a state: as after a prompt, whichever phase it is in. What it loads
// lies in the vault, and the next BeginDecode brings it to the device in the same order, with quotas as they
// were.
//
// Of what a prompt's layers have said about their attention, the shares that follow are kept, and nothing
// else: it is said anew before it is asked for.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "runtime/kv/evict/evicting_ledger.h"
#include "runtime/kv/memory/host_buffer.h"

namespace kvrun {
namespace {

enum class KeptItem : uint16_t {
  kSequences,
  kSeen,
  kEntries,  // a list's even share, or kKeepsAll
  kLowered,
  kListEntries,
  kOriginalShares,
  kQuotas,
  kWindowMass,
  kWindowRecurrences,
  // Of a list.
  kPositions,
  kNumLow,
  kMass,
  kRecurrences,
  kRecords,
};

constexpr uint32_t kKeepsAll = UINT32_MAX;
// Of heads one has twice an even share at most, and so has a layer.
constexpr uint64_t kMostShares = 4;

StateKey KeptKey(KeptItem item, uint32_t layer = 0, uint32_t stream = 0) {
  return {StatePart::kKept, static_cast<uint16_t>(item), layer, stream};
}

}  // namespace

Status EvictingLedger::VisitState(StateVisitor& visitor) {
  if (!visitor.is_loading()) KVRUN_RETURN_IF_ERROR(UndoPrefill());
  KVRUN_RETURN_IF_ERROR(VisitSequences(visitor));
  if (rule_.tracks_recurrence) KVRUN_RETURN_IF_ERROR(VisitSeen(visitor));
  KVRUN_RETURN_IF_ERROR(visitor.Value(KeptKey(KeptItem::kLowered), &n_lowered_));
  const uint32_t n_own = keeps_all() ? kKeepsAll : plan_.of_kept().n_entries;
  uint32_t n_entries = n_own;
  KVRUN_RETURN_IF_ERROR(visitor.Value(KeptKey(KeptItem::kEntries), &n_entries));
  const bool has_same_room = n_entries == n_own;
  KVRUN_RETURN_IF_ERROR(VisitShares(visitor, has_same_room));
  KVRUN_RETURN_IF_ERROR(VisitQuotas(visitor, has_same_room));
  std::vector<std::byte> piece(4 * kStateChunkBytes);
  for (uint32_t layer = 0; layer < n_layers_; ++layer) {
    KVRUN_RETURN_IF_ERROR(VisitWindow(visitor, layer));
    if (!layers_.empty()) KVRUN_RETURN_IF_ERROR(layers_[layer].Refresh());
    for (uint32_t stream = 0; stream < plan_.n_streams; ++stream) {
      KVRUN_RETURN_IF_ERROR(VisitList(visitor, layer, stream, piece));
    }
  }
  vault_.DropRecords();
  return has_same_room ? Status::Ok() : CheckRoom(n_entries);
}

Status EvictingLedger::VisitSequences(StateVisitor& visitor) {
  constexpr size_t kValues = 4;
  std::vector<uint64_t> values;  // [n_sequences, kValues]
  for (const Sequence& of : sequences_) {
    values.insert(values.end(), {of.length, of.settled, of.prompt_end, of.n_evicted});
  }
  KVRUN_RETURN_IF_ERROR(visitor.Array(KeptKey(KeptItem::kSequences), std::span(values)));
  for (size_t i = 0; visitor.is_loading() && i < sequences_.size(); ++i) {
    const std::span<const uint64_t> of = std::span(values).subspan(i * kValues, kValues);
    const bool fits =
        of[0] <= plan_.n_ctx && of[1] <= of[0] && of[0] - of[1] <= plan_.window.n_slots && of[2] <= of[0];
    if (!fits) {
      return {StatusCode::kCorrupt,
              fmt::format("{} entries of sequence {}, {} of them before the window and {} of its prompt, are "
                          "not as in a context of {}",
                          of[0], i, of[1], of[2], plan_.n_ctx)};
    }
    sequences_[i] = {static_cast<uint32_t>(of[0]), static_cast<uint32_t>(of[1]), static_cast<uint32_t>(of[2]),
                     of[3]};
  }
  return Status::Ok();
}

// Without it what the last step has given would not count.
Status EvictingLedger::VisitSeen(StateVisitor& visitor) {
  std::vector<uint32_t> values;  // [spans, 2]
  for (const KvSpan& span : seen_) values.insert(values.end(), {span.sequence, span.first_position});
  KVRUN_RETURN_IF_ERROR(visitor.Vector(KeptKey(KeptItem::kSeen), &values, uint64_t{2} * plan_.n_sequences));
  if (!visitor.is_loading()) return Status::Ok();
  seen_.clear();
  for (size_t i = 0; i + 1 < values.size(); i += 2) {
    seen_.push_back({.sequence = values[i], .first_position = values[i + 1]});
  }
  const bool fits = values.size() % 2 == 0 && std::all_of(seen_.begin(), seen_.end(), [&](const KvSpan& of) {
                      return of.sequence < plan_.n_sequences && of.first_position < plan_.n_ctx;
                    });
  return fits ? Status::Ok() : Status(StatusCode::kCorrupt, "a sequence's last step was of no such sequence");
}

Status EvictingLedger::VisitShares(StateVisitor& visitor, bool has_same_room) {
  std::vector<double> originals;  // [n_layers, n_sequences]
  for (const LayerShare& share : shares_) originals.push_back(share.original_share);
  KVRUN_RETURN_IF_ERROR(visitor.Array(KeptKey(KeptItem::kOriginalShares), std::span(originals)));
  KVRUN_RETURN_IF_ERROR(visitor.Array(KeptKey(KeptItem::kListEntries), std::span(list_entries_)));
  if (!visitor.is_loading()) return Status::Ok();
  for (size_t i = 0; i < shares_.size(); ++i) {
    if (!(originals[i] >= 0.0 && originals[i] <= 1.0)) {
      return {StatusCode::kCorrupt, fmt::format("a share of layer {} is no share", i / plan_.n_sequences)};
    }
    shares_[i].original_share = originals[i];
  }
  const uint64_t n = plan_.of_kept().n_entries;
  if (keeps_all() || !has_same_room) {
    std::fill(list_entries_.begin(), list_entries_.end(), static_cast<uint32_t>(n));
    return Status::Ok();
  }
  std::vector<uint64_t> sums(plan_.n_sequences);
  uint64_t most = 0;
  for (size_t i = 0; i < list_entries_.size(); ++i) {
    sums[i % plan_.n_streams / heads()] += list_entries_[i];
    most = std::max<uint64_t>(most, list_entries_[i]);
  }
  if (most <= kMostShares * n && *std::max_element(sums.begin(), sums.end()) <= n_layers_ * heads() * n) {
    return Status::Ok();
  }
  return {StatusCode::kCorrupt, fmt::format("shares of lists are more than {} entries each", n)};
}

// Of lists that were made: shares may have changed since, as those of a sequence that has begun anew.
Status EvictingLedger::VisitQuotas(StateVisitor& visitor, bool has_same_room) {
  const size_t n_lists = list_entries_.size();
  std::vector<uint32_t> values;  // [n_layers, n_streams, tiers], or none
  for (size_t i = 0; i < n_lists && !keeps_all(); ++i) {
    for (const KeptTier tier : kKeptTiers) {
      if (!layers_.empty()) {
        values.push_back(
            layers_[i / plan_.n_streams].quota(static_cast<uint32_t>(i % plan_.n_streams), tier));
      } else if (!loaded_quotas_.empty()) {
        values.push_back(loaded_quotas_[i].of(tier));
      }
    }
  }
  KVRUN_RETURN_IF_ERROR(visitor.Vector(KeptKey(KeptItem::kQuotas), &values, n_lists * kKeptTiers.size()));
  if (!visitor.is_loading() || values.empty() || keeps_all() || !has_same_room) return Status::Ok();
  if (values.size() != n_lists * kKeptTiers.size()) {
    return {StatusCode::kCorrupt, fmt::format("{} lists have {} quotas", n_lists, values.size())};
  }
  for (size_t i = 0; i < values.size(); i += 2) {
    loaded_quotas_.push_back(KeptQuota{{values[i], values[i + 1]}});
  }
  return CheckQuotas();
}

// They have as much memory as was planned, and what leaves the window finds room in each.
Status EvictingLedger::CheckQuotas() const {
  const uint64_t even_bytes = (uint64_t{plan_.of_kept().n_entries} + 1) * plan_.record.size_bytes();
  uint64_t left_bytes = loaded_quotas_.size() * even_bytes;
  for (size_t i = 0; i < loaded_quotas_.size(); ++i) {
    const uint64_t n_original = loaded_quotas_[i].of(KeptTier::kOriginal);
    const uint64_t n_low = loaded_quotas_[i].of(KeptTier::kLow);
    const uint64_t bytes =
        n_original * plan_.record.size_bytes() + n_low * plan_.of_kept().low_record.size_bytes();
    const bool is_of_one = entry_tier() == KeptTier::kLow ? n_original == 0 && n_low > 0 : n_low == 0;
    // Of two tiers, what one has no room for goes to the other.
    const bool has_entries = n_original + n_low > 0 && (is_of_one || (has_two_tiers() && n_original > 1));
    if (!has_entries || bytes > std::min(left_bytes, kMostShares * even_bytes)) {
      return {StatusCode::kCorrupt,
              fmt::format("the list of layer {}, stream {} cannot have room for {} and {} entries",
                          i / plan_.n_streams, i % plan_.n_streams, n_original, n_low)};
    }
    left_bytes -= bytes;
  }
  return Status::Ok();
}

// As it was made for another room: all of it has to find some, as nothing says what else would have gone.
Status EvictingLedger::CheckRoom(uint32_t n_entries) {
  for (uint32_t layer = 0; layer < n_layers_; ++layer) {
    for (uint32_t stream = 0; stream < plan_.n_streams; ++stream) {
      const Vault::List& list = vault_.list(layer, stream);
      const KeptQuota quota = QuotaOf(layer, stream);
      const uint64_t n_high = list.positions.size() - list.n_low;
      const uint64_t n_lowered = n_high - std::min<uint64_t>(n_high, quota.of(KeptTier::kOriginal));
      if (n_lowered + list.n_low <= quota.of(KeptTier::kLow)) continue;
      return {
          StatusCode::kInvalidArgument,
          fmt::format("what was kept was kept where lists have room for {} entries, and here they have it "
                      "for {}: take as many (--kv-select)",
                      n_entries == kKeepsAll ? "all" : std::to_string(n_entries),
                      keeps_all() ? "all" : std::to_string(plan_.of_kept().n_entries))};
    }
  }
  return Status::Ok();
}

Status EvictingLedger::VisitWindow(StateVisitor& visitor, uint32_t layer) {
  const size_t n_entries = size_t{plan_.n_streams} * plan_.window.n_slots;
  if (Buffer* const mass = window_mass(layer); mass != nullptr) {
    KVRUN_RETURN_IF_ERROR(VisitBytes(visitor, KeptKey(KeptItem::kWindowMass, layer), *mass, 0,
                                     n_moments() * n_entries * sizeof(float)));
  }
  if (!rule_.tracks_recurrence) return Status::Ok();
  return visitor.Array(KeptKey(KeptItem::kWindowRecurrences, layer),
                       std::span(window_recurrences_).subspan(layer * n_entries, n_entries));
}

Status EvictingLedger::VisitList(StateVisitor& visitor, uint32_t layer, uint32_t stream,
                                 std::span<std::byte> piece) {
  Vault::List list;
  if (!visitor.is_loading()) {
    list = layers_.empty() ? vault_.list(layer, stream) : ListOnDevice(layer, stream);
  }
  KVRUN_RETURN_IF_ERROR(visitor.Vector(KeptKey(KeptItem::kPositions, layer, stream), &list.positions,
                                       sequences_[stream / heads()].settled));
  if (list.positions.empty()) return Status::Ok();
  KVRUN_RETURN_IF_ERROR(visitor.Value(KeptKey(KeptItem::kNumLow, layer, stream), &list.n_low));
  if (visitor.is_loading()) KVRUN_RETURN_IF_ERROR(CheckList(layer, stream, list));
  list.mass.resize(list.positions.size() * n_moments());
  KVRUN_RETURN_IF_ERROR(visitor.Array(KeptKey(KeptItem::kMass, layer, stream), std::span(list.mass)));
  if (rule_.tracks_recurrence) {
    list.recurrences.resize(list.positions.size());
    KVRUN_RETURN_IF_ERROR(
        visitor.Array(KeptKey(KeptItem::kRecurrences, layer, stream), std::span(list.recurrences)));
  }
  if (!visitor.is_loading()) return SaveRecords(visitor, layer, stream, list, piece);
  std::vector<std::byte>& records = vault_.records();
  records.resize(vault_.RecordBytes(list));
  KVRUN_RETURN_IF_ERROR(visitor.Bytes(KeptKey(KeptItem::kRecords, layer, stream), records));
  vault_.list(layer, stream) = std::move(list);
  return vault_.Write(layer, stream, records);
}

// Who counts needs none of them.
Status EvictingLedger::SaveRecords(StateVisitor& visitor, uint32_t layer, uint32_t stream,
                                   const Vault::List& list, std::span<std::byte> piece) {
  std::span<const std::byte> records;
  return visitor.Pieces(KeptKey(KeptItem::kRecords, layer, stream), vault_.RecordBytes(list), piece,
                        [&](uint64_t offset_bytes, std::span<std::byte> some) -> Status {
                          if (offset_bytes == 0 && !layers_.empty()) {
                            records = RecordsOnDevice(layer, stream);
                          } else if (offset_bytes == 0) {
                            KVRUN_ASSIGN_OR_RETURN(records, vault_.Read(layer, stream));
                          }
                          std::memcpy(some.data(), records.data() + offset_bytes, some.size());
                          return Status::Ok();
                        });
}

// Prompts put more aside than the list has room for; where it was made, it has no more than that.
Status EvictingLedger::CheckList(uint32_t layer, uint32_t stream, const Vault::List& list) const {
  std::vector<uint32_t> ascending = list.positions;
  std::sort(ascending.begin(), ascending.end());
  const size_t n = list.positions.size();
  bool fits = AreAscending(ascending, sequences_[stream / heads()].settled) && list.n_low <= n &&
              (list.n_low == 0 || has_two_tiers() || entry_tier() == KeptTier::kLow);
  fits = fits && vault_.RecordBytes(list) <= VaultListBytes(plan_);
  if (fits && !loaded_quotas_.empty()) {
    const KeptQuota& quota = loaded_quotas_[ListOf(layer, stream)];
    fits = list.n_low <= quota.of(KeptTier::kLow) && n - list.n_low <= quota.of(KeptTier::kOriginal);
  }
  if (fits) return Status::Ok();
  return {StatusCode::kCorrupt,
          fmt::format("{} entries that were kept of layer {}, stream {}, {} of them of 8 bits, are not as in "
                      "a list",
                      n, layer, stream, list.n_low)};
}

}  // namespace kvrun
