#include "runtime/kv/serve/kv_stores.h"

#include <utility>

#include "runtime/kv/clusters/cluster_rows.h"
#include "runtime/kv/clusters/sequence_clusters.h"
#include "runtime/kv/evict/vault.h"
#include "runtime/store/cluster_store.h"

namespace kvrun {
namespace {

Result<std::unique_ptr<ClusterFiles>> MakeClusterFiles(const KvPlan& plan, uint32_t n_layers,
                                                       std::unique_ptr<BlockFile> file) {
  if (plan.of_clusters().layout == ClusterLayout::kSequence) {
    KVRUN_ASSIGN_OR_RETURN(auto in_sequence, SequenceClusters::Create(std::move(file), plan, n_layers));
    return std::unique_ptr<ClusterFiles>(std::move(in_sequence));
  }
  const ClusterStoreShape shape{.n_layers = n_layers,
                                .n_streams = plan.n_streams,
                                .n_clusters = plan.of_clusters().n_clusters,
                                .max_records = plan.records_per_extent(),
                                .record_bytes = static_cast<uint32_t>(plan.slots.record.size_bytes()),
                                .layout = plan.of_clusters().layout};
  KVRUN_ASSIGN_OR_RETURN(auto clusters, ClusterStore::Create(std::move(file), shape, plan.staging_bytes));
  return std::unique_ptr<ClusterFiles>(std::move(clusters));
}

}  // namespace

Result<KvStores> MakeKvStores(const KvPlan& plan, uint32_t n_layers, std::unique_ptr<BlockFile> file,
                              std::unique_ptr<BlockFile> rows_file) {
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
  const GroupStoreShape shape{.n_layers = n_layers,
                              .n_streams = plan.n_streams,
                              .n_groups = plan.n_stored_groups(),
                              .record_bytes = static_cast<uint32_t>(plan.record.size_bytes())};
  KVRUN_ASSIGN_OR_RETURN(stores.groups, GroupStore::Create(std::move(file), shape, plan.staging_bytes));
  return stores;
}

}  // namespace kvrun
