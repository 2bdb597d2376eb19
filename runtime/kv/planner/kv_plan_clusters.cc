#include "runtime/kv/planner/kv_plan_clusters.h"

#include "runtime/kv/clusters/cluster_ledger.h"
#include "runtime/kv/clusters/cluster_rows.h"
#include "runtime/kv/math/centroid_row.h"
#include "runtime/kv/memory/kept_entries.h"
#include "runtime/store/row_store.h"
#include "shaders/shared/step_params.h"

namespace kvrun {

IndexShape CentroidIndexShape(const KvPlan& plan) {
  return {.type = KvType::kInt8,
          .rank = CentroidRank(plan.record.head_dim),
          .group_tokens = 1,
          .n_groups = plan.of_clusters().n_clusters,
          .n_sequences = plan.n_streams};
}

uint64_t CentroidIndexBytes(const KvSizeInput& input, const KvPlan& plan) {
  const uint64_t dim = plan.record.head_dim;
  const uint64_t weights = uint64_t{plan.n_streams} * plan.of_clusters().n_clusters * sizeof(uint32_t);
  // A key of each stream, and which cluster is nearest to it.
  const uint64_t sought = plan.n_streams * (dim * sizeof(float) + 2 * sizeof(uint32_t));
  const uint64_t sides = 2 * (dim + 1) * CentroidRank(plan.record.head_dim) * sizeof(float);
  const uint64_t angles = plan.n_streams * dim * sizeof(float);
  return ClusterRows::MemoryBytes(plan, input.model.n_layers) + input.model.n_layers * (weights + sought) +
         sides + angles + sizeof(StepParams);
}

uint64_t RowStagingBytes(const KvSizeInput& input, const KvPlan& plan) {
  if (!plan.of_clusters().rows_on_flash) return 0;
  const RowStoreShape shape = ClusterRows::StoreShape(plan, input.model.n_layers);
  return RowStore::StagingBytes(shape, input.io_alignment_bytes);
}

uint64_t ClusterBytes(const KvSizeInput& input, const KvPlan& plan) {
  const ClusterMapShape shape = plan.of_clusters().map_shape(plan);
  const uint64_t most_records = uint64_t{2} * plan.records_per_extent() + 1;
  const uint64_t maintained =
      2 * most_records * plan.slots.record.size_bytes() +
      2 * uint64_t{shape.max_entries} * (shape.dim * sizeof(float) + sizeof(uint32_t));
  const uint64_t n_of_layer = uint64_t{plan.n_streams} * plan.of_clusters().n_clusters;
  // Which are of the prompt that is computed, and a layer's in the order of their places.
  const uint64_t lists = input.model.n_layers * n_of_layer / 8 + n_of_layer * sizeof(uint32_t);
  const uint64_t factors = uint64_t{input.model.n_layers} * plan.heads_per_sequence() * sizeof(float);
  return uint64_t{input.model.n_layers} * plan.n_streams * ClusterMap::MemoryBytes(shape) + lists + factors +
         ClusterWorkspace::MemoryBytes(shape) + maintained;
}

uint64_t KeptBytes(const KvSizeInput& input, const KvPlan& plan) {
  const SlotShape shape = KeptEntries::ShapeOf(plan);
  return input.model.n_layers * (shape.size_bytes() + shape.table_bytes());
}

uint64_t ClusterListBytes(const KvPlan& plan) {
  const uint64_t records = uint64_t{plan.n_streams} * plan.choice.n_chosen;
  return records * (2 * sizeof(uint32_t) + sizeof(std::byte*) + sizeof(ClusterFetch));
}

uint64_t ClusterImageBytes(const KvPlan& plan) { return ClusterLedger::ImageBytes(plan); }

uint64_t ClusterQueryBytes(const KvSizeInput& input, const KvPlan& plan) {
  const uint64_t dim = plan.record.head_dim;
  // Of the newest queries; and rows of a chunk, with K and V.
  const uint64_t queries = kPromptQueries * input.model.n_heads * dim * sizeof(float);
  const uint64_t tapped =
      8 * (input.model.n_heads + 2 * uint64_t{input.model.n_kv_heads}) * dim * sizeof(float);
  return queries + tapped;
}

uint64_t ClusterPromptBytes(const KvPlan& plan) { return ClusterPrompt::MemoryBytes(plan); }

}  // namespace kvrun
