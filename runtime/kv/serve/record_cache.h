// The KV of a method that keeps it in records: owns the parts that its row names, and hands each call to
// the part that it is about. The engine knows when an entry is needed, the parts where it is.
//
// Two phases share the budget. In *decode* there are slots and their mapping tables. In *prefill* they are
// given up for tiles, where records lie on flash. The window, which holds what is not stored yet, stays.
//
// Threads: one at a time; between BeginStep and EndStep the KV thread calls WriteLeavingGroups,
// WriteCompletedGroups and FetchLayer alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "platform/base/status.h"
#include "runtime/device/device.h"
#include "runtime/kv/contracts/kv_index.h"
#include "runtime/kv/contracts/kv_ledger.h"
#include "runtime/kv/contracts/kv_selector.h"
#include "runtime/kv/memory/entry_spaces.h"
#include "runtime/kv/memory/kv_slots.h"
#include "runtime/kv/memory/recent_window.h"
#include "runtime/kv/plan/kv_plan.h"
#include "runtime/kv/plan/kv_step.h"
#include "runtime/kv/serve/kv_parts.h"
#include "runtime/kv/serve/kv_stores.h"
#include "runtime/kv/serve/layer_server.h"
#include "runtime/kv/serve/read_log.h"

namespace kvrun {

class RecordCache {
 public:
  // `stores`: as the plan's method asks for, or none for plans that have slots for all groups. `adapter`: of
  // a file, or null.
  static Result<std::unique_ptr<RecordCache>> Create(Device& device, const KvPlan& plan, uint32_t n_layers,
                                                     KvStores stores, const Adapter* adapter);

  const KvPlan& plan() const { return plan_; }
  // Entries that are there, of a sequence.
  uint32_t length(uint32_t sequence) const { return ledger_->length(sequence); }
  // On flash; else everything is in memory.
  bool has_store() const { return store_mode() != nullptr; }
  const IoMode* store_mode() const;
  GroupStoreStats store_stats() const;
  // Null where the method has none.
  KvIndex* index() const { return index_.get(); }
  // Null: a step attends to everything.
  const KvSelector* selector() const { return selector_.get(); }
  const RecentWindow& window() const { return window_; }
  StoredKeys& stored_keys() { return *ledger_; }
  EntrySpaces& spaces() { return spaces_; }

  // Whether the index has not learned, though a row of the step cannot have all groups before its window
  // chosen, and its sequence has enough entries.
  bool NeedsLearning() const;
  // The index learns from a sequence's entries. Gives up slots, where there is flash: decoding has to begin
  // again.
  Status LearnFromStored(uint32_t sequence);

  // The means of a layer's space (EntrySpaces::SetMeans): entries that are there become those of the new
  // space.
  Status SetMeans(uint32_t layer, uint32_t sequence, std::span<const float> means);
  // Whether they may be set by a prompt that begins at `begin`.
  bool wants_means(uint32_t layer, uint32_t sequence, uint32_t begin) const {
    return spaces_.are_used() && !spaces_.has_means(layer, sequence) && (begin == 0 || ledger_->can_shift());
  }

  // --- Prefill of one sequence (SequenceLedger).
  // Gives up slots, where there is flash. Entries of `sequence` from `begin` on are forgotten. Then either
  // AppendGroups or, where stores_layers(), StoreLayer.
  Status BeginPrefill(uint32_t sequence, uint32_t begin);
  Status AppendGroups(uint32_t layer, uint32_t sequence, uint32_t first_group, uint32_t n_groups,
                      std::span<const std::byte> records) {
    return ledger_->Append(layer, sequence, first_group, n_groups, records);
  }
  bool stores_layers() const { return ledger_->stores_layers(); }
  Status StoreLayer(uint32_t layer, const KvRange& prompt, PromptEntries& entries) {
    return ledger_->StoreLayer(layer, prompt, entries);
  }
  // Rows of prompts are observed, for StoreLayer or for ChooseStatics.
  bool observes() const { return plan_.observed_rows() > 0; }
  Status ChooseStatics(uint32_t layer, const KvRange& prompt, PromptEntries& entries) {
    return ledger_->ChooseStatics(layer, prompt, entries);
  }
  // For benchmarks, in place of ChooseStatics.
  void ChooseStaticsEvenly(uint32_t sequence, uint32_t length) {
    ledger_->ChooseStaticsEvenly(sequence, length);
  }
  // For benchmarks, in place of StoreLayer.
  Status StoreRepeated(uint32_t layer, uint32_t sequence, uint32_t length,
                       std::span<const std::byte> records) {
    return ledger_->StoreRepeated(layer, sequence, length, records);
  }
  // Groups that the window is to hold, as records of the window: [streams of the sequence, n_groups]. After
  // those of the layer that lie there were read (ReadWindow).
  Status PutWindow(uint32_t layer, uint32_t first_group, uint32_t n_groups,
                   std::span<const std::byte> records) {
    return window_.Put(layer, first_group, n_groups, records);
  }
  // Of the exact groups, which are whole: records of the window, as above, and as they are stored.
  Status PutExact(uint32_t layer, uint32_t sequence, uint32_t first_group, uint32_t n_groups,
                  std::span<const std::byte> records, std::span<const std::byte> stored);
  // The first group that the window holds of the first `length` entries.
  uint32_t FirstWindowGroup(uint32_t length) const { return window_.FirstGroup(length); }
  // Reads records of whole groups that are stored: [n_groups], of one stream.
  Status ReadGroups(uint32_t layer, uint32_t stream, uint32_t first_group, uint32_t n_groups,
                    std::span<std::byte> records) {
    return ledger_->ReadGroups(layer, stream, first_group, n_groups, records);
  }
  // Of groups that the window holds, or of exact ones: records of the window.
  Status ReadWindow(uint32_t layer, uint32_t stream, uint32_t first_group, uint32_t n_groups,
                    std::span<std::byte> records);
  Status EndPrefill(uint32_t sequence, uint32_t length) { return ledger_->EndPrefill(sequence, length); }

  // --- Decode.
  // Makes slots, where that has not been done since the last prefill.
  Status BeginDecode();
  bool in_decode() const { return slots_.is_made(); }
  // What a layer attends to: own slots and pool, where there are such, what the ledger keeps, and the window.
  void AddSources(uint32_t layer, SlotAttentionArgs* args);

  // Spans of one row each. Entries from there on are forgotten.
  Status BeginStep(const KvStep& step);
  // KV thread: groups that an earlier step completed go to the store, those that are leaving before any layer
  // is served (KvLedger::StoreLeavingGroups). Where the index takes records, all, before the step is
  // submitted.
  Status WriteLeavingGroups() { return ledger_->StoreLeavingGroups(); }
  Status WriteCompletedGroups() { return ledger_->StoreCompletedGroups(); }
  // KV thread: the layer's choice is known; brings it into slots and writes the mapping tables.
  Status FetchLayer(uint32_t layer);
  // KV thread: the device is done with the layer.
  Status MaintainLayer(uint32_t layer) { return ledger_->MaintainLayer(layer, *selector_); }
  bool maintains() const { return ledger_->maintains(); }
  // KV thread: all layers are maintained.
  Status PrepareStep() { return index_ != nullptr ? index_->PrepareStep() : Status::Ok(); }
  // The step has succeeded: its entries are there.
  void EndStep() {
    server_.EndStep();
    ledger_->EndStep();
  }

  // What the step's row attended to before its window, of each stream of its sequence: groups, or with
  // clusters and statics positions, if NoteAttended was called before the step. Between the step and the
  // next.
  std::vector<std::vector<uint32_t>> GroupsBeforeWindow(uint32_t layer, uint32_t row,
                                                        uint32_t position) const;
  // What is kept, statics and clusters change after a step: what the first row of the next one attends to is
  // noted.
  void NoteAttended() { notes_attended_ = tells_entries(); }

  // The next step counts what its first row wants of clusters, in the order of the text.
  void CountTextRuns() { counts_next_ = parts_.extents != nullptr; }

  const KvStats& stats() const { return server_.stats(); }
  std::optional<ClusterReport> clusters() const;
  std::optional<KeptReport> kept() const { return ledger_->kept(); }
  // Written for pages that were laid anew (StaticPages).
  uint64_t repaged_bytes() const { return repaged_bytes_; }
  void AddStall(double milliseconds) { server_.AddStall(milliseconds); }
  void ResetStats() {
    server_.ResetStats();
    repaged_bytes_ = 0;
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
  RecordCache(Device& device, const KvPlan& plan, uint32_t n_layers, KvStores stores);

  Status CreateParts(Device& device, const Adapter* adapter);
  void CountInText(uint32_t layer);
  // A step's choice is told in entries, not in groups.
  bool tells_entries() const {
    return parts_.extents != nullptr || parts_.statics != nullptr || parts_.reader == nullptr;
  }
  void SettleStaticShare();
  Status SetMeansFromStored(uint32_t sequence);
  void LeaveDecode();

  KvPlan plan_;  // changes where prompts say the static set's share
  uint32_t n_layers_;
  KvStores stores_;  // on flash
  std::unique_ptr<KvIndex> index_;
  std::unique_ptr<KvSelector> selector_;
  EntrySpaces spaces_;
  RecentWindow window_;
  KvSlots slots_;
  LedgerParts parts_;
  KvLedger* ledger_ = nullptr;  // of the parts
  LayerServer server_;
  KvStep step_;  // the last that began: the parts look at it
  std::optional<ReadLog> read_log_;
  bool has_static_share_ = false;
  uint64_t repaged_bytes_ = 0;
  bool notes_attended_ = false;
  bool counts_next_ = false;
  bool counts_text_runs_ = false;
  WantedRuns wanted_in_text_;
  std::vector<uint32_t> wanted_;                 // positions of a layer and head
  std::vector<std::vector<uint32_t>> attended_;  // [n_layers, streams of a sequence]: positions
};

}  // namespace kvrun
