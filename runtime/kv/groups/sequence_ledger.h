// A ledger of groups of consecutive entries: whole ones lie in the store, whether the window holds them or
// not.
//
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "platform/base/status.h"
#include "runtime/kv/contracts/kv_index.h"
#include "runtime/kv/contracts/kv_ledger.h"
#include "runtime/kv/groups/static_set.h"
#include "runtime/kv/memory/entry_spaces.h"
#include "runtime/kv/memory/kv_slots.h"
#include "runtime/kv/memory/recent_window.h"
#include "runtime/kv/plan/kv_plan.h"
#include "runtime/kv/plan/kv_step.h"
#include "runtime/store/record_store.h"

namespace kvrun {

class SequenceLedger final : public KvLedger, public GroupWriter, public KeptSources, public RecordShifter {
 public:
  // All must outlive it; `index` may be null, and hears of what is stored. `statics`: as the plan asks for
  // it, or null.
  SequenceLedger(const KvPlan& plan, uint32_t n_layers, RecordStore& store, RecentWindow& window,
                 KvSlots& slots, KvIndex* index, StaticSet* statics = nullptr,
                 const EntrySpaces& spaces = EntrySpaces::None());

  uint32_t n_sequences() const override { return static_cast<uint32_t>(lengths_.size()); }
  uint32_t length(uint32_t sequence) const override { return lengths_[sequence]; }
  Status Visit(uint32_t layer, uint32_t sequence, uint32_t begin, const KeysFn& visit) override;

  Status BeginPrefill(uint32_t sequence, uint32_t begin) override;
  Status Append(uint32_t layer, uint32_t sequence, uint32_t first_group, uint32_t n_groups,
                std::span<const std::byte> records) override;
  Status EndPrefill(uint32_t sequence, uint32_t length) override;

  // Of the static set: KeptSources only where there is one.
  Status BeginDecode() override;
  void LeaveDecode() override;
  void AddSources(uint32_t layer, SlotAttentionArgs* args) const override;
  void AddKeptPositions(uint32_t layer, uint32_t row, uint32_t head,
                        std::vector<uint32_t>* positions) const override;
  Status BeginStep(const KvStep& step) override;
  uint32_t n_stored(uint32_t sequence) const override { return groups_stored_[sequence]; }
  Status StoreLeavingGroups() override;
  Status StoreCompletedGroups() override;
  void EndStep() override;
  Status VisitState(StateVisitor& visitor) override;

  Status Shift(uint32_t layer, uint32_t sequence, std::span<const float> shifts) override;
  Result<std::vector<float>> MeansInRecords(uint32_t layer, uint32_t sequence) override;

  Status ReadGroups(uint32_t layer, uint32_t stream, uint32_t first_group, uint32_t n_groups,
                    std::span<std::byte> records) override;
  Status ReadSome(uint32_t layer, uint32_t stream, std::span<const uint32_t> groups,
                  std::span<std::byte> records) override;

 private:
  Status ShiftGroups(uint32_t layer, uint32_t sequence, std::span<const float> shifts);
  Status UndoPrefill();
  Status Prepare(uint32_t sequence, uint32_t length);
  Status ForgetFrom(uint32_t sequence, uint32_t length);
  Status TruncateStatics(uint32_t sequence, uint32_t length);
  void ForgetStatics(uint32_t sequence, uint32_t length);
  Status TakeStaticsBack(uint32_t sequence);
  StaticSet::ReadFn GroupReader();
  Status RestoreWindow(uint32_t sequence, uint32_t length);
  bool IsLeaving(const KvSpan& span, uint32_t group) const;
  Status StoreGroup(uint32_t sequence, uint32_t group);
  void DecodeKeys(uint32_t layer, uint32_t stream, const KvRecordShape& shape,
                  std::span<const std::byte> record, uint32_t first, std::span<float> keys) const;
  Status AppendStream(uint32_t layer, uint32_t stream, uint32_t first_group,
                      std::span<const std::byte> records);

  uint32_t heads() const { return plan_.heads_per_sequence(); }
  uint32_t group_tokens() const { return plan_.record.group_tokens; }
  uint64_t record_bytes() const { return plan_.record.size_bytes(); }

  const KvPlan& plan_;
  uint32_t n_layers_;
  RecordStore& store_;
  RecentWindow& window_;
  KvSlots& slots_;
  KvIndex* index_;
  StaticSet* statics_;
  const EntrySpaces& spaces_;
  const KvStep* step_ = nullptr;   // the last that began
  std::vector<uint32_t> lengths_;  // of each sequence
  std::vector<Status> broken_;     // of each sequence: what has made its entries useless
  std::vector<uint32_t> first_window_groups_;
  std::vector<uint32_t> groups_stored_;  // of each sequence: whole groups in the store
  std::vector<bool> is_to_take_back_;    // of each sequence: StaticSet::TakeBack
  std::vector<std::byte> encoded_;       // a record that leaves the window
  std::vector<float> keys_;              // of its group, where the index takes them
  std::vector<GroupFetch> fetches_;
  std::vector<uint32_t> groups_;  // of ReadGroups
};

}  // namespace kvrun
