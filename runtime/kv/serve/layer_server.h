// Serves one layer of a decode step: asks which groups were chosen, brings those that are not in slots from
// the store in one batch, into the layer's slots or into the pool, and writes the mapping tables.
//
// Threads: one at a time; during a step the KV thread alone.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "platform/base/status.h"
#include "runtime/kv/contracts/extent_map.h"
#include "runtime/kv/contracts/kv_selector.h"
#include "runtime/kv/groups/static_set.h"
#include "runtime/kv/math/read_limit.h"
#include "runtime/kv/memory/kv_slots.h"
#include "runtime/kv/memory/recent_window.h"
#include "runtime/kv/plan/kv_plan.h"
#include "runtime/kv/plan/kv_step.h"
#include "runtime/store/record_store.h"

namespace kvrun {

class LayerServer {
 public:
  // All must outlive it.
  LayerServer(const KvPlan& plan, uint32_t n_layers, RecentWindow& window, KvSlots& slots);

  // May be null: everything before the window is attended to.
  void SetSelector(KvSelector* selector) { selector_ = selector; }
  void SetReader(RecordFetcher* reader) { reader_ = reader; }
  // Where extents are not records themselves.
  void SetExtents(ExtentMap* extents) { extents_ = extents; }
  // Null: all entries of a group count.
  void SetStatics(StaticSet* statics) { statics_ = statics; }

  // As for KvLedger::BeginStep.
  void BeginStep(const KvStep& step);
  // The step has succeeded.
  void EndStep();
  // The layer's choice is known. After an error the layer's tables name nothing: the device reads them
  // nevertheless.
  Status Serve(uint32_t layer);

  // What the step's row attended to before its window, of each stream of its sequence. Between the step and
  // the next.
  std::vector<std::vector<uint32_t>> GroupsBeforeWindow(uint32_t layer, uint32_t row,
                                                        uint32_t position) const;

  // Of clusters, and with a static set: while the layer's slots hold what the row attends to, positions of
  // those entries. Of groups, without those of the static set.
  void AddPositions(uint32_t layer, uint32_t row, uint32_t head, std::vector<uint32_t>* positions);

  const KvStats& stats() const { return stats_; }
  void AddStall(double milliseconds) { stats_.stall_ms += milliseconds; }
  void ResetStats();

 private:
  StreamStep StreamStepOf(uint32_t layer, uint32_t row, uint32_t head, uint32_t position) const;
  Status FillTables(uint32_t layer);
  void EmptyTables(uint32_t layer);
  Status PlanLayer(uint32_t layer);
  Status PlanStream(const StreamStep& step);
  void FetchPlanned(const StreamStep& step, const SlotCache::PlanResult& plan);
  std::span<const uint8_t> MayStayUnread(const StreamStep& step, size_t n_first);
  std::vector<uint32_t> LastAttended(const StreamStep& step) const;
  void Count(const StreamStep& step, std::span<const uint32_t> records, const SlotCache::PlanResult& plan);
  Status ReadPlanned(uint32_t layer);
  void DropPlanned(uint32_t layer);
  Status NameSlots(const StreamStep& step);
  void NameBiased(const StreamStep& step, const SlotCache::PlanResult& plan);
  uint32_t CountOf(const StreamStep& step, uint32_t record) const;
  std::span<const uint32_t> WithSample(std::span<const uint32_t> chosen, const GroupSample& sample);
  void CompactFetched(uint32_t layer);
  void AddGroupPositions(const StreamStep& step, std::vector<uint32_t>* positions);

  uint32_t heads() const { return plan_.heads_per_sequence(); }

  const KvPlan& plan_;
  RecentWindow& window_;
  KvSlots& slots_;
  bool reads_;  // from flash; else all that there is lies in slots, or nothing does
  KvSelector* selector_ = nullptr;
  RecordFetcher* reader_ = nullptr;
  ExtentMap* extents_ = nullptr;  // may be null: a group is a record
  StaticSet* statics_ = nullptr;
  std::optional<ReadLimit> read_limit_;         // where the plan has one
  std::vector<uint32_t> all_;                   // groups 0, 1, ..: what is chosen without a selector
  const KvStep* step_ = nullptr;                // the last that began
  std::vector<GroupFetch> fetches_;             // of a layer: at most n_streams * KvPlan::n_needed()
  std::vector<SlotCache::PlanResult> planned_;  // of a layer's rows and heads
  std::vector<GroupSample> samples_;            // of a layer's rows and heads
  std::vector<uint32_t> with_samples_;          // of a layer: what streams need, one after another
  std::vector<uint8_t> is_drawn_;               // of what a stream needs
  KvStats stats_;
};

}  // namespace kvrun
