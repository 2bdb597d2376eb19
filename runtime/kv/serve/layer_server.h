// Serves one layer of a decode step: sees to it that what its rows attend to before the window is in slots,
// and writes the mapping tables that name it. Where all that there is lies in slots (InPlaceServer) nothing
// else is to do; else it is read (ReadingServer), as groups (GroupServer) or as records of clusters
// (ClusterServer).
//
// Threads: one at a time; during a step the KV thread alone.
#pragma once

#include <cstdint>
#include <vector>

#include "platform/base/status.h"
#include "runtime/kv/contracts/kv_selector.h"
#include "runtime/kv/memory/kv_slots.h"
#include "runtime/kv/memory/recent_window.h"
#include "runtime/kv/plan/kv_plan.h"
#include "runtime/kv/plan/kv_step.h"
#include "runtime/store/record_store.h"
#include "runtime/store/state_visitor.h"

namespace kvrun {

class LayerServer {
 public:
  // All must outlive it.
  LayerServer(const KvPlan& plan, uint32_t n_layers, RecentWindow& window, KvSlots& slots);
  virtual ~LayerServer() = default;
  LayerServer(const LayerServer&) = delete;
  LayerServer& operator=(const LayerServer&) = delete;

  // As for KvLedger::BeginStep.
  virtual void BeginStep(const KvStep& step) { step_ = &step; }
  // The step has succeeded.
  virtual void EndStep() {}
  // The layer's choice is known. After an error the layer's tables name nothing: the device reads them
  // nevertheless.
  Status Serve(uint32_t layer);

  // Saves, loads or counts what decides what later steps attend to, or in which order. In decode, or
  // `decodes` is false. Loading is when all else is loaded: it reads what lay in slots.
  virtual Status VisitState(StateVisitor& /*visitor*/, bool /*decodes*/) { return Status::Ok(); }

  // What the step's row attended to before its window, of each stream of its sequence. Between the step and
  // the next.
  std::vector<std::vector<uint32_t>> GroupsBeforeWindow(uint32_t layer, uint32_t row,
                                                        uint32_t position) const;
  // Of clusters, and with a static set: while the layer's slots hold what the row attends to, positions of
  // those entries. Of groups, without those of the static set.
  void AddPositions(uint32_t layer, uint32_t row, uint32_t head, std::vector<uint32_t>* positions);

  // For benchmarks; of no effect where nothing is chosen or read.
  virtual void SetSelector(KvSelector& /*selector*/) {}
  virtual void SetReader(RecordFetcher& /*reader*/) {}

  const KvStats& stats() const { return stats_; }
  void AddStall(double milliseconds) { stats_.stall_ms += milliseconds; }
  void ResetStats();

 protected:
  // What the rows attend to is brought to where it is attended to; its stream's table names it; or, after an
  // error, slots that were to be filled hold nothing.
  virtual Status Bring(uint32_t layer) = 0;
  virtual Status NameSlots(const StreamStep& step) = 0;
  virtual void DropBrought(uint32_t layer) = 0;
  // How many extents the stream may choose of, where groups before the window are `step.n_groups`.
  virtual uint32_t n_extents(const StreamStep& step) const { return step.n_groups; }
  // Ascending.
  virtual std::vector<uint32_t> LastAttended(const StreamStep& step) const = 0;
  virtual void AddPositionsOf(const StreamStep& step, std::vector<uint32_t>* positions) = 0;

  StreamStep StreamStepOf(uint32_t layer, uint32_t row, uint32_t head, uint32_t position) const;
  StreamStep StreamStepOf(uint32_t layer, uint32_t row, uint32_t head) const {
    return StreamStepOf(layer, row, head, step_->spans[row].first_position);
  }
  const KvStep& step() const { return *step_; }
  uint32_t heads() const { return plan_.heads_per_sequence(); }

  const KvPlan& plan_;
  RecentWindow& window_;
  KvSlots& slots_;
  KvStats stats_;

 private:
  Status FillTables(uint32_t layer);
  void EmptyTables(uint32_t layer);

  const KvStep* step_ = nullptr;  // the last that began
};

}  // namespace kvrun
