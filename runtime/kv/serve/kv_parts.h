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
#include "runtime/kv/math/adapter.h"
#include "runtime/kv/memory/entry_spaces.h"
#include "runtime/kv/memory/kv_slots.h"
#include "runtime/kv/memory/recent_window.h"
#include "runtime/kv/plan/kv_plan.h"
#include "runtime/store/cluster_files.h"
#include "runtime/store/row_store.h"

namespace kvrun {

// Null: the method has none. The plan must outlive the parts. `adapter`: of a file, for an index that learns;
// null: it learns by itself. `rows`: of an index whose rows lie on flash, which outlives it; else null.
// `spaces`: of the records, which outlive it.
Result<std::unique_ptr<KvIndex>> MakeIndex(Device& device, const KvPlan& plan, uint32_t n_layers,
                                           const Adapter* adapter, RowStore* rows, const EntrySpaces& spaces);
// For stores of clusters, whose index it sets rows of: one that MakeIndex made for the plan. All must outlive
// it.
Result<std::unique_ptr<KvLedger>> MakeClusterLedger(Device& device, const KvPlan& plan, uint32_t n_layers,
                                                    ClusterSet& clusters, ClusterFiles& store,
                                                    RecentWindow& window, KvSlots& slots, KvIndex& index,
                                                    const EntrySpaces& spaces);
// Null: a step attends to everything.
std::unique_ptr<KvSelector> MakeSelector(Device& device, const KvPlan& plan, uint32_t n_layers);

}  // namespace kvrun
