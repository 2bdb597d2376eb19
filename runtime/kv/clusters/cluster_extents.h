// Clusters of all streams and layers as the parts of a decode step see them: of which records a chosen
// cluster consists, and how those are read. A record's id is cluster * KvPlan::records_per_extent() + its
// number.
//
// Threads: one at a time; during a step the KV thread alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "platform/base/status.h"
#include "runtime/kv/contracts/extent_map.h"
#include "runtime/kv/math/cluster_map.h"
#include "runtime/kv/plan/kv_plan.h"
#include "runtime/store/cluster_files.h"
#include "runtime/store/record_store.h"

namespace kvrun {

// The maps of all streams of all layers. The plan must outlive it.
class ClusterSet {
 public:
  // factors [n_layers, KV heads], in place of the plan's threshold_factor; or empty.
  ClusterSet(const KvPlan& plan, uint32_t n_layers, std::span<const float> factors);

  ClusterMap& map(uint32_t layer, uint32_t stream) { return maps_[size_t{layer} * plan_.n_streams + stream]; }
  const ClusterMap& map(uint32_t layer, uint32_t stream) const {
    return maps_[size_t{layer} * plan_.n_streams + stream];
  }
  // Records of a cluster that are stored.
  uint32_t n_records(uint32_t layer, uint32_t stream, uint32_t cluster) const {
    return RecordsOf(map(layer, stream).cluster(cluster).n_stored);
  }
  // A cluster of the stream is divided where its variance exceeds so many times that of the first ones.
  float threshold_factor(uint32_t layer, uint32_t stream) const {
    const uint32_t heads = plan_.heads_per_sequence();
    if (factors_.empty()) return plan_.of_clusters().threshold_factor;
    return factors_[size_t{layer} * heads + stream % heads];
  }
  uint32_t RecordsOf(uint32_t n_entries) const {
    return (n_entries + plan_.slots.record.group_tokens - 1) / plan_.slots.record.group_tokens;
  }

 private:
  const KvPlan& plan_;
  ClusterWorkspace workspace_;
  std::vector<ClusterMap> maps_;  // [n_layers, n_streams]
  std::vector<float> factors_;    // [n_layers, KV heads], or empty
};

class ClusterExtents final : public ExtentMap, public RecordFetcher {
 public:
  // All must outlive it.
  ClusterExtents(const KvPlan& plan, const ClusterSet& clusters, ClusterFiles& store);

  uint32_t n_extents(const StreamStep& /*step*/) const override { return plan_.of_clusters().n_clusters; }
  std::span<const uint32_t> Records(const StreamStep& step, std::span<const uint32_t> extents) override;
  std::span<const uint32_t> Weights(const StreamStep& step) const override;
  uint32_t n_entries(const StreamStep& step, uint32_t record) const override;
  // Clusters whose records are all in their slots are not read; others are read whole, and checked.
  Status Fetch(uint32_t layer, std::span<const GroupFetch> fetches) override;

 private:
  const KvPlan& plan_;
  const ClusterSet& clusters_;
  ClusterFiles& store_;
  std::vector<uint32_t> records_;    // [n_streams, n_chosen]: of the choices of a layer
  std::vector<uint32_t> weights_;    // the same
  std::vector<uint32_t> n_records_;  // [n_streams]
  std::vector<std::byte*> memory_;   // of a layer's reads
  std::vector<ClusterFetch> fetches_;
};

}  // namespace kvrun
