// The parts of a cache of records, as its method's row names them, and its two phases: what prompts, steps
// and reports share. RecordCache owns them; only PromptRecords, StepRecords, RecordReports and
// AttendedEntries look at them.
//
// Two phases share the budget. In *decode* there are slots and their mapping tables. In *prefill* they are
// given up for tiles, where records lie on flash. The window, which holds what is not stored yet, stays.
//
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "platform/base/status.h"
#include "runtime/device/device.h"
#include "runtime/kv/contracts/kv_index.h"
#include "runtime/kv/contracts/kv_ledger.h"
#include "runtime/kv/contracts/kv_selector.h"
#include "runtime/kv/memory/entry_spaces.h"
#include "runtime/kv/memory/kv_slots.h"
#include "runtime/kv/memory/recent_window.h"
#include "runtime/kv/plan/kv_plan.h"
#include "runtime/kv/serve/kv_parts.h"
#include "runtime/kv/serve/kv_stores.h"
#include "runtime/kv/serve/layer_server.h"

namespace kvrun {

struct RecordParts {
  RecordParts(Device& device, const KvPlan& of, uint32_t layers, KvStores of_plan);
  RecordParts(const RecordParts&) = delete;  // parts hold references to each other
  RecordParts& operator=(const RecordParts&) = delete;

  // Before all else. `adapter`: of a file, or null.
  Status Make(Device& device, const Adapter* adapter);

  bool has_store() const { return store_mode() != nullptr; }
  const IoMode* store_mode() const;
  GroupStoreStats store_stats() const;

  // Makes slots, where that has not been done since the last prefill.
  Status BeginDecode();
  bool in_decode() const { return slots.is_made(); }
  void LeaveDecode();

  // The means of a layer's space (EntrySpaces::SetMeans): entries that are there become those of the new
  // space.
  Status SetMeans(uint32_t layer, uint32_t sequence, std::span<const float> means);

  // RecordCache::VisitState.
  Status VisitState(StateVisitor& visitor);

  KvPlan plan;  // changes where prompts say the static set's share
  uint32_t n_layers;
  KvStores stores;                       // on flash
  std::unique_ptr<KvIndex> index;        // null where the method has none
  std::unique_ptr<KvSelector> selector;  // null: a step attends to everything
  EntrySpaces spaces;
  RecentWindow window;
  KvSlots slots;
  LedgerParts family;
  KvLedger* ledger = nullptr;  // of the family
  std::unique_ptr<LayerServer> server;
  uint64_t repaged_bytes = 0;  // written for pages that were laid anew (StaticPages)

 private:
  Status MakeSlots();
  Status BeginChoosing();
  Status FlushStores();
  Status CheckStored() const;
  Status VisitSlots(StateVisitor& visitor, std::span<const uint32_t> lengths);
  void SettleStaticShare();

  bool has_static_share_ = false;
};

}  // namespace kvrun
