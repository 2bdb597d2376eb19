// The KV of a method that keeps it in records. Three users have a class each: prompts that are computed,
// decode steps, and whoever reports or measures. RecordCache owns the parts that all of them work on
// (RecordParts), and has itself only what every user asks.
#pragma once

#include <cstdint>
#include <memory>

#include "platform/base/status.h"
#include "runtime/device/device.h"
#include "runtime/kv/serve/attended_entries.h"
#include "runtime/kv/serve/prompt_records.h"
#include "runtime/kv/serve/record_parts.h"
#include "runtime/kv/serve/record_reports.h"
#include "runtime/kv/serve/step_records.h"

namespace kvrun {

class RecordCache {
 public:
  // `stores`: as the plan's method asks for, or none for plans that have slots for all groups. `adapter`: of
  // a file, or null.
  static Result<std::unique_ptr<RecordCache>> Create(Device& device, const KvPlan& plan, uint32_t n_layers,
                                                     KvStores stores, const Adapter* adapter);

  PromptRecords& prompts() { return prompts_; }
  StepRecords& steps() { return steps_; }
  RecordReports& reports() { return reports_; }
  const RecordReports& reports() const { return reports_; }

  const KvPlan& plan() const { return parts_.plan; }
  // Entries that are there, of a sequence.
  uint32_t length(uint32_t sequence) const { return parts_.ledger->length(sequence); }
  // On flash; else everything is in memory.
  bool has_store() const { return parts_.has_store(); }
  // Saves, loads or counts all that it is, but for its records on flash, which their files keep, and slots,
  // which are filled anew. Between steps. Loading is into a cache that has computed nothing, by a plan that
  // CanLoad; after an error it may only be destroyed. kCorrupt: what is loaded contradicts itself.
  Status VisitState(StateVisitor& visitor) { return parts_.VisitState(visitor); }

  // Null where the method has none.
  KvIndex* index() const { return parts_.index.get(); }
  EntrySpaces& spaces() { return parts_.spaces; }

 private:
  RecordCache(Device& device, const KvPlan& plan, uint32_t n_layers, KvStores stores);

  RecordParts parts_;
  AttendedEntries attended_;
  PromptRecords prompts_;
  StepRecords steps_;
  RecordReports reports_;
};

}  // namespace kvrun
