#include "runtime/kv/clusters/cluster_upkeep.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "platform/base/check.h"
#include "platform/base/units.h"
#include "runtime/device/record_codec.h"
#include "runtime/kv/math/cluster_records.h"

namespace kvrun {

ClusterUpkeep::ClusterUpkeep(const KvPlan& plan, ClusterSet& clusters, ClusterFiles& store, KvSlots& slots,
                             ClusterIndex& index, KeptEntries& kept, const EntrySpaces& spaces)
    : plan_(plan),
      clusters_(clusters),
      store_(store),
      slots_(slots),
      index_(index),
      spaces_(spaces),
      kept_(kept),
      loaded_((size_t{2} * plan.records_per_extent() + 1) * plan.slots.record.size_bytes()),
      built_(loaded_.size()),
      memory_(plan.records_per_extent()),
      entry_(plan.record.size_bytes()),
      keys_(size_t{2} * plan.of_clusters().max_entries * plan.record.head_dim),
      record_keys_(size_t{plan.slots.record.group_tokens} * plan.record.head_dim),
      positions_(size_t{2} * plan.of_clusters().max_entries) {
  part_.reserve(positions_.size());
}

bool ClusterUpkeep::IsResident(const ClusterPlace& at, uint32_t cluster) {
  SlotCache* const cache = slots_.cache(at.layer, at.stream);
  if (cache == nullptr) return false;
  const uint32_t n_records = clusters_.n_records(at.layer, at.stream, cluster);
  for (uint32_t i = 0; i < n_records; ++i) {
    if (cache->SlotOf(RecordId(cluster, i)) == SlotCache::kNoSlot) return false;
  }
  return true;
}

// Its records into loaded_.
Status ClusterUpkeep::Load(const ClusterPlace& at, uint32_t cluster) {
  if (!IsResident(at, cluster)) return Read(at, cluster);
  SlotCache* const cache = slots_.cache(at.layer, at.stream);
  const uint32_t n_records = clusters_.n_records(at.layer, at.stream, cluster);
  for (uint32_t i = 0; i < n_records; ++i) {
    const uint32_t slot = cache->SlotOf(RecordId(cluster, i));
    std::memcpy(Loaded(i).data(), slots_.own(at.layer)->Record(at.stream, slot), record_bytes());
  }
  return Status::Ok();
}

Status ClusterUpkeep::Read(const ClusterPlace& at, uint32_t cluster) {
  const uint32_t n_records = clusters_.n_records(at.layer, at.stream, cluster);
  if (n_records == 0) return Status::Ok();
  for (uint32_t i = 0; i < n_records; ++i) memory_[i] = Loaded(i).data();
  moves_.loaded_entries += clusters_.map(at.layer, at.stream).cluster(cluster).n_stored;
  const ClusterFetch fetch{at.stream, cluster, n_records, std::span(memory_).first(n_records)};
  const uint64_t before = store_.stats().pages_read;
  const Status status = store_.Fetch(at.layer, {&fetch, 1});
  moves_.pages_read += store_.stats().pages_read - before;
  return status;
}

// Keys and positions of the first entries in loaded_.
Status ClusterUpkeep::CollectEntries(const ClusterPlace& at, uint32_t n_stored) {
  for (uint32_t entry = 0; entry < n_stored; ++entry) {
    const std::span<const std::byte> record = Loaded(entry / slot_tokens());
    if (entry % slot_tokens() == 0) {
      spaces_.DecodeKeys(at.layer, at.stream, plan_.slots.record, record, dim(), record_keys_);
    }
    std::copy_n(record_keys_.begin() + static_cast<ptrdiff_t>(entry % slot_tokens() * dim()), dim(),
                keys_.begin() + static_cast<ptrdiff_t>(size_t{entry} * dim()));
    positions_[entry] = PositionOf(plan_.slots.record, record, entry % slot_tokens());
  }
  return Status::Ok();
}

// What is pending for the cluster, behind its stored entries in loaded_.
Status ClusterUpkeep::AddPending(const ClusterPlace& at, uint32_t cluster) {
  const ClusterMap& map = clusters_.map(at.layer, at.stream);
  uint32_t n = map.cluster(cluster).n_stored;
  for (const PendingEntry& pending : map.pending()) {
    if (pending.cluster != cluster) continue;
    const std::span<const std::byte> record = kept_.Record(at.layer, at.stream, pending.place);
    CopyEntry(plan_.record, record, 0, plan_.slots.record, Loaded(n / slot_tokens()), n % slot_tokens());
    SetPosition(plan_.slots.record, Loaded(n / slot_tokens()), n % slot_tokens(), pending.position);
    spaces_.DecodeKeys(at.layer, at.stream, plan_.record, record, dim(),
                       std::span(keys_).subspan(size_t{n} * dim(), dim()));
    positions_[n++] = pending.position;
  }
  return Status::Ok();
}

Result<uint32_t> ClusterUpkeep::Maintain(const ClusterPlace& at, uint32_t cluster) {
  const uint64_t before = store_.stats().pages_written;
  Result<uint32_t> other = MaintainLoaded(at, cluster);
  moves_.pages_written += store_.stats().pages_written - before;
  return other;
}

Result<uint32_t> ClusterUpkeep::MaintainLoaded(const ClusterPlace& at, uint32_t cluster) {
  ClusterMap& map = clusters_.map(at.layer, at.stream);
  const uint32_t n_stored = map.cluster(cluster).n_stored;
  const uint32_t n = map.cluster(cluster).size();
  KVRUN_RETURN_IF_ERROR(Load(at, cluster));
  KVRUN_RETURN_IF_ERROR(CollectEntries(at, n_stored));
  KVRUN_RETURN_IF_ERROR(AddPending(at, cluster));
  const ClusterMap::Maintained maintained =
      map.Maintain(cluster, std::span(keys_).first(size_t{n} * dim()), std::span(positions_).first(n));
  const bool is_divided = maintained.other != kNoCluster;
  CountMoves(at, cluster, maintained.other, n_stored, n - n_stored);
  part_.clear();
  if (!is_divided) {
    for (uint32_t i = 0; i < n; ++i) part_.push_back(i);
    KVRUN_RETURN_IF_ERROR(PutPart(at, cluster, part_, n_stored / slot_tokens(), maintained.centroid));
    return kNoCluster;
  }
  // The second part first: while the first has all slots, those that it does not need become the second's.
  for (uint32_t i = 0; i < n; ++i) {
    if (maintained.is_second[i] != 0) part_.push_back(i);
  }
  MoveSlots(at, cluster, clusters_.RecordsOf(n_stored), maintained.other);
  KVRUN_RETURN_IF_ERROR(PutPart(at, maintained.other, part_, 0, maintained.other_centroid));
  part_.clear();
  for (uint32_t i = 0; i < n; ++i) {
    if (maintained.is_second[i] == 0) part_.push_back(i);
  }
  KVRUN_RETURN_IF_ERROR(PutPart(at, cluster, part_, 0, maintained.centroid));
  return maintained.other;
}

// Of the n_before slots that `from` had, those beyond its records are the first ones of `to`, or free.
void ClusterUpkeep::MoveSlots(const ClusterPlace& at, uint32_t from, uint32_t n_before, uint32_t to) {
  SlotCache* const cache = slots_.cache(at.layer, at.stream);
  if (cache == nullptr) return;
  const uint32_t n_from = clusters_.n_records(at.layer, at.stream, from);
  const uint32_t n_to = to == kNoCluster ? 0 : clusters_.n_records(at.layer, at.stream, to);
  uint32_t next = 0;
  for (uint32_t i = n_from; i < n_before; ++i) {
    if (cache->SlotOf(RecordId(from, i)) == SlotCache::kNoSlot) continue;
    if (next < n_to) {
      cache->Rename(RecordId(from, i), RecordId(to, next++));
    } else {
      cache->DropRecord(RecordId(from, i));
    }
  }
}

// Entries of loaded_, as the cluster that they are now: on flash, in the slots that it has, in the index.
Status ClusterUpkeep::PutPart(const ClusterPlace& at, uint32_t cluster, std::span<const uint32_t> entries,
                              uint32_t first_changed, std::span<const float> centroid) {
  const auto n = static_cast<uint32_t>(entries.size());
  const uint32_t n_records = clusters_.RecordsOf(n);
  const uint64_t bytes = n_records * record_bytes();
  std::memset(built_.data(), 0, bytes);  // what lies behind the last entry
  for (uint32_t i = 0; i < n; ++i) {
    const std::span<std::byte> record =
        std::span(built_).subspan(i / slot_tokens() * record_bytes(), record_bytes());
    CopyEntry(plan_.slots.record, Loaded(entries[i] / slot_tokens()), entries[i] % slot_tokens(),
              plan_.slots.record, record, i % slot_tokens());
  }
  const std::span<std::byte> last = std::span(built_).subspan(bytes - record_bytes(), record_bytes());
  for (uint32_t i = n; i < n_records * slot_tokens(); ++i) {
    SetPosition(plan_.slots.record, last, i % slot_tokens(), kNoPosition);
  }
  KVRUN_RETURN_IF_ERROR(
      store_.Write(at.layer, at.stream, cluster, first_changed, std::span(built_).first(bytes)));
  KVRUN_RETURN_IF_ERROR(WriteSlots(at, cluster, n_records, first_changed));
  return index_.Set(at.layer, at.stream, cluster, centroid, n, n_records);
}

Status ClusterUpkeep::WriteSlots(const ClusterPlace& at, uint32_t cluster, uint32_t n_records,
                                 uint32_t first_changed) {
  SlotCache* const cache = slots_.cache(at.layer, at.stream);
  if (cache == nullptr) return Status::Ok();
  for (uint32_t i = first_changed; i < n_records; ++i) {
    const uint32_t slot = cache->SlotOf(RecordId(cluster, i));
    if (slot == SlotCache::kNoSlot) continue;
    std::byte* const to = slots_.own(at.layer)->Record(at.stream, slot);
    std::memcpy(to, built_.data() + i * record_bytes(), record_bytes());
    const GroupFetch written{at.stream, 0, to};
    KVRUN_RETURN_IF_ERROR(slots_.own(at.layer)->FlushFetched({&written, 1}));
    cache->Touch(RecordId(cluster, i), n_records);
  }
  return Status::Ok();
}

Status ClusterUpkeep::Add(const ClusterPlace& at, std::span<const uint32_t> positions, const RecordFn& record,
                          std::span<const float> centroid, float variance) {
  ClusterMap& map = clusters_.map(at.layer, at.stream);
  const auto n = static_cast<uint32_t>(positions.size());
  const uint32_t end = *std::max_element(positions.begin(), positions.end()) + 1;
  const uint32_t cluster = map.Add(n, variance, end);
  part_.clear();
  for (uint32_t i = 0; i < n; ++i) {
    CopyEntry(plan_.record, record(i), 0, plan_.slots.record, Loaded(i / slot_tokens()), i % slot_tokens());
    SetPosition(plan_.slots.record, Loaded(i / slot_tokens()), i % slot_tokens(), positions[i]);
    part_.push_back(i);
  }
  return PutPart(at, cluster, part_, 0, centroid);
}

Status ClusterUpkeep::Visit(const ClusterPlace& at, uint32_t cluster, const TakeFn& visit) {
  KVRUN_RETURN_IF_ERROR(Load(at, cluster));
  const uint32_t n = clusters_.map(at.layer, at.stream).cluster(cluster).n_stored;
  for (uint32_t i = 0; i < n; ++i) {
    CopyEntry(plan_.slots.record, Loaded(i / slot_tokens()), i % slot_tokens(), plan_.record, entry_, 0);
    KVRUN_RETURN_IF_ERROR(
        visit(PositionOf(plan_.slots.record, Loaded(i / slot_tokens()), i % slot_tokens()), entry_));
  }
  return Status::Ok();
}

Status ClusterUpkeep::Truncate(const ClusterPlace& at, uint32_t cluster, uint32_t first, const TakeFn& take) {
  ClusterMap& map = clusters_.map(at.layer, at.stream);
  KVRUN_RETURN_IF_ERROR(Visit(at, cluster, [&](uint32_t position, std::span<const std::byte> record) {
    return position >= first ? take(position, record) : Status::Ok();
  }));
  const uint32_t n = map.cluster(cluster).n_stored;
  KVRUN_RETURN_IF_ERROR(CollectEntries(at, n));
  part_.clear();
  for (uint32_t i = 0; i < n; ++i) {
    if (positions_[i] < first) part_.push_back(i);
  }
  if (part_.empty()) return Remove(at, cluster);
  // In place: entries that stay move forward.
  for (size_t i = 0; i < part_.size(); ++i) {
    std::copy_n(keys_.begin() + static_cast<ptrdiff_t>(size_t{part_[i]} * dim()), dim(),
                keys_.begin() + static_cast<ptrdiff_t>(i * dim()));
    positions_[i] = positions_[part_[i]];
  }
  const std::span<const float> centroid = map.Restore(cluster, std::span(keys_).first(part_.size() * dim()),
                                                      std::span(positions_).first(part_.size()));
  MoveSlots(at, cluster, clusters_.RecordsOf(n), kNoCluster);
  return PutPart(at, cluster, part_, 0, centroid);
}

Status ClusterUpkeep::Remove(const ClusterPlace& at, uint32_t cluster) {
  SlotCache* const cache = slots_.cache(at.layer, at.stream);
  ClusterMap& map = clusters_.map(at.layer, at.stream);
  const uint32_t n_records = clusters_.n_records(at.layer, at.stream, cluster);
  for (uint32_t i = 0; cache != nullptr && i < n_records; ++i) {
    if (cache->SlotOf(RecordId(cluster, i)) != SlotCache::kNoSlot) cache->DropRecord(RecordId(cluster, i));
  }
  if (map.cluster(cluster).n_stored > 0) map.Restore(cluster, {}, {});
  store_.Forget(at.layer, at.stream, cluster);
  // What is pending for it goes by its centroid.
  if (map.cluster(cluster).size() > 0) return index_.SetSize(at.layer, at.stream, cluster, 0, 0);
  return index_.Clear(at.layer, at.stream, cluster);
}

Status ClusterUpkeep::Clear(const ClusterPlace& at) {
  ClusterMap& map = clusters_.map(at.layer, at.stream);
  for (uint32_t cluster = 0; cluster < map.end_cluster(); ++cluster) {
    if (map.cluster(cluster).n_stored > 0) store_.Forget(at.layer, at.stream, cluster);
  }
  map.Clear();
  if (SlotCache* const cache = slots_.cache(at.layer, at.stream); cache != nullptr) cache->Clear();
  return index_.ClearAll(at.layer, at.stream);
}

// A cluster's new entries go behind its old ones, and the second part of one that is divided elsewhere.
void ClusterUpkeep::CountMoves(const ClusterPlace& at, uint32_t cluster, uint32_t other, uint32_t n_stored,
                               uint32_t n_new) {
  const ClusterMap& map = clusters_.map(at.layer, at.stream);
  const bool is_divided = other != kNoCluster;
  moves_.new_entries += n_new;
  if (is_divided) moves_.moved_entries += map.cluster(other).n_stored;
  moves_.rewritten_entries += is_divided ? n_stored : n_stored % slot_tokens();
  uint64_t n_behind = 0;
  for (uint32_t i = cluster + 1; i < map.end_cluster(); ++i) n_behind += map.cluster(i).n_stored;
  moves_.naive_entries += n_behind;
  const uint64_t entry_bytes = record_bytes() / slot_tokens();
  moves_.naive_pages += CeilDiv((n_behind + n_new) * entry_bytes, kFlashPageBytes);
}

}  // namespace kvrun
