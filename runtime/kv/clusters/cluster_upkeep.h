// Changes what a cluster consists of, everywhere: in its map, on flash, in slots, and in the index. Needs the
// cluster's entries in memory: takes them from the layer's own slots where all of them are there, else reads
// them.
//
// Threads: one at a time. Not while the device attends to the layer's slots, or scores its index.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "platform/base/status.h"
#include "runtime/kv/clusters/cluster_extents.h"
#include "runtime/kv/clusters/cluster_index.h"
#include "runtime/kv/memory/entry_spaces.h"
#include "runtime/kv/memory/kept_entries.h"
#include "runtime/kv/memory/kv_slots.h"
#include "runtime/kv/plan/cluster_report.h"
#include "runtime/kv/plan/kv_plan.h"
#include "runtime/store/cluster_files.h"

namespace kvrun {

// Of a layer and stream.
struct ClusterPlace {
  uint32_t layer = 0;
  uint32_t stream = 0;
};

class ClusterUpkeep {
 public:
  // All must outlive it.
  ClusterUpkeep(const KvPlan& plan, ClusterSet& clusters, ClusterFiles& store, KvSlots& slots,
                ClusterIndex& index, KeptEntries& kept, const EntrySpaces& spaces);

  // Whether all stored entries lie in the layer's own slots.
  bool IsResident(const ClusterPlace& at, uint32_t cluster);
  // Stores what is pending for the cluster, and divides it where it is flagged (ClusterMap::Maintain).
  // Answers the new one then, else kNoCluster.
  Result<uint32_t> Maintain(const ClusterPlace& at, uint32_t cluster);
  // A new cluster, of entries that `record` answers (KvPlan::record), [positions.size()].
  using RecordFn = std::function<std::span<const std::byte>(size_t i)>;
  Status Add(const ClusterPlace& at, std::span<const uint32_t> positions, const RecordFn& record,
             std::span<const float> centroid, float variance);
  // Entries from position `first` on go; `take` gets each of them before, as a KvPlan::record.
  using TakeFn = std::function<Status(uint32_t position, std::span<const std::byte> record)>;
  Status Truncate(const ClusterPlace& at, uint32_t cluster, uint32_t first, const TakeFn& take);
  // All entries of the cluster are given up, unread.
  Status Remove(const ClusterPlace& at, uint32_t cluster);
  // All of a stream, unread.
  Status Clear(const ClusterPlace& at);
  // Stored entries of a cluster, in no order.
  Status Visit(const ClusterPlace& at, uint32_t cluster, const TakeFn& visit);

  const ClusterMoves& moves() const { return moves_; }

 private:
  Result<uint32_t> MaintainLoaded(const ClusterPlace& at, uint32_t cluster);
  Status Load(const ClusterPlace& at, uint32_t cluster);
  Status Read(const ClusterPlace& at, uint32_t cluster);
  Status CollectEntries(const ClusterPlace& at, uint32_t n_stored);
  Status AddPending(const ClusterPlace& at, uint32_t cluster);
  Status PutPart(const ClusterPlace& at, uint32_t cluster, std::span<const uint32_t> entries,
                 uint32_t first_changed, std::span<const float> centroid);
  Status WriteSlots(const ClusterPlace& at, uint32_t cluster, uint32_t n_records, uint32_t first_changed);
  void MoveSlots(const ClusterPlace& at, uint32_t from, uint32_t n_before, uint32_t to);
  void CountMoves(const ClusterPlace& at, uint32_t cluster, uint32_t other, uint32_t n_stored,
                  uint32_t n_new);

  uint32_t RecordId(uint32_t cluster, uint32_t i) const { return cluster * plan_.records_per_extent() + i; }
  uint32_t slot_tokens() const { return plan_.slots.record.group_tokens; }
  uint64_t record_bytes() const { return plan_.slots.record.size_bytes(); }
  uint32_t dim() const { return plan_.record.head_dim; }
  // Records of the cluster that is being changed: loaded_ as it was, with what is pending behind; built_ as a
  // part of it will be.
  std::span<std::byte> Loaded(uint32_t i) {
    return std::span(loaded_).subspan(i * record_bytes(), record_bytes());
  }

  const KvPlan& plan_;
  ClusterSet& clusters_;
  ClusterFiles& store_;
  KvSlots& slots_;
  ClusterIndex& index_;
  const EntrySpaces& spaces_;
  KeptEntries& kept_;
  std::vector<std::byte> loaded_;    // [2 * records_per_cluster + 1] records
  std::vector<std::byte> built_;     // the same
  std::vector<std::byte*> memory_;   // of a read
  std::vector<std::byte> entry_;     // KvPlan::record
  std::vector<float> keys_;          // [2 * max_entries, dim]
  std::vector<float> record_keys_;   // [group_tokens, dim]
  std::vector<uint32_t> positions_;  // [2 * max_entries]
  std::vector<uint32_t> part_;       // [2 * max_entries]
  ClusterMoves moves_;
};

}  // namespace kvrun
