// The KV of methods that select: records of groups on flash, and on the device an index to score them with,
// slots for those in use, and the recent window. Knows where an entry is; the engine knows when it is needed.
//
// Two phases share the budget. In *decode* there are slots and their mapping tables. In *prefill* they are
// given up for tiles. The window, which holds what is not on flash yet, stays.
//
// Threads: one at a time; between BeginStep and EndStep the KV thread calls FetchLayer alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "platform/base/status.h"
#include "runtime/device/device.h"
#include "runtime/kv/adapter.h"
#include "runtime/kv/kv_plan.h"
#include "runtime/kv/recent_window.h"
#include "runtime/kv/replayed_selection.h"
#include "runtime/kv/slot_cache.h"
#include "runtime/kv/slot_record_store.h"
#include "runtime/store/group_store.h"

namespace kvrun {

// Of decode steps, since the session's statistics were reset.
struct KvStats {
  uint64_t chosen_groups = 0;  // pinned ones left out
  uint64_t hit_groups = 0;     // of them, those that were in a slot already
  double fetch_ms = 0.0;       // the KV thread planned and read
  // For how much of it is hidden behind the device's work. io_ms: a layer's groups were being read from
  // flash. stall_ms: the device had nothing to do but to wait for them; at most io_ms, but for what planning
  // and tables take.
  double io_ms = 0.0;
  double stall_ms = 0.0;
  std::vector<double> layer_fetch_ms;
  std::vector<uint64_t> layer_loads;
};

// A new entry of a step.
struct KvRow {
  uint32_t sequence = 0;
  uint32_t position = 0;
};

// Reads of chosen groups that were done again: for benchmarks.
struct RepeatedReads {
  uint64_t fetches = 0;  // each waits for its reads before the next begins
  uint64_t reads = 0;
  uint64_t read_bytes = 0;
  double milliseconds = 0.0;
};

class OffloadedCache {
 public:
  // `store` may be null for plans that have slots for all groups.
  static Result<std::unique_ptr<OffloadedCache>> Create(Device& device, const KvPlan& plan, uint32_t n_layers,
                                                        std::unique_ptr<GroupStore> store);

  const KvPlan& plan() const { return plan_; }
  // Entries that are there, of a sequence.
  uint32_t length(uint32_t sequence) const { return lengths_[sequence]; }
  // Null: everything is in memory.
  const GroupStore* flash() const { return flash_; }

  // --- Adapters and index.
  bool has_adapter() const { return has_adapter_; }
  Status SetAdapter(uint32_t layer, const LayerAdapter& adapter);
  // Scores are all equal: while few entries are there, whatever is chosen is all of them.
  Status SetBlankAdapter(uint32_t layer);
  void NoteAdapterComplete() { has_adapter_ = true; }
  const IndexSides& sides(uint32_t layer) const { return layers_[layer].sides; }
  Buffer* index(uint32_t layer) const { return layers_[layer].index.get(); }
  // From projected keys of a sequence (float [n, rank], of entries `begin` on): the index's column scales,
  // sinks left out. Only where the index is quantised.
  Status SetScales(uint32_t layer, uint32_t sequence, std::span<const float> column_scales);
  // Quantises projected keys into the index.
  Status WriteIndex(uint32_t layer, uint32_t sequence, uint32_t begin, std::span<const float> projected);
  // Of fewer entries no adapter is made: they say little about the keys to come.
  uint32_t min_adapter_entries() const { return n_sinks() + 2 * plan_.index.rank; }
  // Whether there is no adapter yet, though a row cannot have all groups before its window chosen, and its
  // sequence has enough entries.
  bool NeedsIndex(std::span<const KvRow> rows) const;
  // Adapters of a sequence's entries, without queries, and the index of all sequences. Gives up slots, where
  // there is a store: decoding has to begin again. After an error there is no adapter, and the index may be
  // of some layers.
  Status BuildIndex(uint32_t sequence);
  // `adapter` is new, of `sequence`, whose scales are set: the layer's index of all other sequences' entries.
  Status IndexOthers(uint32_t layer, uint32_t sequence, const LayerAdapter& adapter);

  // --- Prefill of one sequence.
  // Gives up slots, where there is a store. Entries of `sequence` from `begin` on are forgotten.
  Status BeginPrefill(uint32_t sequence, uint32_t begin);
  // Records of whole groups, [streams of the sequence, n_groups], of one layer.
  Status AppendGroups(uint32_t layer, uint32_t sequence, uint32_t first_group, uint32_t n_groups,
                      std::span<const std::byte> records);
  // Groups that the window is to hold, as records of the window: [streams of the sequence, n_groups]. After
  // those of the layer that lie there were read (ReadWindow).
  Status PutWindow(uint32_t layer, uint32_t first_group, uint32_t n_groups,
                   std::span<const std::byte> records) {
    return window_.Put(layer, first_group, n_groups, records);
  }
  // The first group that the window holds of the first `length` entries.
  uint32_t FirstWindowGroup(uint32_t length) const { return window_.FirstGroup(length); }
  // Reads records of whole groups that are stored: [n_groups], of one stream.
  Status ReadGroups(uint32_t layer, uint32_t stream, uint32_t first_group, uint32_t n_groups,
                    std::span<std::byte> records);
  // Of groups that the window holds: records of the window.
  Status ReadWindow(uint32_t layer, uint32_t stream, uint32_t first_group, uint32_t n_groups,
                    std::span<std::byte> records);
  // All layers have `length` entries of the sequence now.
  Status EndPrefill(uint32_t sequence, uint32_t length);

  // --- Decode.
  // Makes slots, where that has not been done since the last prefill.
  Status BeginDecode();
  bool in_decode() const { return in_decode_; }
  SlotShape slot_shape() const;
  Buffer* slots(uint32_t layer) const { return layers_[layer].slots.get(); }
  Buffer* table(uint32_t layer) const { return layers_[layer].table.get(); }
  const RecentWindow& window() const { return window_; }
  Buffer* chosen(uint32_t layer) const { return layers_[layer].chosen.get(); }

  // Rows are new entries, one of each sequence. Entries at or after a row's position are forgotten.
  Status BeginStep(std::span<const KvRow> rows);
  // KV thread: groups that the last step completed go to flash.
  Status WriteCompletedGroups();
  // Without an index every group is read in every step, into slots that all layers share: the layer before
  // must be complete when a layer is fetched.
  bool selects() const { return plan_.method.selects(); }
  bool reloads_all() const { return plan_.method.shares_slots(); }
  // KV thread: the layer's chosen groups are known; brings them into slots and writes the mapping tables.
  Status FetchLayer(uint32_t layer);
  // The step has succeeded: the rows' entries are there.
  Status EndStep();

  // What the step's row attended to before its window, of each stream of its sequence: groups. Between the
  // step and the next.
  std::vector<std::vector<uint32_t>> GroupsBeforeWindow(uint32_t layer, uint32_t row,
                                                        uint32_t position) const;

  const KvStats& stats() const { return stats_; }
  void AddStall(double milliseconds) { stats_.stall_ms += milliseconds; }
  void ResetStats();

  // --- Benchmarks.
  // From now on, what the device chooses is replaced: see ReplayedSelection. Of no effect without an index.
  void ReplaySelection(double repeated_share);
  // Notes the reads of the steps to come; what was noted before is forgotten.
  void BeginReadLog();
  // Ends the log and carries out its reads once more, in their order, into the slots they went to. After the
  // last of the steps that were noted: slots then hold what they held.
  Result<RepeatedReads> RepeatReads();

 private:
  // Of one layer: fetches [begin, begin + count) of the log.
  struct LoggedRead {
    uint32_t layer = 0;
    size_t begin = 0;
    size_t count = 0;
  };
  struct ReadLog {
    std::vector<LoggedRead> reads;
    std::vector<GroupFetch> fetches;
  };

  struct Layer {
    std::unique_ptr<Buffer> index;
    std::unique_ptr<Buffer> scales;
    std::unique_ptr<Buffer> key_side;
    std::unique_ptr<Buffer> query_side;
    std::unique_ptr<Buffer> bias;
    IndexSides sides;
    std::shared_ptr<Buffer> slots;  // where all groups are reloaded: one for all layers
    std::unique_ptr<Buffer> table;
    std::unique_ptr<Buffer> chosen;
    std::vector<SlotCache> caches;  // of each stream
  };

  OffloadedCache(Device& device, const KvPlan& plan, uint32_t n_layers, std::unique_ptr<GroupStore> flash);

  Status CreateWindow();
  Status CreateIndex();
  // Keys of a sequence's entries from `begin` on, float [n, key_dim], with the first one's position.
  using KeysFn = std::function<Status(uint32_t first, std::span<const float> keys)>;
  Status VisitKeys(uint32_t layer_index, uint32_t sequence, uint32_t begin, const KeysFn& visit);
  Result<LayerAdapter> ComputeLayerAdapter(uint32_t layer_index, uint32_t sequence);
  // All entries of the sequence, with scales that suit them. `smallest_scales`: float [rank], or empty where
  // there are more entries than sinks.
  Status IndexSequence(uint32_t layer_index, uint32_t sequence, const LayerAdapter& adapter,
                       std::span<const float> smallest_scales);
  uint32_t key_dim() const { return plan_.record.n_heads * heads() * plan_.record.head_dim; }
  uint32_t n_sinks() const { return plan_.n_pinned * group_tokens(); }
  Status RestoreWindow(uint32_t sequence, uint32_t length);
  Status UndoPrefill();
  Status Prepare(uint32_t sequence, uint32_t length);
  Status MakeSlots();
  void LeaveDecode();
  // FetchLayer's turns: what is to be read of every stream, all of it at once, and where it lies now.
  Status PlanStream(uint32_t layer_index, uint32_t row, uint32_t head);
  Result<std::span<const uint32_t>> ChosenGroups(uint32_t layer_index, uint32_t row, uint32_t head);
  Status ReadPlanned(uint32_t layer_index);
  void DropPlanned(uint32_t layer_index);
  Status FlushFetched(Buffer& slots);
  Status NameSlots(uint32_t layer_index, uint32_t row, uint32_t head);
  Status ForgetFrom(uint32_t sequence, uint32_t length);

  uint32_t heads() const { return plan_.n_streams / plan_.n_sequences; }  // streams of a sequence
  uint32_t group_tokens() const { return plan_.record.group_tokens; }
  uint64_t record_bytes() const { return plan_.record.size_bytes(); }
  std::byte* SlotBytes(const Layer& layer, uint32_t stream, uint32_t slot) const;
  uint32_t StreamOf(uint32_t row, uint32_t head) const { return rows_[row].sequence * heads() + head; }
  // A stream's mapping table of a layer.
  std::span<uint32_t> TableOf(const Layer& layer, uint32_t stream) const;

  Device& device_;
  KvPlan plan_;
  std::unique_ptr<RecordStore> store_;
  GroupStore* flash_ = nullptr;           // store_, where that is on flash
  SlotRecordStore* in_memory_ = nullptr;  // else
  std::vector<Layer> layers_;
  RecentWindow window_;
  std::vector<uint32_t> lengths_;               // of each sequence
  std::vector<uint32_t> groups_stored_;         // of each sequence: whole groups on flash, or in their slots
  std::vector<std::byte> encoded_;              // a record that leaves the window
  std::vector<KvRow> rows_;                     // of the step
  std::vector<GroupFetch> fetches_;             // of a layer: at most n_streams * n_chosen in a step
  std::vector<SlotCache::PlanResult> planned_;  // of a layer's rows and heads; where there are caches
  std::vector<ReplayedSelection> replayed_;     // [n_layers, n_streams]; empty: the device chooses
  std::optional<ReadLog> read_log_;
  bool has_adapter_ = false;
  bool in_decode_ = false;
  KvStats stats_;
};

}  // namespace kvrun
