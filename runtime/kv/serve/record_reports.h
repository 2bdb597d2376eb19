// What is asked of a cache of records from outside of prompts and steps: statistics, what a step attended to,
// and what benchmarks change or measure.
//
// Threads: one at a time, and not while a step is under way.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "platform/base/status.h"
#include "runtime/kv/plan/cluster_report.h"
#include "runtime/kv/plan/kept_report.h"
#include "runtime/kv/serve/attended_entries.h"
#include "runtime/kv/serve/read_log.h"
#include "runtime/kv/serve/record_parts.h"

namespace kvrun {

class RecordReports {
 public:
  // Both must outlive it.
  RecordReports(RecordParts& parts, AttendedEntries& attended) : parts_(parts), attended_(attended) {}

  // --- Statistics.
  const KvStats& stats() const { return parts_.server->stats(); }
  void ResetStats();
  // Nothing: extents are groups.
  std::optional<ClusterReport> clusters() const;
  // Nothing: no entry is evicted.
  std::optional<KeptReport> kept() const;
  // Written for pages that were laid anew (StaticPages).
  uint64_t repaged_bytes() const { return parts_.repaged_bytes; }
  // Null: everything is in memory.
  const IoMode* store_mode() const { return parts_.store_mode(); }
  GroupStoreStats store_stats() const { return parts_.store_stats(); }

  // --- What a step attends to (AttendedEntries).
  void NoteStep() { attended_.NoteStep(); }
  void CountTextRuns() { attended_.CountTextRuns(); }
  std::vector<std::vector<uint32_t>> BeforeWindow(uint32_t layer, uint32_t row, uint32_t position) const {
    return attended_.BeforeWindow(layer, row, position);
  }

  // --- Benchmarks.
  // From now on, what is chosen is replaced: see ReplayedSelector. Of no effect where everything is,
  // where prompts say how much of it is a static set, and for clusters, which differ in size and change with
  // what is chosen.
  void ReplaySelection(double repeated_share);
  // Notes the reads of the steps to come; what was noted before is forgotten. Not those of clusters, which
  // are others after each step.
  void BeginReadLog();
  // Ends the log and carries out its reads once more, to where they went. After the last of the
  // steps that were noted: slots then hold what they held.
  Result<RepeatedReads> RepeatReads();

 private:
  RecordParts& parts_;
  AttendedEntries& attended_;
  std::optional<ReadLog> read_log_;
};

}  // namespace kvrun
