#include "runtime/kv/serve/kv_parts.h"

#include <utility>

#include "platform/base/check.h"
#include "runtime/kv/clusters/cluster_index.h"
#include "runtime/kv/clusters/cluster_ledger.h"
#include "runtime/kv/evict/evicting_ledger.h"
#include "runtime/kv/groups/sequence_ledger.h"
#include "runtime/kv/index/low_rank_index.h"
#include "runtime/kv/index/page_index.h"
#include "runtime/kv/math/page_bounds.h"
#include "runtime/kv/select/device_selector.h"
#include "runtime/kv/select/pinned_selector.h"
#include "runtime/kv/select/random_selector.h"
#include "runtime/kv/serve/cluster_server.h"
#include "runtime/kv/serve/group_server.h"
#include "runtime/kv/serve/in_place_server.h"

namespace kvrun {
namespace {

Result<std::unique_ptr<KvIndex>> MakeLowRankIndex(Device& device, const KvPlan& plan, uint32_t n_layers,
                                                  const Adapter* adapter) {
  KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<LowRankIndex> index, LowRankIndex::Create(device, plan, n_layers));
  for (uint32_t i = 0; adapter != nullptr && i < n_layers; ++i) {
    KVRUN_RETURN_IF_ERROR(index->SetAdapter(i, adapter->layers[i]));
  }
  if (adapter != nullptr) index->NoteReady();
  return std::unique_ptr<KvIndex>(std::move(index));
}

// Keys as they are: adapters that change nothing.
Result<std::unique_ptr<KvIndex>> MakeExactIndex(Device& device, const KvPlan& plan, uint32_t n_layers) {
  const uint32_t dim = plan.key_dim();
  LayerAdapter identity{.key_dim = dim,
                        .rank = dim,
                        .key_side = std::vector<float>(size_t{dim} * dim),
                        .query_side = {},
                        .mean = std::vector<float>(dim),
                        .energy = {}};
  for (size_t i = 0; i < dim; ++i) identity.key_side[i * dim + i] = 1.0F;
  identity.query_side = identity.key_side;
  KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<LowRankIndex> index, LowRankIndex::Create(device, plan, n_layers));
  KVRUN_RETURN_IF_ERROR(index->SetCommonAdapter(identity));
  index->NoteReady();
  return std::unique_ptr<KvIndex>(std::move(index));
}

Result<std::unique_ptr<KvIndex>> MakePageIndex(Device& device, const KvPlan& plan, uint32_t n_layers,
                                               PageBoundsFn bounds, const EntrySpaces& spaces) {
  KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<PageIndex> index,
                         PageIndex::Create(device, plan, n_layers, bounds, spaces));
  return std::unique_ptr<KvIndex>(std::move(index));
}

Result<std::unique_ptr<KvIndex>> MakeClusterIndex(Device& device, const KvPlan& plan, uint32_t n_layers,
                                                  RowStore* rows) {
  KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<ClusterIndex> index,
                         ClusterIndex::Create(device, plan, n_layers, rows));
  return std::unique_ptr<KvIndex>(std::move(index));
}

Result<LedgerParts> MakeClusters(const LedgerNeeds& needs) {
  LedgerParts parts;
  const auto factors =
      needs.adapter != nullptr ? std::span(needs.adapter->cluster_thresholds) : std::span<const float>();
  ClusterFiles& store = *needs.stores.clusters;
  parts.clusters = std::make_unique<ClusterSet>(needs.plan, needs.n_layers, factors);
  parts.extents = std::make_unique<ClusterExtents>(needs.plan, *parts.clusters, store);
  parts.reader = parts.extents.get();
  KVRUN_CHECK(needs.plan.method.index == KvIndexKind::kCentroids);
  auto& centroids = static_cast<ClusterIndex&>(*needs.index);
  KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<ClusterLedger> ledger,
                         ClusterLedger::Create(needs.device, needs.plan, needs.n_layers, *parts.clusters,
                                               store, needs.window, needs.slots, centroids, needs.spaces));
  parts.layers = ledger.get();
  parts.kept = ledger.get();
  parts.upkeep = ledger.get();
  parts.ledger = std::move(ledger);
  return parts;
}

Result<LedgerParts> MakeKept(const LedgerNeeds& needs) {
  LedgerParts parts;
  KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<EvictingLedger> ledger,
                         EvictingLedger::Create(needs.device, needs.plan, needs.n_layers, needs.window,
                                                std::move(needs.stores.vault)));
  parts.layers = ledger.get();
  parts.kept = ledger.get();
  parts.evictor = ledger.get();
  parts.ledger = std::move(ledger);
  return parts;
}

// On flash, or all in slots.
LedgerParts MakeGroups(const LedgerNeeds& needs) {
  LedgerParts parts;
  RecordStore* store = needs.stores.groups.get();
  parts.reader = needs.stores.groups.get();
  if (store == nullptr) {
    parts.in_memory = std::make_unique<SlotRecordStore>(needs.slots.own_shape(0), needs.n_layers);
    store = parts.in_memory.get();
    parts.reader = parts.in_memory.get();
  }
  const KvPlan& plan = needs.plan;
  if (plan.has_statics()) {
    if (plan.of_groups().statics.lays_pages) {
      parts.pages = std::make_unique<StaticPages>(plan, needs.n_layers, *store, *needs.index);
    }
    parts.statics = std::make_unique<StaticSet>(needs.device, plan, needs.n_layers, parts.pages.get());
  }
  auto ledger = std::make_unique<SequenceLedger>(plan, needs.n_layers, *store, needs.window, needs.slots,
                                                 needs.index, parts.statics.get(), needs.spaces);
  parts.groups = ledger.get();
  parts.shifter = ledger.get();
  if (parts.statics != nullptr) parts.kept = ledger.get();
  parts.ledger = std::move(ledger);
  return parts;
}

}  // namespace

Result<LedgerParts> MakeLedger(const LedgerNeeds& needs) {
  switch (needs.plan.method.store) {
    case KvStoreKind::kResident:
    case KvStoreKind::kGroups: break;
    case KvStoreKind::kClusters: return MakeClusters(needs);
    case KvStoreKind::kKept: return MakeKept(needs);
  }
  return MakeGroups(needs);
}

Result<std::unique_ptr<KvIndex>> MakeIndex(Device& device, const KvPlan& plan, uint32_t n_layers,
                                           const Adapter* adapter, RowStore* rows,
                                           const EntrySpaces& spaces) {
  switch (plan.method.index) {
    case KvIndexKind::kNone: break;
    case KvIndexKind::kLowRank: return MakeLowRankIndex(device, plan, n_layers, adapter);
    case KvIndexKind::kExactKeys: return MakeExactIndex(device, plan, n_layers);
    case KvIndexKind::kPageBounds: return MakePageIndex(device, plan, n_layers, MinMaxBounds, spaces);
    case KvIndexKind::kPageSpread: return MakePageIndex(device, plan, n_layers, SpreadBounds, spaces);
    case KvIndexKind::kCentroids: return MakeClusterIndex(device, plan, n_layers, rows);
  }
  return std::unique_ptr<KvIndex>();
}

std::unique_ptr<KvSelector> MakeSelector(Device& device, const KvPlan& plan, uint32_t n_layers) {
  switch (plan.method.selector) {
    case KvSelectorKind::kAll: break;
    case KvSelectorKind::kTopGroups:
    case KvSelectorKind::kTopClusters: return std::make_unique<DeviceSelector>(device, plan, n_layers);
    case KvSelectorKind::kPinned: return std::make_unique<PinnedSelector>(plan, n_layers);
    case KvSelectorKind::kRandom: return std::make_unique<RandomSelector>(plan, n_layers);
  }
  return nullptr;
}

std::unique_ptr<LayerServer> MakeServer(const KvPlan& plan, uint32_t n_layers, RecentWindow& window,
                                        KvSlots& slots, KvSelector* selector, const LedgerParts& family) {
  if (!plan.method.is_on_flash()) return std::make_unique<InPlaceServer>(plan, n_layers, window, slots);
  if (family.extents != nullptr) {
    return std::make_unique<ClusterServer>(plan, n_layers, window, slots, selector, *family.reader,
                                           *family.extents);
  }
  return std::make_unique<GroupServer>(plan, n_layers, window, slots, selector, *family.reader,
                                       family.statics.get());
}

}  // namespace kvrun
