#include "runtime/kv/cluster_ledger.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "platform/base/check.h"
#include "platform/base/units.h"
#include "runtime/device/record_codec.h"
#include "runtime/kv/key_division.h"

namespace kvrun {
namespace {

// Of a list whose first cluster has one key: those to come are larger than it, here and there.
constexpr float kScaleOfOneKey = 3.0F;
// A prompt reads earlier entries of a layer so many times over at most, each time to have some in order.
constexpr uint32_t kClustersOfThreshold = 4;
constexpr uint32_t kMostImages = 8;
constexpr uint32_t kLeastImageEntries = 256;

float MeanOf(std::span<const float> values) {
  double sum = 0.0;
  for (const float value : values) sum += value;
  return static_cast<float>(sum / static_cast<double>(values.size()));
}

}  // namespace

uint32_t ClusterLedger::ImageEntries(const KvPlan& plan) {
  return RoundUp(std::max(plan.n_ctx / kMostImages, kLeastImageEntries), kLeastImageEntries);
}

uint64_t ClusterLedger::ImageBytes(const KvPlan& plan) {
  return uint64_t{std::min(ImageEntries(plan), plan.n_ctx)} * plan.heads_per_sequence() *
         plan.record.size_bytes();
}

Result<std::unique_ptr<ClusterLedger>> ClusterLedger::Create(Device& device, const KvPlan& plan,
                                                             uint32_t n_layers, ClusterSet& clusters,
                                                             ClusterStore& store, RecentWindow& window,
                                                             KvSlots& slots, ClusterIndex& index) {
  std::unique_ptr<ClusterLedger> ledger(
      new ClusterLedger(device, plan, n_layers, clusters, store, window, slots, index));
  KVRUN_ASSIGN_OR_RETURN(ledger->kept_, KeptEntries::Create(device, plan, n_layers));
  return ledger;
}

ClusterLedger::ClusterLedger(Device& device, const KvPlan& plan, uint32_t n_layers, ClusterSet& clusters,
                             ClusterStore& store, RecentWindow& window, KvSlots& slots, ClusterIndex& index)
    : device_(device),
      plan_(plan),
      n_layers_(n_layers),
      clusters_(clusters),
      store_(store),
      window_(window),
      index_(index),
      slots_(slots),
      kept_(plan),
      upkeep_(plan, clusters, store, slots, index, kept_),
      lengths_(plan.n_sequences),
      settled_(size_t{n_layers} * plan.n_sequences),
      broken_(plan.n_sequences),
      centroid_(plan.record.head_dim),
      key_(plan.record.head_dim),
      has_scales_(size_t{n_layers} * plan.n_streams),
      is_new_(size_t{n_layers} * plan.n_streams * plan.clusters.n_clusters) {
  rows_.reserve(plan.n_sequences);
  places_.reserve(plan.clusters.n_kept());
}

// --- Forgetting.

void ClusterLedger::ForgetAll(uint32_t sequence) {
  for (uint32_t i = 0; i < n_layers_; ++i) {
    settled(i, sequence) = 0;
    for (uint32_t stream = sequence * heads(); stream < (sequence + 1) * heads(); ++stream) {
      clusters_.map(i, stream).SetThreshold(std::numeric_limits<float>::infinity());
      has_scales_[size_t{i} * plan_.n_streams + stream] = false;
    }
  }
  lengths_[sequence] = 0;
  broken_[sequence] = Status::Ok();
}

// Entries of a stream from `length` on are forgotten; those from `first` on go back to the window.
Status ClusterLedger::ForgetStream(const ClusterPlace& at, uint32_t sequence, uint32_t first,
                                   uint32_t length) {
  ClusterMap& map = clusters_.map(at.layer, at.stream);
  const auto take = [&](uint32_t position, std::span<const std::byte> record) {
    const bool is_there = window_.Holds(sequence, lengths_[sequence], position);
    if (position >= length || is_there) return Status::Ok();
    return window_.Restore(at.layer, at.stream, position, record);
  };
  for (uint32_t sink = first; sink < std::min(plan_.clusters.n_sinks, settled(at.layer, sequence)); ++sink) {
    KVRUN_RETURN_IF_ERROR(take(sink, kept_.Record(at.layer, at.stream, sink)));
  }
  for (const PendingEntry& pending : map.pending()) {
    if (pending.position < first) continue;
    KVRUN_RETURN_IF_ERROR(take(pending.position, kept_.Record(at.layer, at.stream, pending.place)));
  }
  for (uint32_t cluster = 0; cluster < map.end_cluster(); ++cluster) {
    if (map.cluster(cluster).n_stored == 0 || map.cluster(cluster).end <= first) continue;
    KVRUN_RETURN_IF_ERROR(upkeep_.Truncate(at, cluster, first, take));
  }
  map.TruncatePending(first);
  // Clusters that had pending entries alone.
  for (uint32_t cluster = 0; cluster < map.end_cluster(); ++cluster) {
    if (map.cluster(cluster).size() == 0) KVRUN_RETURN_IF_ERROR(index_.Clear(at.layer, at.stream, cluster));
  }
  return Status::Ok();
}

Status ClusterLedger::ForgetFrom(uint32_t sequence, uint32_t first, uint32_t length) {
  for (uint32_t i = 0; i < n_layers_; ++i) {
    if (settled(i, sequence) <= first) continue;
    for (uint32_t head = 0; head < heads(); ++head) {
      KVRUN_RETURN_IF_ERROR(ForgetStream({i, sequence * heads() + head}, sequence, first, length));
    }
    settled(i, sequence) = first;
  }
  return store_.Flush();
}

// Entries from `length` on are forgotten, and the window of what is left is whole. A sequence that cannot be
// restored has to be computed again, from its beginning, for which nothing is read.
Status ClusterLedger::Forget(uint32_t sequence, uint32_t length) {
  if (length == 0) {
    for (uint32_t i = 0; i < n_layers_; ++i) {
      for (uint32_t head = 0; head < heads(); ++head) {
        KVRUN_RETURN_IF_ERROR(upkeep_.Clear({i, sequence * heads() + head}));
      }
    }
    ForgetAll(sequence);
    window_.NoteFirstGroup(sequence, 0);
    return Status::Ok();
  }
  KVRUN_RETURN_IF_ERROR(broken_[sequence]);
  if (length >= lengths_[sequence]) return Status::Ok();
  const uint32_t first = window_.FirstGroup(length);
  broken_[sequence] = ForgetFrom(sequence, first, length);
  KVRUN_RETURN_IF_ERROR(broken_[sequence]);
  window_.NoteFirstGroup(sequence, first);
  lengths_[sequence] = length;
  return Status::Ok();
}

// --- Prompts.

// After a prefill that has failed: what the sequence had before.
Status ClusterLedger::UndoPrefill() {
  if (!window_.in_prefill()) return Status::Ok();
  const uint32_t sequence = window_.prefilled_sequence();
  prompt_.reset();
  image_ = {};
  bool is_mixed = false;
  for (uint32_t i = 0; i < n_layers_; ++i) {
    const uint32_t first = settled_before_[size_t{i} * lengths_.size() + sequence];
    for (uint32_t stream = sequence * heads(); stream < (sequence + 1) * heads(); ++stream) {
      const ClusterMap& map = clusters_.map(i, stream);
      for (uint32_t cluster = 0; cluster < map.end_cluster(); ++cluster) {
        const size_t at = (size_t{i} * plan_.n_streams + stream) * map.end_cluster() + cluster;
        if (is_new_[at] && map.cluster(cluster).n_stored > 0) {
          KVRUN_RETURN_IF_ERROR(upkeep_.Remove({i, stream}, cluster));
        }
        is_mixed = is_mixed || map.cluster(cluster).end > first;
      }
      for (const PendingEntry& pending : map.pending()) is_mixed = is_mixed || pending.position >= first;
    }
    settled(i, sequence) = std::min(settled(i, sequence), first);
  }
  if (is_mixed && broken_[sequence].ok()) {
    // Unread, entries that were added to earlier clusters cannot be told from those that were there.
    broken_[sequence] = Status(
        StatusCode::kCorrupt,
        fmt::format(
            "a prompt that was not finished has left entries in clusters of earlier ones (all layers, from "
            "stream {} on): the sequence has to be computed again",
            sequence * heads()));
  }
  return window_.UndoPrefill();
}

Status ClusterLedger::BeginPrefill(uint32_t sequence, uint32_t begin) {
  KVRUN_RETURN_IF_ERROR(UndoPrefill());
  KVRUN_RETURN_IF_ERROR(Forget(sequence, begin));
  std::fill(is_new_.begin(), is_new_.end(), false);
  settled_before_ = settled_;
  return window_.BeginPrefill(sequence, begin, window_.FirstGroup(begin));
}

Status ClusterLedger::Append(uint32_t /*layer*/, uint32_t /*sequence*/, uint32_t /*first_group*/,
                             uint32_t /*n_groups*/, std::span<const std::byte> /*records*/) {
  KVRUN_CHECK(false);  // layers are stored whole
  return Status::Ok();
}

Status ClusterLedger::KeepSinks(const ClusterPlace& at, uint32_t head, uint32_t begin, uint32_t end,
                                PromptEntries& entries) {
  if (begin >= end) return Status::Ok();
  const uint64_t bytes = plan_.record.size_bytes();
  return entries.VisitRecords(head, begin, end, [&](uint32_t first, std::span<const std::byte> records) {
    for (uint32_t i = 0; i * bytes < records.size(); ++i) {
      std::memcpy(kept_.Record(at.layer, at.stream, first + i).data(), records.data() + i * bytes, bytes);
      KVRUN_RETURN_IF_ERROR(kept_.Flush(at.layer, at.stream, first + i));
    }
    return Status::Ok();
  });
}

// What prompt_ has divided, from entry `begin` on.
Status ClusterLedger::AddClusters(const ClusterPlace& at, uint32_t begin) {
  const PromptClusters& made = prompt_->clusters();
  ClusterMap& map = clusters_.map(at.layer, at.stream);
  KVRUN_RETURN_IF_ERROR(SetScales(at, made.centroids));
  const Status added = AddAll(at, begin);
  for (uint32_t cluster = 0; cluster < map.end_cluster(); ++cluster) {
    if (map.cluster(cluster).n_stored == 0 || map.cluster(cluster).end <= begin) continue;
    is_new_[(size_t{at.layer} * plan_.n_streams + at.stream) * map.end_cluster() + cluster] = true;
  }
  // Of few, a threshold would be that of chance.
  if (std::isinf(map.threshold()) && made.n_clusters() >= kClustersOfThreshold) {
    map.SetThreshold(plan_.clusters.threshold_factor * MeanOf(made.variances));
  }
  return added;
}

// Column scales for a prompt's centroids, the first that the stream has: rows that are there are packed anew.
Status ClusterLedger::SetScales(const ClusterPlace& at, std::span<const float> centroids) {
  const size_t nth = size_t{at.layer} * plan_.n_streams + at.stream;
  if (has_scales_[nth]) return Status::Ok();
  const ClusterMap& map = clusters_.map(at.layer, at.stream);
  const size_t dim = plan_.record.head_dim;
  std::vector<float> all(centroids.begin(), centroids.end());
  for (uint32_t cluster = 0; cluster < map.end_cluster(); ++cluster) {
    if (map.cluster(cluster).size() == 0) continue;
    index_.ReadCentroid(at.layer, at.stream, cluster, centroid_);
    all.insert(all.end(), centroid_.begin(), centroid_.end());
  }
  KVRUN_RETURN_IF_ERROR(index_.SetScales(at.layer, at.stream, all));
  size_t next = centroids.size();
  for (uint32_t cluster = 0; cluster < map.end_cluster(); ++cluster) {
    if (map.cluster(cluster).size() == 0) continue;
    KVRUN_RETURN_IF_ERROR(index_.Set(at.layer, at.stream, cluster, std::span(all).subspan(next, dim),
                                     map.cluster(cluster).n_stored,
                                     clusters_.n_records(at.layer, at.stream, cluster)));
    next += dim;
  }
  has_scales_[nth] = true;
  return Status::Ok();
}

Status ClusterLedger::AddAll(const ClusterPlace& at, uint32_t begin) {
  const PromptClusters& made = prompt_->clusters();
  const size_t dim = plan_.record.head_dim;
  std::vector<uint32_t> positions;
  for (uint32_t i = 0; i < made.n_clusters(); ++i) {
    const std::span<const uint32_t> entries = made.entries(i);
    positions.assign(entries.begin(), entries.end());
    for (uint32_t& position : positions) position += begin;
    KVRUN_RETURN_IF_ERROR(upkeep_.Add(
        at, positions, [&](size_t entry) { return prompt_->Record(entries[entry]); },
        std::span(made.centroids).subspan(i * dim, dim), made.variances[i]));
  }
  return Status::Ok();
}

// Where the index has no room for clusters of their own.
Status ClusterLedger::SettleOneByOne(const ClusterPlace& at, uint32_t head, uint32_t begin, uint32_t end,
                                     PromptEntries& entries) {
  const uint64_t bytes = plan_.record.size_bytes();
  return entries.VisitRecords(head, begin, end, [&](uint32_t first, std::span<const std::byte> records) {
    for (uint32_t i = 0; i * bytes < records.size(); ++i) {
      const std::span<const std::byte> record = records.subspan(i * bytes, bytes);
      const uint32_t place = FreePlace(at);
      std::memcpy(kept_.Record(at.layer, at.stream, place).data(), record.data(), bytes);
      KVRUN_RETURN_IF_ERROR(kept_.Flush(at.layer, at.stream, place));
      DecodeKeys(plan_.record, record, plan_.record.head_dim, key_);
      KVRUN_RETURN_IF_ERROR(Settle(at, first + i, place, key_, FindNearest(at, key_)));
    }
    return Status::Ok();
  });
}

Status ClusterLedger::StoreLayer(uint32_t layer, const KvRange& prompt, PromptEntries& entries) {
  const uint32_t begin = settled(layer, prompt.sequence);
  const uint32_t end = window_.FirstGroup(prompt.end);
  image_ = {};
  KVRUN_ASSIGN_OR_RETURN(prompt_, ClusterPrompt::Create(device_, plan_));
  for (uint32_t head = 0; head < heads() && begin < end; ++head) {
    const ClusterPlace at{layer, prompt.sequence * heads() + head};
    const ClusterMap& map = clusters_.map(layer, at.stream);
    const uint32_t sinks_end = std::min(end, std::max(begin, plan_.clusters.n_sinks));
    KVRUN_RETURN_IF_ERROR(KeepSinks(at, head, begin, sinks_end, entries));
    if (sinks_end == end) continue;
    const uint32_t room = map.n_room();
    if (uint64_t{room} * plan_.clusters.max_entries < end - sinks_end) {
      KVRUN_RETURN_IF_ERROR(SettleOneByOne(at, head, sinks_end, end, entries));
      continue;
    }
    const uint64_t seed = (uint64_t{layer} << 32) + at.stream;
    KVRUN_RETURN_IF_ERROR(prompt_->Divide(entries, head, sinks_end, end, room, seed));
    KVRUN_RETURN_IF_ERROR(AddClusters(at, sinks_end));
  }
  prompt_.reset();
  settled(layer, prompt.sequence) = std::max(begin, end);
  return Status::Ok();
}

Status ClusterLedger::EndPrefill(uint32_t sequence, uint32_t length) {
  KVRUN_RETURN_IF_ERROR(store_.Flush());
  KVRUN_RETURN_IF_ERROR(window_.EndPrefill(length));
  lengths_[sequence] = length;
  image_ = {};
  return Status::Ok();
}

Status ClusterLedger::StoreRepeated(uint32_t layer, uint32_t sequence, uint32_t length,
                                    std::span<const std::byte> records) {
  const uint64_t bytes = plan_.record.size_bytes();
  const auto n_records = static_cast<uint32_t>(records.size() / bytes);
  const uint32_t end = window_.FirstGroup(length);
  const uint32_t begin = std::min(end, plan_.clusters.n_sinks);
  const uint32_t most = std::min(plan_.clusters.mean_entries, plan_.clusters.max_entries);
  const uint32_t n_clusters = std::max(1U, CeilDiv(end - begin, most));
  const auto record = [&](uint32_t position) { return records.subspan(position % n_records * bytes, bytes); };
  std::vector<uint32_t> positions;
  std::vector<float> keys;
  for (uint32_t stream = sequence * heads(); stream < (sequence + 1) * heads(); ++stream) {
    for (uint32_t sink = 0; sink < begin; ++sink) {
      std::memcpy(kept_.Record(layer, stream, sink).data(), record(sink).data(), bytes);
      KVRUN_RETURN_IF_ERROR(kept_.Flush(layer, stream, sink));
    }
    for (uint32_t cluster = 0; cluster < n_clusters && begin < end; ++cluster) {
      positions.clear();
      keys.clear();
      for (uint32_t position = begin + cluster; position < end; position += n_clusters) {
        positions.push_back(position);
        DecodeKeys(plan_.record, record(position + stream), plan_.record.head_dim, key_);
        keys.insert(keys.end(), key_.begin(), key_.end());
      }
      if (cluster == 0) KVRUN_RETURN_IF_ERROR(SetScales({layer, stream}, keys));
      const float variance = FindSpread(keys, centroid_);
      KVRUN_RETURN_IF_ERROR(upkeep_.Add(
          {layer, stream}, positions, [&](size_t i) { return record(positions[i] + stream); }, centroid_,
          variance));
      clusters_.map(layer, stream).SetThreshold(plan_.clusters.threshold_factor * variance);
    }
  }
  settled(layer, sequence) = end;
  return Status::Ok();
}

// --- Decode.

// Places of kept entries: sinks have those of their positions.
uint32_t ClusterLedger::FreePlace(const ClusterPlace& at) const {
  const std::span<const PendingEntry> pending = clusters_.map(at.layer, at.stream).pending();
  uint32_t place = plan_.clusters.n_sinks;
  const auto is_taken = [&](const PendingEntry& entry) { return entry.place == place; };
  while (std::any_of(pending.begin(), pending.end(), is_taken)) ++place;
  KVRUN_CHECK(place < plan_.clusters.n_kept());
  return place;
}

Status ClusterLedger::BeginStep(std::span<const KvRow> rows) {
  KVRUN_RETURN_IF_ERROR(UndoPrefill());
  rows_.assign(rows.begin(), rows.end());
  for (const KvRow& row : rows) {
    KVRUN_CHECK(row.position <= lengths_[row.sequence]);
    KVRUN_RETURN_IF_ERROR(Forget(row.sequence, row.position));
  }
  uint32_t end = 0;
  for (uint32_t i = 0; i < n_layers_; ++i) {
    for (uint32_t row = 0; row < rows.size(); ++row) {
      for (uint32_t head = 0; head < heads(); ++head) {
        const uint32_t stream = rows[row].sequence * heads() + head;
        end = std::max(end, clusters_.map(i, stream).end_used());
        const uint32_t position = leaving(rows[row]);
        if (position == kNoEntry) continue;
        KVRUN_ASSIGN_OR_RETURN(const auto record, window_.Read(i, stream, position));
        DecodeKeys(plan_.window_record, record, plan_.record.head_dim, index_.Key(i, row, head));
      }
    }
    KVRUN_RETURN_IF_ERROR(index_.FlushKeys(i));
  }
  index_.SetEnd(end);
  return Status::Ok();
}

// The entry that leaves the window: kept in memory.
Status ClusterLedger::Arrive(const ClusterPlace& at, uint32_t position) {
  const uint32_t place = position < plan_.clusters.n_sinks ? position : FreePlace(at);
  KVRUN_ASSIGN_OR_RETURN(const auto record, window_.Read(at.layer, at.stream, position));
  TranscodeRecord(plan_.window_record, record, plan_.record, kept_.Record(at.layer, at.stream, place));
  return kept_.Flush(at.layer, at.stream, place);
}

Status ClusterLedger::NameKept(const ClusterPlace& at, uint32_t n_sinks, uint32_t arriving) {
  places_.clear();
  for (uint32_t sink = 0; sink < n_sinks; ++sink) places_.push_back(sink);
  for (const PendingEntry& pending : clusters_.map(at.layer, at.stream).pending()) {
    places_.push_back(pending.place);
  }
  if (arriving != kNoEntry) places_.push_back(arriving);
  return kept_.Name(at.layer, at.stream, places_);
}

Status ClusterLedger::BeginLayer(uint32_t layer) {
  for (const KvRow& row : rows_) {
    const uint32_t position = leaving(row);
    const bool arrives = position != kNoEntry && settled(layer, row.sequence) <= position;
    const uint32_t end = position == kNoEntry ? 0 : position + 1;
    for (uint32_t head = 0; head < heads(); ++head) {
      const ClusterPlace at{layer, row.sequence * heads() + head};
      if (arrives) KVRUN_RETURN_IF_ERROR(Arrive(at, position));
      const bool is_sink = position < plan_.clusters.n_sinks;
      KVRUN_RETURN_IF_ERROR(NameKept(at, std::min(plan_.clusters.n_sinks, end),
                                     arrives && !is_sink ? FreePlace(at) : kNoEntry));
    }
  }
  return Status::Ok();
}

// By what the index holds of centroids; of clusters that have room.
uint32_t ClusterLedger::FindNearest(const ClusterPlace& at, std::span<const float> key) {
  const ClusterMap& map = clusters_.map(at.layer, at.stream);
  uint32_t nearest = kNoCluster;
  float least = std::numeric_limits<float>::infinity();
  for (uint32_t cluster = 0; cluster < map.end_cluster(); ++cluster) {
    if (!map.HasRoom(cluster)) continue;
    index_.ReadCentroid(at.layer, at.stream, cluster, centroid_);
    const float distance = SquaredDistance(key, centroid_);
    if (nearest != kNoCluster && !(distance < least)) continue;
    nearest = cluster;
    least = distance;
  }
  return nearest;
}

// An entry that lies in memory, at `place`; `nearest` may have no room.
Status ClusterLedger::Settle(const ClusterPlace& at, uint32_t position, uint32_t place,
                             std::span<const float> key, uint32_t nearest) {
  ClusterMap& map = clusters_.map(at.layer, at.stream);
  if (is_local()) {
    const bool is_alone = map.pending().empty() && map.CanAdd();
    nearest = is_alone ? kNoCluster : map.pending().empty() ? FindNearest(at, key) : map.pending()[0].cluster;
  } else if (nearest == kNoCluster || !map.HasRoom(nearest)) {
    nearest = FindNearest(at, key);
  }
  if (nearest == kNoCluster) {
    if (map.n_free() == map.end_cluster()) {
      const float mean = std::sqrt(Dot(key, key) / static_cast<float>(key.size()));
      std::vector<float> larger(key.begin(), key.end());
      for (float& value : larger) value = kScaleOfOneKey * std::max(std::abs(value), mean);
      KVRUN_RETURN_IF_ERROR(index_.SetScales(at.layer, at.stream, larger));
    }
    const uint32_t cluster = map.Found(position, place);
    KVRUN_RETURN_IF_ERROR(index_.Set(at.layer, at.stream, cluster, key, 0, 0));
  } else {
    index_.ReadCentroid(at.layer, at.stream, nearest, centroid_);
    map.Settle(position, place, nearest, SquaredDistance(key, centroid_));
  }
  const uint32_t full = map.MustLoad();
  if (full == kNoCluster) return Status::Ok();
  KVRUN_RETURN_IF_ERROR(upkeep_.Maintain(at, full).status());
  return is_local() ? DivideLocal(at, full) : Status::Ok();
}

// Into parts of the mean size at most, as far as there is room.
Status ClusterLedger::DivideLocal(const ClusterPlace& at, uint32_t cluster) {
  ClusterMap& map = clusters_.map(at.layer, at.stream);
  while (map.cluster(cluster).n_stored > plan_.clusters.mean_entries && map.CanAdd()) {
    map.Flag(cluster);
    KVRUN_ASSIGN_OR_RETURN(const uint32_t other, upkeep_.Maintain(at, cluster));
    KVRUN_RETURN_IF_ERROR(DivideLocal(at, other));
  }
  return Status::Ok();
}

// Clusters that have something pending, and were chosen: they are in memory, in slots or (until the next
// layer but one) in the pool. Which these are does not depend on how many slots there are.
Status ClusterLedger::MaintainPending(const ClusterPlace& at, std::span<const uint32_t> chosen) {
  const ClusterMap& map = clusters_.map(at.layer, at.stream);
  for (size_t i = 0; i < map.pending().size();) {
    const uint32_t cluster = map.pending()[i].cluster;
    const bool is_new = map.cluster(cluster).n_stored == 0 && !is_local();
    if (!is_new && !std::binary_search(chosen.begin(), chosen.end(), cluster)) {
      ++i;
      continue;
    }
    KVRUN_RETURN_IF_ERROR(upkeep_.Maintain(at, cluster).status());  // which takes its entries off the list
    i = 0;
  }
  return Status::Ok();
}

Status ClusterLedger::MaintainLayer(uint32_t layer, const KvSelector& selector) {
  KVRUN_RETURN_IF_ERROR(index_.ReceiveNearest(layer));
  for (uint32_t row = 0; row < rows_.size(); ++row) {
    broken_[rows_[row].sequence] = MaintainRow(layer, row, selector);
    KVRUN_RETURN_IF_ERROR(broken_[rows_[row].sequence]);
  }
  return Status::Ok();
}

Status ClusterLedger::MaintainRow(uint32_t layer, uint32_t row, const KvSelector& selector) {
  const uint32_t sequence = rows_[row].sequence;
  const uint32_t position = leaving(rows_[row]);
  const bool settles = position != kNoEntry && settled(layer, sequence) <= position;
  for (uint32_t head = 0; head < heads(); ++head) {
    const ClusterPlace at{layer, sequence * heads() + head};
    if (settles && position >= plan_.clusters.n_sinks) {
      const uint32_t place = FreePlace(at);
      DecodeKeys(plan_.record, kept_.Record(layer, at.stream, place), plan_.record.head_dim, key_);
      KVRUN_RETURN_IF_ERROR(Settle(at, position, place, key_, index_.Nearest(layer, row, head)));
    }
    const StreamStep step{.layer = layer, .row = row, .head = head, .stream = at.stream};
    KVRUN_RETURN_IF_ERROR(MaintainPending(at, selector.LastChoice(step)));
  }
  if (settles) settled(layer, sequence) = position + 1;
  return Status::Ok();
}

void ClusterLedger::AddKeptPositions(uint32_t layer, uint32_t row, uint32_t head,
                                     std::vector<uint32_t>* positions) const {
  const KvRow& of = rows_[row];
  const uint32_t end = leaving(of) == kNoEntry ? 0 : leaving(of) + 1;
  for (uint32_t sink = 0; sink < std::min(plan_.clusters.n_sinks, end); ++sink) positions->push_back(sink);
  const uint32_t stream = of.sequence * heads() + head;
  for (const PendingEntry& pending : clusters_.map(layer, stream).pending()) {
    positions->push_back(pending.position);
  }
  const bool arrives = end > plan_.clusters.n_sinks && settled(layer, of.sequence) < end;
  if (arrives) positions->push_back(end - 1);
}

void ClusterLedger::EndStep(std::span<const KvRow> rows) {
  for (const KvRow& row : rows) lengths_[row.sequence] = row.position + 1;
}

std::optional<ClusterReport> ClusterLedger::clusters() const {
  ClusterReport report;
  report.moves = upkeep_.moves();
  double variances = 0.0;
  for (uint32_t i = 0; i < n_layers_; ++i) {
    for (uint32_t stream = 0; stream < plan_.n_streams; ++stream) {
      const ClusterMap& map = clusters_.map(i, stream);
      report.pending += map.pending().size();
      report.divisions += map.stats().divisions;
      report.forced_loads += map.stats().loads;
      report.joined_for_room += map.stats().joined_for_room;
      for (uint32_t cluster = 0; cluster < map.end_cluster(); ++cluster) {
        const Cluster& of = map.cluster(cluster);
        report.clusters += of.n_stored > 0 ? 1 : 0;
        report.entries += of.n_stored;
        variances += double{of.variance} * of.n_stored;
      }
    }
  }
  report.variance = report.entries > 0 ? variances / static_cast<double>(report.entries) : 0.0;
  return report;
}

// --- Reading back.

// Of all streams of a sequence, from `begin` on, as many as a tile has.
Status ClusterLedger::MakeImage(uint32_t layer, uint32_t sequence, uint32_t begin) {
  const uint32_t end = std::min(settled(layer, sequence), begin + ImageEntries(plan_));
  const uint64_t bytes = plan_.record.size_bytes();
  image_.layer = kNoEntry;
  image_.records.resize(uint64_t{heads()} * (end - begin) * bytes);
  for (uint32_t head = 0; head < heads(); ++head) {
    const ClusterPlace at{layer, sequence * heads() + head};
    const ClusterMap& map = clusters_.map(layer, at.stream);
    const auto put = [&](uint32_t position, std::span<const std::byte> record) {
      if (position < begin || position >= end) return Status::Ok();
      const uint64_t place = uint64_t{head} * (end - begin) + position - begin;
      std::memcpy(image_.records.data() + place * bytes, record.data(), bytes);
      return Status::Ok();
    };
    for (uint32_t sink = 0; sink < plan_.clusters.n_sinks; ++sink) {
      KVRUN_RETURN_IF_ERROR(put(sink, kept_.Record(layer, at.stream, sink)));
    }
    for (const PendingEntry& pending : map.pending()) {
      KVRUN_RETURN_IF_ERROR(put(pending.position, kept_.Record(layer, at.stream, pending.place)));
    }
    for (uint32_t cluster = 0; cluster < map.end_cluster(); ++cluster) {
      if (map.cluster(cluster).n_stored == 0 || map.cluster(cluster).end <= begin) continue;
      KVRUN_RETURN_IF_ERROR(upkeep_.Visit(at, cluster, put));
    }
  }
  image_.layer = layer;
  image_.sequence = sequence;
  image_.begin = begin;
  image_.end = end;
  return Status::Ok();
}

Status ClusterLedger::ReadGroups(uint32_t layer, uint32_t stream, uint32_t first_group, uint32_t n_groups,
                                 std::span<std::byte> records) {
  const uint32_t sequence = stream / heads();
  const bool is_there = image_.layer == layer && image_.sequence == sequence && first_group >= image_.begin &&
                        first_group + n_groups <= image_.end;
  if (!is_there) KVRUN_RETURN_IF_ERROR(MakeImage(layer, sequence, first_group));
  KVRUN_CHECK(first_group + n_groups <= image_.end);
  const uint64_t bytes = plan_.record.size_bytes();
  const uint64_t place =
      uint64_t{stream % heads()} * (image_.end - image_.begin) + first_group - image_.begin;
  std::memcpy(records.data(), image_.records.data() + place * bytes, n_groups * bytes);
  return Status::Ok();
}

// No index of clusters learns from stored keys.
Status ClusterLedger::Visit(uint32_t /*layer*/, uint32_t /*sequence*/, uint32_t /*begin*/,
                            const KeysFn& /*visit*/) {
  return {StatusCode::kUnsupported, "keys of clusters are not visited in order"};
}

}  // namespace kvrun
