// Which cluster each entry of a stream is in, and how clusters change while tokens are generated. Knows
// numbers: no bytes, files or devices; a cluster's keys are handed in when it is maintained. Pure and
// deterministic.
//
// An entry that leaves the window is *pending*: assigned to the cluster whose centroid is nearest, and kept
// in memory, where it is always attended to. When that cluster is in memory as well, it is *maintained*: its
// pending entries are *stored* with it, and where it is *flagged* it is divided. So every entry is in exactly
// one cluster, stored or pending. Where too many are pending, a cluster has to be loaded for it.
//
// Example: threshold 1, a cluster of 3 stored entries with variance 0.9. An entry at a squared distance of 1
// would make the variance (3 * 0.9 + 1 * 3/4) / 4 = 0.86: it joins. One at a squared distance of 4 would make
// it (3 * 0.9 + 4 * 3/4) / 4 = 1.43: the cluster is flagged, and keeps 0.9.
//
// Source: DynaKV, Algorithm 1, with two corrections: a variance is updated only where the entry joins, and a
// division takes the new entry and all that is pending for the cluster at once. Besides, an entry that joins
// waits for its cluster too, as its record on flash cannot be written without the entries that it has.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "runtime/kv/math/key_division.h"

namespace kvrun {

inline constexpr uint32_t kNoCluster = UINT32_MAX;

// What a new entry may do to the cluster that is nearest. kAdaptive: flag it, where its variance would exceed
// the threshold (DynaKV). kStatic: nothing, but for size (as PQCache does). kLocal: entries join no earlier
// cluster; those that are pending together become new ones (as ClusterKV does): the caller settles them in
// one cluster, and divides it (Flag).
enum class ClusterUpdate : uint8_t { kAdaptive, kStatic, kLocal };

struct ClusterMapShape {
  uint32_t dim = 0;           // of a key
  uint32_t max_clusters = 0;  // room in the index
  uint32_t max_entries = 0;   // of a cluster; at least 2, less than 2^15
  uint32_t max_pending = 0;   // at most; where there are as many, MustLoad names a cluster
  ClusterUpdate update = ClusterUpdate::kAdaptive;
};

struct Cluster {
  static constexpr uint32_t kNotFlagged = UINT32_MAX;

  uint16_t n_stored = 0;
  uint16_t n_pending = 0;
  uint32_t end = 0;  // stored entries' positions are less
  // Of its entries, but for the one that it was flagged for and later ones. Exact after Add, Maintain and
  // Restore; with each entry that joins an estimate, as distances are to the centroid of those that are
  // stored.
  float variance = 0.0F;
  uint32_t flagged_at = kNotFlagged;  // the position of the entry that made it flagged

  bool is_flagged() const { return flagged_at != kNotFlagged; }  // it is divided when it is maintained
  uint32_t size() const { return uint32_t{n_stored} + n_pending; }
};

struct PendingEntry {
  uint32_t position = 0;
  uint32_t cluster = 0;
  uint32_t place = 0;  // in memory: the caller's
};

struct ClusterMapStats {
  uint64_t divisions = 0;
  uint64_t loads = 0;            // that MustLoad named
  uint64_t joined_for_room = 0;  // beyond the threshold, but the index had no room for a division
};

// What a division needs room for. Maps of one shape may share it, as one of them is maintained at a time.
class ClusterWorkspace {
 public:
  explicit ClusterWorkspace(const ClusterMapShape& shape);
  static uint64_t MemoryBytes(const ClusterMapShape& shape);

 private:
  friend class ClusterMap;

  KeyDivision division_;
  std::vector<uint8_t> is_second_;
  std::vector<float> part_keys_;
  std::vector<uint32_t> part_positions_;
  std::vector<float> centroid_;
  std::vector<float> other_centroid_;
};

class ClusterMap {
 public:
  // The workspace is for maps of this shape, and must outlive them.
  ClusterMap(const ClusterMapShape& shape, ClusterWorkspace& workspace);
  static uint64_t MemoryBytes(const ClusterMapShape& shape);

  // Clusters have ids below this; those of size 0 are free.
  uint32_t end_cluster() const { return static_cast<uint32_t>(clusters_.size()); }
  // No id from here on was ever taken, since Clear.
  uint32_t end_used() const { return end_used_; }
  uint32_t n_free() const { return n_free_; }
  // Free ids that no flagged cluster needs for its division.
  uint32_t n_room() const { return n_free_ - n_flagged_; }
  const Cluster& cluster(uint32_t id) const { return clusters_[id]; }
  std::span<const PendingEntry> pending() const { return pending_; }
  const ClusterMapStats& stats() const { return stats_; }

  // Beyond it, a cluster is not alike: c times the mean variance of the first clusters. Until it is set, none
  // is beyond.
  void SetThreshold(float variance) { threshold_ = variance; }
  float threshold() const { return threshold_; }

  bool CanAdd() const { return n_room() > 0; }
  // A cluster of entries that are stored: at least one, at most max_entries. Answers its id; CanAdd must
  // hold.
  uint32_t Add(uint32_t n_stored, float variance, uint32_t end);

  // Whether one more entry can be assigned to the cluster, which has some. Until there are max_clusters *
  // max_entries entries, a cluster has room, or CanAdd.
  bool HasRoom(uint32_t id) const;
  // Entries settle in the order of their positions, one after another: after each, the cluster that MustLoad
  // names is maintained.
  //
  // An entry that leaves the window while there is no cluster, or that is to be alone: pending for a new
  // cluster, whose id is answered. CanAdd must hold.
  uint32_t Found(uint32_t position, uint32_t place);
  // An entry that leaves the window, and lies at a squared distance from the centroid of a cluster that has
  // room; pending from now on.
  void Settle(uint32_t position, uint32_t place, uint32_t id, float squared_distance);
  // The cluster is divided when it is maintained next; it has two stored entries at least, and CanAdd holds.
  void Flag(uint32_t id);
  // The cluster with most pending entries, the lowest of those, where as many are pending as there may be;
  // else kNoCluster. To be loaded and maintained.
  uint32_t MustLoad();

  struct Maintained {
    // Where the cluster was divided, the new one, which has the entries of which is_second is 1.
    uint32_t other = kNoCluster;
    std::span<const uint8_t> is_second = {};  // of the keys that were handed in
    std::span<const float> centroid = {};     // float [dim]
    std::span<const float> other_centroid = {};
  };
  // The cluster is in memory: what is pending for it is stored with it. keys: float [size(), dim], of those
  // stored and then of those pending, in the order of pending(); positions [size()]. Valid until the
  // workspace is used again.
  Maintained Maintain(uint32_t id, std::span<const float> keys, std::span<const uint32_t> positions);

  // Forgets pending entries from position `first` on. Stored ones: of each cluster whose `end` is greater,
  // the caller finds those that stay, and says so by Restore.
  void TruncatePending(uint32_t first);
  // What is left of a cluster's stored entries; without any, and nothing pending, its id is free. Answers the
  // centroid, which is empty without entries.
  std::span<const float> Restore(uint32_t id, std::span<const float> keys,
                                 std::span<const uint32_t> positions);

  // Forgets all entries. Threshold and statistics stay.
  void Clear();
  // What another map of this shape had: clusters [end_used()), and pending(). False where these contradict
  // themselves; then only Clear may be called.
  bool Resume(std::span<const Cluster> clusters, std::span<const PendingEntry> pending);

 private:
  bool IsPossible(const Cluster& cluster) const;
  uint32_t TakeFree();
  void Store(Cluster& cluster, std::span<const float> keys, std::span<const uint32_t> positions,
             std::span<float> centroid);
  Maintained DivideCluster(uint32_t id, std::span<const float> keys, std::span<const uint32_t> positions);
  void Unflag(Cluster& cluster);
  void FreeIfEmpty(Cluster& cluster);

  ClusterMapShape shape_;
  float threshold_ = std::numeric_limits<float>::infinity();
  std::vector<Cluster> clusters_;  // [max_clusters]
  uint32_t n_free_;
  uint32_t end_used_ = 0;
  uint32_t n_flagged_ = 0;  // each needs a free id
  std::vector<PendingEntry> pending_;
  ClusterMapStats stats_;
  ClusterWorkspace* work_;
};

}  // namespace kvrun
