// What a ledger of clusters keeps in memory, saved and loaded.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <span>
#include <vector>

#include "runtime/kv/clusters/cluster_ledger.h"

namespace kvrun {
namespace {

// A cluster of a map, in a state.
struct SavedCluster {
  uint16_t n_stored = 0;
  uint16_t n_pending = 0;
  uint32_t end = 0;
  uint32_t variance = 0;  // the float's bits
  uint32_t flagged_at = 0;
};

SavedCluster ToSaved(const Cluster& of) {
  return {of.n_stored, of.n_pending, of.end, std::bit_cast<uint32_t>(of.variance), of.flagged_at};
}

Cluster FromSaved(const SavedCluster& of) {
  return {of.n_stored, of.n_pending, of.end, std::bit_cast<float>(of.variance), of.flagged_at};
}

}  // namespace

Status ClusterLedger::VisitState(StateVisitor& visitor) {
  enum Item : uint16_t { kLengths, kSettled, kHasScales };
  if (!visitor.is_loading()) KVRUN_RETURN_IF_ERROR(UndoPrefill());
  for (const Status& broken : broken_) KVRUN_RETURN_IF_ERROR(broken);
  KVRUN_RETURN_IF_ERROR(visitor.Array({StatePart::kLedger, kLengths}, std::span(lengths_)));
  KVRUN_RETURN_IF_ERROR(visitor.Array({StatePart::kLedger, kSettled}, std::span(settled_)));
  KVRUN_RETURN_IF_ERROR(visitor.Flags({StatePart::kLedger, kHasScales}, &has_scales_));
  for (uint32_t sequence = 0; visitor.is_loading() && sequence < n_sequences(); ++sequence) {
    KVRUN_RETURN_IF_ERROR(CheckLoaded(sequence));
  }
  for (uint32_t layer = 0; layer < n_layers_; ++layer) {
    for (uint32_t stream = 0; stream < plan_.n_streams; ++stream) {
      KVRUN_RETURN_IF_ERROR(VisitStream(visitor, {layer, stream}));
    }
  }
  return Status::Ok();
}

// Where a step has failed, its entry may have left the window of some layers.
Status ClusterLedger::CheckLoaded(uint32_t sequence) const {
  const uint32_t length = lengths_[sequence];
  const uint32_t first = window_.FirstGroup(length);
  const uint32_t most = length >= plan_.window.n_entries ? first + 1 : first;
  for (uint32_t layer = 0; layer < n_layers_; ++layer) {
    const uint32_t of = settled(layer, sequence);
    if (length <= plan_.n_ctx && of >= first && of <= most) continue;
    return {StatusCode::kCorrupt,
            fmt::format("{} entries of sequence {}, of which {} have left the window of layer {}, are not as "
                        "in a context of {}",
                        length, sequence, of, layer, plan_.n_ctx)};
  }
  return Status::Ok();
}

Status ClusterLedger::VisitStream(StateVisitor& visitor, const ClusterPlace& at) {
  enum Item : uint16_t { kThreshold = 10, kClusters, kPending };
  const auto key = [&at](Item item) { return StateKey{StatePart::kLedger, item, at.layer, at.stream}; };
  ClusterMap& map = clusters_.map(at.layer, at.stream);
  float threshold = map.threshold();
  std::vector<SavedCluster> saved;
  for (uint32_t i = 0; i < map.end_used(); ++i) saved.push_back(ToSaved(map.cluster(i)));
  std::vector<PendingEntry> pending(map.pending().begin(), map.pending().end());
  KVRUN_RETURN_IF_ERROR(visitor.Value(key(kThreshold), &threshold));
  KVRUN_RETURN_IF_ERROR(visitor.Vector(key(kClusters), &saved, map.end_cluster()));
  KVRUN_RETURN_IF_ERROR(visitor.Vector(key(kPending), &pending, plan_.of_clusters().max_pending));
  if (visitor.is_loading()) {
    std::vector<Cluster> clusters;
    for (const SavedCluster& cluster : saved) clusters.push_back(FromSaved(cluster));
    map.SetThreshold(threshold);
    KVRUN_RETURN_IF_ERROR(Resume(at, clusters, pending));
  }
  const uint32_t n_sinks = std::min(plan_.of_clusters().n_sinks, settled(at.layer, at.stream / heads()));
  places_.clear();
  for (const PendingEntry& entry : pending) places_.push_back(entry.place);
  return kept_.VisitState(visitor, at.layer, at.stream, n_sinks, places_);
}

// Each entry that has left the window is in one place.
Status ClusterLedger::Resume(const ClusterPlace& at, std::span<const Cluster> clusters,
                             std::span<const PendingEntry> pending) {
  ClusterMap& map = clusters_.map(at.layer, at.stream);
  const uint32_t n_settled = settled(at.layer, at.stream / heads());
  const uint32_t n_sinks = std::min(plan_.of_clusters().n_sinks, n_settled);
  std::vector<uint32_t> positions;
  std::vector<uint32_t> places;
  std::vector<uint32_t> n_records;
  for (const PendingEntry& entry : pending) {
    positions.push_back(entry.position);
    places.push_back(entry.place);
  }
  std::sort(places.begin(), places.end());
  bool fits = AreAscending(positions, n_settled) && (positions.empty() || positions.front() >= n_sinks) &&
              AreAscending(places, plan_.of_clusters().n_kept()) &&
              (places.empty() || places.front() >= plan_.of_clusters().n_sinks);
  uint64_t n_entries = n_sinks;
  for (const Cluster& cluster : clusters) {
    n_entries += cluster.size();
    n_records.push_back(clusters_.RecordsOf(cluster.n_stored));
    fits = fits && cluster.end <= n_settled;
  }
  fits = fits && n_entries == n_settled && map.Resume(clusters, pending);
  if (!fits) {
    return {
        StatusCode::kCorrupt,
        fmt::format("clusters of layer {}, stream {} are not those of {} entries that have left the window",
                    at.layer, at.stream, n_settled)};
  }
  return index_.SetRecords(at.layer, at.stream, n_records);
}

}  // namespace kvrun
