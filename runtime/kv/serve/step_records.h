// What decode steps call of a cache of records. The engine knows when an entry is needed, the parts where it
// is.
//
// Threads: one at a time; between BeginStep and EndStep the KV thread calls what is marked so, alone.
#pragma once

#include <cstdint>

#include "platform/base/status.h"
#include "runtime/device/device.h"
#include "runtime/kv/plan/kv_step.h"
#include "runtime/kv/serve/attended_entries.h"
#include "runtime/kv/serve/record_parts.h"

namespace kvrun {

class StepRecords {
 public:
  // Both must outlive it.
  StepRecords(RecordParts& parts, AttendedEntries& attended);
  StepRecords(const StepRecords&) = delete;  // parts look at its step
  StepRecords& operator=(const StepRecords&) = delete;

  const KvPlan& plan() const { return parts_.plan; }
  // Null where the method has none.
  KvIndex* index() const { return parts_.index.get(); }
  // Null: a step attends to everything.
  const KvSelector* selector() const { return parts_.selector.get(); }

  // Makes slots, where that has not been done since the last prefill.
  Status BeginDecode() { return parts_.BeginDecode(); }
  bool in_decode() const { return parts_.in_decode(); }
  // What a layer attends to: own slots and pool, where there are such, what the ledger keeps, and the window.
  void AddSources(uint32_t layer, SlotAttentionArgs* args);

  // --- Before a step is submitted.
  // Spans of one row each. Entries from there on are forgotten.
  Status BeginStep(const KvStep& step);
  // Whether the index has not learned, though a row of the step cannot have all groups before its window
  // chosen, and its sequence has enough entries.
  bool NeedsLearning() const;
  // The index learns from a sequence's entries. Gives up slots, where there is flash: decoding has to begin
  // again.
  Status LearnFromStored(uint32_t sequence);

  // --- KV thread.
  // Groups that an earlier step completed go to the store, those that are leaving before any layer is served
  // (GroupWriter::StoreLeavingGroups). Where the index takes records, all, before the step is submitted.
  Status WriteLeavingGroups();
  Status WriteCompletedGroups();
  // The layer's choice is known; brings it into slots and writes the mapping tables.
  Status FetchLayer(uint32_t layer);
  // Where maintains(): the device is done with the layer.
  Status MaintainLayer(uint32_t layer) {
    return parts_.family.upkeep->MaintainLayer(layer, *parts_.selector);
  }
  bool maintains() const { return parts_.family.upkeep != nullptr; }
  // All layers are maintained.
  Status PrepareStep() { return parts_.index != nullptr ? parts_.index->PrepareStep() : Status::Ok(); }
  void AddStall(double milliseconds) { parts_.server->AddStall(milliseconds); }

  // The step has succeeded: its entries are there.
  void EndStep();

 private:
  Status SetMeansFromStored(uint32_t sequence);

  RecordParts& parts_;
  AttendedEntries& attended_;
  KvStep step_;  // the last that began: the parts look at it
};

}  // namespace kvrun
