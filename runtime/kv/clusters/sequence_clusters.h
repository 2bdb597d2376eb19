// Clusters whose entries lie on flash in the order of the text, to compare with: each entry at the place of
// its position (GroupStore, a group of one entry). A cluster is read as its runs of consecutive positions.
// An entry is written once, however its cluster changes afterwards: nothing is moved, and much is read.
//
// Which positions a cluster has is kept in memory, 8 bytes for each position of the context, beside the
// checksum of each entry. Format: docs/formats/kv_clusters.md.
//
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "platform/base/status.h"
#include "platform/io/block_file.h"
#include "runtime/device/kv_record.h"
#include "runtime/kv/plan/kv_plan.h"
#include "runtime/store/cluster_files.h"
#include "runtime/store/group_store.h"

namespace kvrun {

class SequenceClusters final : public ClusterFiles {
 public:
  // Reserves the file's space.
  // Of the store that it makes: a group is an entry.
  static GroupStoreShape StoreShape(const KvPlan& plan, uint32_t n_layers);
  static Result<std::unique_ptr<SequenceClusters>> Create(std::unique_ptr<BlockFile> file, const KvPlan& plan,
                                                          uint32_t n_layers);
  // What it holds in memory beside checksums and staging.
  static uint64_t MapBytes(const KvPlan& plan, uint32_t n_layers);

  // Places of the last record that no entry takes have kNoPosition.
  Status Write(uint32_t layer, uint32_t stream, uint32_t cluster, uint32_t first_changed,
               std::span<const std::byte> records) override;
  Status Flush() override { return store_->Flush(); }
  Status Fetch(uint32_t layer, std::span<const ClusterFetch> fetches) override;
  void Forget(uint32_t layer, uint32_t stream, uint32_t cluster) override;
  Status VisitState(StateVisitor& visitor) override;
  uint64_t CountRuns(uint32_t layer, uint32_t stream, std::span<const uint32_t> clusters) const override;

  const IoMode& mode() const override { return store_->mode(); }
  const ClusterStoreStats& stats() const override { return stats_; }

 private:
  struct Cluster {
    uint32_t first = 0;  // position of its first entry
    uint32_t n_entries = 0;
  };
  // An entry that is read.
  struct Wanted {
    uint32_t stream = 0;
    uint32_t position = 0;
    std::byte* record = nullptr;  // where it goes; null: it is read, and dropped
    uint32_t entry = 0;           // of the record
  };

  SequenceClusters(std::unique_ptr<GroupStore> store, const KvPlan& plan, uint32_t n_layers);

  Status WriteNew(uint32_t layer, uint32_t stream, uint32_t cluster, std::span<const std::byte> records);
  Status AppendRun(uint32_t layer, uint32_t stream, uint32_t first, uint32_t n);
  void Replace(size_t list, uint32_t owner, uint32_t by);
  // Each cluster leads to all of its entries, and there are no others.
  bool IsWhole(size_t list, uint32_t n_positions);
  void AddWanted(size_t list, const ClusterFetch& fetch);
  void CountFetch();
  void TakeStats(uint64_t records_read);

  size_t List(uint32_t layer, uint32_t stream) const { return size_t{layer} * n_streams_ + stream; }
  uint32_t& Owner(size_t list, uint32_t position) { return owners_[list * n_ctx_ + position]; }
  uint32_t& Next(size_t list, uint32_t position) { return next_[list * n_ctx_ + position]; }
  Cluster& At(size_t list, uint32_t cluster) { return clusters_[list * n_clusters_ + cluster]; }
  std::span<std::byte> Entry(size_t i) {
    return std::span(entries_).subspan(i * entry_bytes(), entry_bytes());
  }
  uint64_t entry_bytes() const { return entry_shape_.size_bytes(); }
  uint64_t PagesOf(size_t list, uint32_t first, uint32_t n) const;

  KvRecordShape entry_shape_;
  KvRecordShape record_shape_;
  uint32_t n_ctx_;
  uint32_t n_streams_;
  uint32_t n_clusters_;
  std::unique_ptr<GroupStore> store_;
  std::vector<uint32_t> owners_;    // [n_layers, n_streams, n_ctx]: the cluster of an entry that is on flash
  std::vector<uint32_t> next_;      // the same: the position of the cluster's entry after it
  std::vector<Cluster> clusters_;   // [n_layers, n_streams, n_clusters]
  std::vector<std::byte> entries_;  // of a Fetch, or of a run that is written
  std::vector<Wanted> wanted_;      // of a Fetch
  std::vector<GroupFetch> fetches_;
  uint64_t records_read_ = 0;
  uint32_t layer_ = 0;  // of the Fetch that runs
  ClusterStoreStats stats_;
};

}  // namespace kvrun
