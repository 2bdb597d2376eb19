#include "runtime/kv/serve/kv_stores.h"

#include <algorithm>
#include <utility>

#include "platform/base/saturating.h"
#include "platform/base/units.h"
#include "runtime/kv/clusters/cluster_rows.h"
#include "runtime/kv/clusters/sequence_clusters.h"
#include "runtime/kv/evict/vault.h"
#include "runtime/store/cluster_store.h"

namespace kvrun {
namespace {

ClusterStoreShape ClusterShapeOf(const KvPlan& plan, uint32_t n_layers) {
  return {.n_layers = n_layers,
          .n_streams = plan.n_streams,
          .n_clusters = plan.of_clusters().n_clusters,
          .max_records = plan.records_per_extent(),
          .record_bytes = static_cast<uint32_t>(plan.slots.record.size_bytes()),
          .layout = plan.of_clusters().layout};
}

// `room_tokens`: 0: those of the plan.
GroupStoreShape GroupShapeOf(const KvPlan& plan, uint32_t n_layers, uint32_t room_tokens) {
  KvPlan longest = plan;
  longest.n_ctx = std::max(room_tokens, plan.n_ctx);
  return {.n_layers = n_layers,
          .n_streams = plan.n_streams,
          .n_groups = plan.n_stored_groups(),
          .record_bytes = static_cast<uint32_t>(plan.record.size_bytes()),
          .lane_groups = longest.n_stored_groups()};
}

Result<std::unique_ptr<ClusterFiles>> MakeClusterFiles(const KvPlan& plan, uint32_t n_layers,
                                                       std::unique_ptr<BlockFile> file) {
  if (plan.of_clusters().layout == ClusterLayout::kSequence) {
    KVRUN_ASSIGN_OR_RETURN(auto in_sequence, SequenceClusters::Create(std::move(file), plan, n_layers));
    return std::unique_ptr<ClusterFiles>(std::move(in_sequence));
  }
  KVRUN_ASSIGN_OR_RETURN(auto clusters, ClusterStore::Create(std::move(file), ClusterShapeOf(plan, n_layers),
                                                             plan.staging_bytes));
  return std::unique_ptr<ClusterFiles>(std::move(clusters));
}

}  // namespace

Result<KvStores> MakeKvStores(const KvPlan& plan, uint32_t n_layers, std::unique_ptr<BlockFile> file,
                              std::unique_ptr<BlockFile> rows_file, uint32_t room_tokens) {
  KvStores stores;
  if (plan.method.evicts()) {
    const uint64_t bytes = Vault::FileBytes(plan, n_layers);
    KVRUN_ASSIGN_OR_RETURN(stores.vault, SpillFile::Create(std::move(file), bytes));
    return stores;
  }
  if (plan.method.has_clusters()) {
    KVRUN_ASSIGN_OR_RETURN(stores.clusters, MakeClusterFiles(plan, n_layers, std::move(file)));
    if (plan.of_clusters().rows_on_flash) {
      KVRUN_ASSIGN_OR_RETURN(stores.rows,
                             RowStore::Create(std::move(rows_file), ClusterRows::StoreShape(plan, n_layers)));
    }
    return stores;
  }
  KVRUN_ASSIGN_OR_RETURN(
      stores.groups,
      GroupStore::Create(std::move(file), GroupShapeOf(plan, n_layers, room_tokens), plan.staging_bytes));
  return stores;
}

bool HasKeptRecords(const KvPlan& plan) { return plan.method.is_on_flash(); }

// Groups are written whole, and what of a cluster has changed page by page.
KvFileSize RecordsFileSize(const KvPlan& plan, uint32_t n_layers, uint32_t room_tokens, const IoMode& mode) {
  if (plan.method.has_clusters() && plan.of_clusters().layout != ClusterLayout::kSequence) {
    return {{.size_bytes = ClusterStore::FileBytes(ClusterShapeOf(plan, n_layers), mode),
             .unit_bytes = mode.alignment_bytes},
            plan.n_seal_helpers};
  }
  const GroupStoreShape shape = plan.method.has_clusters() ? SequenceClusters::StoreShape(plan, n_layers)
                                                           : GroupShapeOf(plan, n_layers, room_tokens);
  return {{.size_bytes = GroupStore::FileBytes(shape, mode),
           .unit_bytes = RoundUp(shape.record_bytes, mode.alignment_bytes),
           .used_bytes = shape.record_bytes,
           .lane_units = std::max(shape.lane_groups, shape.n_groups),
           .held_units = shape.n_groups},
          plan.n_seal_helpers};
}

KvFileSize RowsFileSize(const KvPlan& plan, uint32_t n_layers, const IoMode& mode) {
  const RowStoreShape shape = ClusterRows::StoreShape(plan, n_layers);
  const uint64_t stride = RoundUp<uint64_t>(shape.list_bytes, mode.alignment_bytes);
  return {{.size_bytes = SaturatingProduct({shape.n_layers, shape.n_lists, stride}),
           .unit_bytes = mode.alignment_bytes},
          0};
}

}  // namespace kvrun
