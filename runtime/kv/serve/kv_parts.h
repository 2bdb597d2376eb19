// Makes the parts that a method's row names: the only place that knows which class each kind is.
#pragma once

#include <cstdint>
#include <memory>

#include "platform/base/status.h"
#include "runtime/device/device.h"
#include "runtime/kv/clusters/cluster_extents.h"
#include "runtime/kv/contracts/kv_index.h"
#include "runtime/kv/contracts/kv_ledger.h"
#include "runtime/kv/contracts/kv_selector.h"
#include "runtime/kv/groups/static_pages.h"
#include "runtime/kv/groups/static_set.h"
#include "runtime/kv/math/adapter.h"
#include "runtime/kv/memory/entry_spaces.h"
#include "runtime/kv/memory/kv_slots.h"
#include "runtime/kv/memory/recent_window.h"
#include "runtime/kv/memory/slot_record_store.h"
#include "runtime/kv/plan/kv_plan.h"
#include "runtime/kv/serve/kv_stores.h"
#include "runtime/kv/serve/layer_server.h"
#include "runtime/store/row_store.h"

namespace kvrun {

// Null: the method has none. The plan must outlive the parts. `adapter`: of a file, for an index that learns;
// null: it learns by itself. `rows`: of an index whose rows lie on flash, which outlives it; else null.
// `spaces`: of the records, which outlive it.
Result<std::unique_ptr<KvIndex>> MakeIndex(Device& device, const KvPlan& plan, uint32_t n_layers,
                                           const Adapter* adapter, RowStore* rows, const EntrySpaces& spaces);

// The ledger of a plan's family, and what it shares with the service of layers; null what the family does not
// have.
struct LedgerParts {
  std::unique_ptr<SlotRecordStore> in_memory;  // of records that all lie in slots
  std::unique_ptr<ClusterSet> clusters;
  std::unique_ptr<ClusterExtents> extents;
  std::unique_ptr<StaticPages> pages;
  std::unique_ptr<StaticSet> statics;
  std::unique_ptr<KvLedger> ledger;
  // What else the ledger is. Either `groups` or `layers` is there.
  GroupWriter* groups = nullptr;
  LayerWriter* layers = nullptr;
  KeptSources* kept = nullptr;
  Evictor* evictor = nullptr;
  LayerUpkeep* upkeep = nullptr;
  RecordShifter* shifter = nullptr;
  RecordFetcher* reader = nullptr;  // of what is chosen; null: nothing is read
};
// What it is made of; all outlive it. `index`: as MakeIndex made it for the plan.
struct LedgerNeeds {
  Device& device;
  const KvPlan& plan;
  uint32_t n_layers;
  const Adapter* adapter;  // of a file, or null
  KvStores& stores;
  RecentWindow& window;
  KvSlots& slots;
  KvIndex* index;
  EntrySpaces& spaces;
};
Result<LedgerParts> MakeLedger(const LedgerNeeds& needs);
// Null: a step attends to everything.
std::unique_ptr<KvSelector> MakeSelector(Device& device, const KvPlan& plan, uint32_t n_layers);
// All outlive it. `selector`: as MakeSelector made it.
std::unique_ptr<LayerServer> MakeServer(const KvPlan& plan, uint32_t n_layers, RecentWindow& window,
                                        KvSlots& slots, KvSelector* selector, const LedgerParts& family);

}  // namespace kvrun
