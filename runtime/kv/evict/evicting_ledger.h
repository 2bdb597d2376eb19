// A ledger that keeps what attention goes to. An entry lies in the window, or in its list (KeptLists), or is
// gone. What stays of a prompt is said by the attention of its last rows, or of all of them; afterwards each
// entry that leaves the window competes with those of its list. The method's KeepRule says how.
//
// While a prompt is computed, memory is the prompt's. What other sequences have kept, and what stays of the
// prompt's layers so far, lies in a file meanwhile, the *vault*: when a second document is read, the lists of
// the first are there until it is done.
//
// A sequence that has lost entries cannot be truncated before its window, and a prompt is computed row by row
// where the sequence has entries.
//
// Sources: see keep_rule.h, layer_attention.h; docs/methods/evicting.md says how close each method is to its
// own.
//
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "platform/base/status.h"
#include "runtime/device/device.h"
#include "runtime/kv/contracts/kv_ledger.h"
#include "runtime/kv/evict/scored_entries.h"
#include "runtime/kv/evict/vault.h"
#include "runtime/kv/math/keep_rule.h"
#include "runtime/kv/math/layer_attention.h"
#include "runtime/kv/memory/kept_lists.h"
#include "runtime/kv/memory/recent_window.h"
#include "runtime/kv/plan/kept_report.h"
#include "runtime/kv/plan/kv_plan.h"
#include "runtime/store/spill_file.h"

namespace kvrun {

class EvictingLedger final : public KvLedger, public LayerWriter, public KeptSources, public Evictor {
 public:
  // All must outlive it; `vault`: a file of Vault::FileBytes, which it takes.
  static Result<std::unique_ptr<EvictingLedger>> Create(Device& device, const KvPlan& plan, uint32_t n_layers,
                                                        RecentWindow& window,
                                                        std::unique_ptr<SpillFile> vault);

  uint32_t n_sequences() const override { return static_cast<uint32_t>(sequences_.size()); }
  uint32_t length(uint32_t sequence) const override { return sequences_[sequence].length; }
  Status Visit(uint32_t layer, uint32_t sequence, uint32_t begin, const KeysFn& visit) override;

  Status BeginPrefill(uint32_t sequence, uint32_t begin) override;
  Status StoreLayer(uint32_t layer, const KvRange& prompt, PromptEntries& entries) override;
  Status EndPrefill(uint32_t sequence, uint32_t length) override;
  Status StoreRepeated(uint32_t layer, uint32_t sequence, uint32_t length,
                       std::span<const std::byte> records) override;

  Status BeginDecode() override;
  void LeaveDecode() override { layers_.clear(); }
  Status BeginStep(const KvStep& step) override;
  void AddSources(uint32_t layer, SlotAttentionArgs* args) const override;
  Buffer* window_mass(uint32_t layer) const override {
    return n_moments_ == 0 ? nullptr : window_mass_[layer].get();
  }
  void AddKeptPositions(uint32_t layer, uint32_t row, uint32_t head,
                        std::vector<uint32_t>* positions) const override;
  void EndStep() override;
  Status VisitState(StateVisitor& visitor) override;
  KeptReport kept() const override;

  Status ReadGroups(uint32_t layer, uint32_t stream, uint32_t first_group, uint32_t n_groups,
                    std::span<std::byte> records) override;

 private:
  struct Sequence {
    uint32_t length = 0;
    uint32_t settled = 0;     // entries before it have left the window
    uint32_t prompt_end = 0;  // of the prompt that it began with
    uint64_t n_evicted = 0;
  };
  // What a layer's prompt has said, of a sequence.
  struct LayerShare {
    LayerAttention attention;
    double entropy = 0.0;
    double original_share = 1.0;
  };
  static constexpr uint32_t kNoEntry = UINT32_MAX;

  EvictingLedger(Device& device, const KvPlan& plan, uint32_t n_layers, RecentWindow& window,
                 std::unique_ptr<SpillFile> vault, const KeepRule& rule);
  Status CreateWindowMass();

  // Prompts.
  Status UndoPrefill();
  void ReserveScratch();
  void DropPromptScratch();
  void Clear(uint32_t sequence);
  Status PutAside();
  Status PutListAside(uint32_t layer, uint32_t stream);
  // Of a list on the device, after Refresh: what is put aside of it in memory; and its records, which lie in
  // vault_.records().
  Vault::List ListOnDevice(uint32_t layer, uint32_t stream) const;
  std::span<const std::byte> RecordsOnDevice(uint32_t layer, uint32_t stream);
  Status KeepBest(uint32_t layer, uint32_t stream, uint32_t head, const KvRange& prompt,
                  std::span<const float> mass, uint32_t end, PromptEntries& entries);
  void ScorePrompt(std::span<const float> mass, uint32_t end, uint32_t prompt_end);
  void ShareHeads(uint32_t layer, const KvRange& prompt, uint32_t n_entries);
  Status ShareOut(uint32_t sequence);
  KeptQuota QuotaOf(uint32_t layer, uint32_t stream) const;
  Status LoadLayer(uint32_t layer);
  Status LoadList(uint32_t layer, uint32_t stream, KeptLists& lists);
  Status FillWindowMass(uint32_t layer, const KvRange& prompt, std::span<const float> mass, uint32_t end);

  // States.
  Status VisitSequences(StateVisitor& visitor);
  Status VisitSeen(StateVisitor& visitor);
  Status VisitShares(StateVisitor& visitor, bool has_same_room);
  Status VisitQuotas(StateVisitor& visitor, bool has_same_room);
  Status CheckQuotas() const;
  Status CheckRoom(uint32_t n_entries);
  Status VisitWindow(StateVisitor& visitor, uint32_t layer);
  Status VisitList(StateVisitor& visitor, uint32_t layer, uint32_t stream, std::span<std::byte> piece);
  Status SaveRecords(StateVisitor& visitor, uint32_t layer, uint32_t stream, const Vault::List& list,
                     std::span<std::byte> piece);
  Status CheckList(uint32_t layer, uint32_t stream, const Vault::List& list) const;

  // Steps.
  Status Forget(uint32_t sequence, uint32_t length);
  Status SettleEntry(uint32_t layer, uint32_t sequence, uint32_t position);
  Status Settle(uint32_t layer, uint32_t stream, uint32_t position);
  // The index of the place that a new entry gets in its tier, or kNoEntry: it goes itself.
  Result<uint32_t> MakeRoom(uint32_t layer, uint32_t stream, uint32_t position);
  uint32_t WorstEntry(uint32_t layer, uint32_t stream, uint32_t position);
  uint32_t OldestGenerated(uint32_t layer, uint32_t stream) const;
  Status Tailor(uint32_t layer, uint32_t stream);
  Status LowerOriginals(uint32_t layer, uint32_t stream, uint32_t most_original);
  Status WriteEntry(uint32_t layer, uint32_t stream, KeptTier tier, uint32_t i, uint32_t position);
  void Gather(uint32_t layer, uint32_t stream);
  Recurrence SeenBy(const Recurrence& entry, const Sequence& sequence) const;
  void NoteRecurrences(uint32_t layer);
  void DropRecurrences(uint32_t layer, uint32_t stream);
  Recurrence& WindowRecurrence(uint32_t layer, uint32_t stream, uint32_t position) {
    return window_recurrences_[ListOf(layer, stream) * plan_.window.n_slots +
                               position % plan_.window.n_slots];
  }
  float& WindowMass(uint32_t layer, uint32_t stream, uint32_t position, uint32_t moment) const;
  Status ClearWindowMass(uint32_t layer, uint32_t sequence, uint32_t position);
  uint32_t RowsThatSaw(const Sequence& sequence, uint32_t position) const;

  uint32_t heads() const { return plan_.heads_per_sequence(); }
  size_t ListOf(uint32_t layer, uint32_t stream) const { return size_t{layer} * plan_.n_streams + stream; }
  // There is room for everything.
  bool keeps_all() const { return plan_.of_kept().n_entries >= plan_.n_ctx; }
  bool has_two_tiers() const {
    return plan_.method.goes_by_score() && (plan_.of_kept().precisions == KeptPrecisions::kBytes ||
                                            plan_.of_kept().precisions == KeptPrecisions::kEntries);
  }
  // Where what leaves the window goes.
  KeptTier entry_tier() const {
    return plan_.method.goes_by_score() && plan_.of_kept().precisions == KeptPrecisions::kQuantised
               ? KeptTier::kLow
               : KeptTier::kOriginal;
  }
  uint32_t n_moments() const { return n_moments_; }

  Device& device_;
  const KvPlan& plan_;
  uint32_t n_layers_;
  RecentWindow& window_;
  Vault vault_;
  const KeepRule& rule_;
  uint32_t n_moments_;  // of an entry's mass, while decoding; 0: nothing asks for it
  std::vector<Sequence> sequences_;
  std::vector<KeptLists> layers_;       // none while aside
  std::vector<uint32_t> list_entries_;  // [n_layers, n_streams]: of their layer's share
  std::vector<LayerShare> shares_;      // [n_layers, n_sequences]
  // [n_layers, n_streams]: of lists that a state had on the device, until they are there; or none.
  std::vector<KeptQuota> loaded_quotas_;
  std::vector<std::unique_ptr<Buffer>> window_mass_;  // [n_layers], kShared
  std::vector<std::vector<Recurrence>> recurrences_;  // [n_layers, n_streams]: of kOriginal; or none
  std::vector<Recurrence> window_recurrences_;        // [n_layers, n_streams, n_window_slots], or none
  const KvStep* step_ = nullptr;                      // the last that began
  std::vector<KvSpan> seen_;                          // of that step, until recurrences are noted of it
  uint64_t n_lowered_ = 0;

  // Of one list, while it is looked at.
  ScoredEntries entries_;
  std::vector<bool> marks_;
  std::vector<bool> low_marks_;
  std::vector<float> prompt_scores_;  // [heads, entries], of a layer
};

}  // namespace kvrun
