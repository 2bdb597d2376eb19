// What rows of decode steps attended to before their window: for probes, and for statistics of clusters. A
// step notes it where it was asked for, as what is kept, statics and clusters change after it.
//
// Threads: one at a time; during a step the KV thread calls NoteLayer alone.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/kv/plan/cluster_report.h"
#include "runtime/kv/serve/record_parts.h"

namespace kvrun {

class AttendedEntries {
 public:
  // The parts must outlive it.
  explicit AttendedEntries(RecordParts& parts) : parts_(parts) {}

  // Between BeginStep and the step: what its first row attends to is noted.
  void NoteStep() { notes_ = tells_entries(); }
  // The next step counts what its first row wants of clusters, in the order of the text.
  void CountTextRuns() { counts_next_ = parts_.family.extents != nullptr; }

  void BeginStep();
  // A layer's slots hold what the step attends to.
  void NoteLayer(uint32_t layer);

  // Of the step's row, of each stream of its sequence: groups, or with clusters, statics and what is kept
  // positions, if NoteStep was called before the step. Between the step and the next.
  std::vector<std::vector<uint32_t>> BeforeWindow(uint32_t layer, uint32_t row, uint32_t position) const;
  // Of all steps that were counted.
  const WantedRuns& wanted_in_text() const { return wanted_in_text_; }

 private:
  // A step's choice is told in entries, not in groups.
  bool tells_entries() const {
    const LedgerParts& family = parts_.family;
    return family.extents != nullptr || family.statics != nullptr || family.reader == nullptr;
  }
  void CountInText(uint32_t layer);

  RecordParts& parts_;
  bool notes_ = false;
  bool counts_next_ = false;
  bool counts_ = false;
  WantedRuns wanted_in_text_;
  std::vector<uint32_t> wanted_;                  // positions of a layer and head
  std::vector<std::vector<uint32_t>> positions_;  // [n_layers, streams of a sequence]
};

}  // namespace kvrun
