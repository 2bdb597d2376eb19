// Divides a prompt's entries of one KV head of a layer into clusters of keys that are alike: K-means, whose
// products the device computes.
// Source: DynaKV, section 4.1 (the initial partition).
//
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "platform/base/status.h"
#include "runtime/device/device.h"
#include "runtime/kv/contracts/prompt_entries.h"
#include "runtime/kv/math/key_rows.h"
#include "runtime/kv/math/kmeans.h"
#include "runtime/kv/math/prompt_clusters.h"
#include "runtime/kv/plan/kv_plan.h"

namespace kvrun {

class ClusterPrompt {
 public:
  // For prompts of a plan. Both must outlive it.
  ClusterPrompt(Device& device, const KvPlan& plan) : device_(device), plan_(plan), rows_(plan.record) {}
  // What it takes for a prompt of the whole context, on host and device.
  static uint64_t MemoryBytes(const KvPlan& plan);

  // Entries of the prompt.
  struct EntryRange {
    uint32_t begin = 0;
    uint32_t end = 0;
  };
  // Divides entries of one KV head into at most `room` clusters; room * ClustersPlan::max_entries is no less
  // than there are entries. `mean_key`: of the records' space (EntrySpaces::MeanKey).
  Status Divide(PromptEntries& entries, uint32_t head, const EntryRange& range, uint32_t room, uint64_t seed,
                std::span<const float> mean_key = {});
  // In which order these clusters are to be numbered: those that the prompt's last queries would select
  // together adjoin on flash (cluster_placement.h). As they are, where no queries are known.
  std::vector<uint32_t> Order(const PromptEntries& entries, uint32_t head) const;
  // Of the last division; entries count from `begin` on.
  const PromptClusters& clusters() const { return clusters_; }
  // Reads the records of what was divided, for Record; after Order, whose memory they take.
  Status LoadRecords(PromptEntries& entries, uint32_t head, const EntryRange& range);
  // An entry's record, KvPlan::record.
  std::span<const std::byte> Record(uint32_t entry) const;

 private:
  // What the device multiplies: kShared.
  struct Pieces {
    std::unique_ptr<Buffer> keys;      // of some entries, as KV of one head: float [kKeysOfPiece, head_dim]
    std::unique_ptr<Buffer> key_side;  // float [head_dim, n_clusters]
    std::unique_ptr<Buffer> bias;      // float [n_clusters]
    std::unique_ptr<Buffer> products;  // float [kKeysOfPiece, n_clusters]
  };

  Status MakePieces();
  void Start(KMeans& means);
  Status Pass(KMeans& means, uint32_t n_entries);
  // Of the first n keys of the piece, [n, n_clusters], with the centroids that WriteSides took.
  Result<std::span<const float>> Products(uint32_t n, uint32_t n_clusters);
  Status WriteSides(const KMeans& means);
  void Keys(uint32_t first, uint32_t n, std::span<float> keys);

  // Clusters that a query's heads select, ascending.
  void Select(std::span<const float> heads, std::vector<float>* masses,
              std::vector<uint32_t>* selected) const;
  uint32_t dim() const { return plan_.record.head_dim; }

  Device& device_;
  const KvPlan& plan_;
  KeyRows rows_;  // of the entries, until they are divided
  std::vector<float> mean_key_;
  Pieces pieces_;
  std::vector<std::byte> records_;  // of the entries
  PromptClusters clusters_;
};

}  // namespace kvrun
