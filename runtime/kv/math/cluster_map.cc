#include "runtime/kv/math/cluster_map.h"

#include <algorithm>

#include "platform/base/check.h"

namespace kvrun {
namespace {

// Of keys with one more, at a squared distance from their mean (Welford 1962).
float VarianceWith(const Cluster& cluster, uint32_t n, float squared_distance) {
  const auto count = static_cast<float>(n);
  return (count * cluster.variance + squared_distance * count / (count + 1)) / (count + 1);
}

}  // namespace

ClusterWorkspace::ClusterWorkspace(const ClusterMapShape& shape)
    : division_(shape.dim, shape.max_entries),
      is_second_(size_t{2} * shape.max_entries),
      part_keys_(size_t{shape.max_entries} * shape.dim),
      part_positions_(shape.max_entries),
      centroid_(shape.dim),
      other_centroid_(shape.dim) {}

uint64_t ClusterWorkspace::MemoryBytes(const ClusterMapShape& shape) {
  return KeyDivision::MemoryBytes(shape.dim, shape.max_entries) + uint64_t{2} * shape.max_entries +
         uint64_t{shape.max_entries} * (shape.dim * sizeof(float) + sizeof(uint32_t)) +
         uint64_t{2} * shape.dim * sizeof(float);
}

ClusterMap::ClusterMap(const ClusterMapShape& shape, ClusterWorkspace& workspace)
    : shape_(shape), clusters_(shape.max_clusters), n_free_(shape.max_clusters), work_(&workspace) {
  KVRUN_CHECK(shape.max_entries >= 2 && shape.max_entries < (1U << 15) && shape.max_pending > 0);
  pending_.reserve(shape.max_pending);
}

uint64_t ClusterMap::MemoryBytes(const ClusterMapShape& shape) {
  return sizeof(ClusterMap) + uint64_t{shape.max_clusters} * sizeof(Cluster) +
         uint64_t{shape.max_pending} * sizeof(PendingEntry);
}

void ClusterMap::Clear() {
  std::fill(clusters_.begin(), clusters_.end(), Cluster{});
  n_free_ = shape_.max_clusters;
  n_flagged_ = 0;
  end_used_ = 0;
  pending_.clear();
}

// Between calls, each cluster is as HasRoom leaves it.
bool ClusterMap::IsPossible(const Cluster& cluster) const {
  const uint32_t most = cluster.is_flagged() ? 2 * shape_.max_entries : shape_.max_entries;
  const uint32_t least = cluster.is_flagged() ? 2 : 0;
  return cluster.n_stored <= shape_.max_entries && cluster.size() >= least && cluster.size() <= most &&
         (cluster.n_stored > 0) == (cluster.end > 0);
}

bool ClusterMap::Resume(std::span<const Cluster> clusters, std::span<const PendingEntry> pending) {
  Clear();
  if (clusters.size() > clusters_.size() || pending.size() >= shape_.max_pending) return false;
  std::copy(clusters.begin(), clusters.end(), clusters_.begin());
  pending_.assign(pending.begin(), pending.end());
  end_used_ = static_cast<uint32_t>(clusters.size());
  std::vector<uint32_t> n_pending(clusters.size());
  for (const PendingEntry& entry : pending) {
    if (entry.cluster >= clusters.size()) return false;
    ++n_pending[entry.cluster];
  }
  for (size_t id = 0; id < clusters.size(); ++id) {
    if (clusters[id].n_pending != n_pending[id] || !IsPossible(clusters[id])) return false;
    n_free_ -= clusters[id].size() > 0 ? 1 : 0;
    n_flagged_ += clusters[id].is_flagged() ? 1 : 0;
  }
  return n_flagged_ <= n_free_;
}

uint32_t ClusterMap::TakeFree() {
  KVRUN_CHECK(n_free_ > 0);
  --n_free_;
  const auto free =
      std::find_if(clusters_.begin(), clusters_.end(), [](const Cluster& c) { return c.size() == 0; });
  const auto id = static_cast<uint32_t>(free - clusters_.begin());
  end_used_ = std::max(end_used_, id + 1);
  return id;
}

uint32_t ClusterMap::Add(uint32_t n_stored, float variance, uint32_t end) {
  KVRUN_CHECK(n_stored > 0 && n_stored <= shape_.max_entries && CanAdd());
  const uint32_t id = TakeFree();
  clusters_[id] = {.n_stored = static_cast<uint16_t>(n_stored), .end = end, .variance = variance};
  return id;
}

uint32_t ClusterMap::Found(uint32_t position, uint32_t place) {
  KVRUN_CHECK(CanAdd() && pending_.size() < shape_.max_pending);
  const uint32_t id = TakeFree();
  clusters_[id] = {.n_pending = 1};
  pending_.push_back({position, id, place});
  return id;
}

bool ClusterMap::HasRoom(uint32_t id) const {
  const Cluster& cluster = clusters_[id];
  if (cluster.size() == 0) return false;
  if (cluster.is_flagged()) return cluster.size() < 2 * shape_.max_entries;
  return cluster.size() < shape_.max_entries || CanAdd();
}

void ClusterMap::Settle(uint32_t position, uint32_t place, uint32_t id, float squared_distance) {
  KVRUN_CHECK(HasRoom(id) && pending_.size() < shape_.max_pending);
  Cluster& cluster = clusters_[id];
  if (!cluster.is_flagged()) {
    const float variance = VarianceWith(cluster, cluster.size(), squared_distance);
    const bool is_full = cluster.size() == shape_.max_entries;
    const bool is_beyond = shape_.update == ClusterUpdate::kAdaptive && !(variance <= threshold_);
    if (is_full || (is_beyond && CanAdd())) {
      cluster.flagged_at = position;
      ++n_flagged_;
    } else {
      cluster.variance = variance;
      stats_.joined_for_room += is_beyond ? 1 : 0;
    }
  }
  ++cluster.n_pending;
  pending_.push_back({position, id, place});
}

void ClusterMap::Flag(uint32_t id) {
  Cluster& cluster = clusters_[id];
  KVRUN_CHECK(cluster.n_stored >= 2 && !cluster.is_flagged() && CanAdd());
  cluster.flagged_at = cluster.end - 1;
  ++n_flagged_;
}

uint32_t ClusterMap::MustLoad() {
  if (pending_.size() < shape_.max_pending) return kNoCluster;
  const auto most =
      std::max_element(clusters_.begin(), clusters_.end(),
                       [](const Cluster& a, const Cluster& b) { return a.n_pending < b.n_pending; });
  ++stats_.loads;
  return static_cast<uint32_t>(most - clusters_.begin());
}

void ClusterMap::Unflag(Cluster& cluster) {
  n_flagged_ -= cluster.is_flagged() ? 1 : 0;
  cluster.flagged_at = Cluster::kNotFlagged;
}

// All keys are stored now.
void ClusterMap::Store(Cluster& cluster, std::span<const float> keys, std::span<const uint32_t> positions,
                       std::span<float> centroid) {
  KVRUN_CHECK(!positions.empty() && positions.size() <= shape_.max_entries);
  cluster.n_stored = static_cast<uint16_t>(positions.size());
  cluster.variance = FindSpread(keys, centroid);
  cluster.end = *std::max_element(positions.begin(), positions.end()) + 1;
}

ClusterMap::Maintained ClusterMap::Maintain(uint32_t id, std::span<const float> keys,
                                            std::span<const uint32_t> positions) {
  Cluster& cluster = clusters_[id];
  KVRUN_CHECK(positions.size() == cluster.size() && keys.size() == positions.size() * shape_.dim);
  pending_.erase(std::remove_if(pending_.begin(), pending_.end(),
                                [id](const PendingEntry& entry) { return entry.cluster == id; }),
                 pending_.end());
  cluster.n_pending = 0;
  cluster.n_stored = static_cast<uint16_t>(positions.size());
  if (cluster.is_flagged()) return DivideCluster(id, keys, positions);
  Store(cluster, keys, positions, work_->centroid_);
  return {.centroid = work_->centroid_};
}

ClusterMap::Maintained ClusterMap::DivideCluster(uint32_t id, std::span<const float> keys,
                                                 std::span<const uint32_t> positions) {
  const size_t n = positions.size();
  const std::span<uint8_t> is_second = std::span(work_->is_second_).first(n);
  work_->division_.Divide(keys, is_second);
  Unflag(clusters_[id]);
  const uint32_t other = TakeFree();
  for (uint8_t part = 0; part < 2; ++part) {
    size_t n_part = 0;
    for (size_t i = 0; i < n; ++i) {
      if (is_second[i] != part) continue;
      const std::span<const float> key = keys.subspan(i * shape_.dim, shape_.dim);
      std::copy(key.begin(), key.end(), work_->part_keys_.begin() + n_part * shape_.dim);
      work_->part_positions_[n_part++] = positions[i];
    }
    Store(clusters_[part == 0 ? id : other], std::span(work_->part_keys_).first(n_part * shape_.dim),
          std::span(work_->part_positions_).first(n_part),
          part == 0 ? work_->centroid_ : work_->other_centroid_);
  }
  ++stats_.divisions;
  return {.other = other,
          .is_second = is_second,
          .centroid = work_->centroid_,
          .other_centroid = work_->other_centroid_};
}

void ClusterMap::FreeIfEmpty(Cluster& cluster) {
  if (cluster.size() > 0) return;
  cluster = {};
  ++n_free_;
}

void ClusterMap::TruncatePending(uint32_t first) {
  const auto is_forgotten = [first](const PendingEntry& entry) { return entry.position >= first; };
  for (const PendingEntry& entry : pending_) {
    if (!is_forgotten(entry)) continue;
    Cluster& cluster = clusters_[entry.cluster];
    --cluster.n_pending;
    if (first <= cluster.flagged_at) Unflag(cluster);
    FreeIfEmpty(cluster);
  }
  pending_.erase(std::remove_if(pending_.begin(), pending_.end(), is_forgotten), pending_.end());
}

std::span<const float> ClusterMap::Restore(uint32_t id, std::span<const float> keys,
                                           std::span<const uint32_t> positions) {
  Cluster& cluster = clusters_[id];
  KVRUN_CHECK(positions.size() <= cluster.n_stored && cluster.n_stored > 0);
  if (!positions.empty()) {
    Store(cluster, keys, positions, work_->centroid_);
  } else {
    cluster.n_stored = 0;
    cluster.end = 0;
  }
  if (cluster.size() < 2) Unflag(cluster);  // there is nothing to divide
  FreeIfEmpty(cluster);
  return positions.empty() ? std::span<const float>() : work_->centroid_;
}

}  // namespace kvrun
