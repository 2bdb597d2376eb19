// The *window*: the newest entries of every stream, always attended to. Of 8,000 entries with a window of 64
// these are 7,936 to 7,999. A ring of records in f16 (f32 where the stored K or V is f32), one buffer per
// layer. What is recent gets much of the attention: stored in few bits it costs several times what all older
// entries together do (docs/decisions/kv-cache.md, "The newest entries stay exact").
//
// Entries other than the newest KvWindowPlan::exact_entries() are rounded to what their stored records hold,
// wherever they lie. Not the first KvWindowPlan::n_exact_entries: the groups that hold them
// (KvWindowPlan::n_exact_groups) have records in front of the ring, and are attended to there once they leave
// it.
//
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "platform/base/status.h"
#include "runtime/device/device.h"
#include "runtime/kv/plan/kv_plan.h"

namespace kvrun {

class RecentWindow {
 public:
  // Empty. The plan must outlive it.
  explicit RecentWindow(const KvPlan& plan) : plan_(&plan) {}
  static Result<RecentWindow> Create(Device& device, const KvPlan& plan, uint32_t n_layers);

  SlotShape shape() const;
  Buffer* records(uint32_t layer) const { return layers_[layer].records.get(); }
  Buffer* table(uint32_t layer) const { return layers_[layer].table.get(); }

  // The first group that a window holds whose last entry is `length` - 1.
  uint32_t FirstGroup(uint32_t length) const { return plan_->FirstWindowGroup(length); }
  // Whether the ring holds the group's entries, of a sequence of `length` entries.
  bool Holds(uint32_t sequence, uint32_t length, uint32_t group) const;
  // A group of the ring; the device's writes are seen.
  Result<std::span<const std::byte>> Read(uint32_t layer, uint32_t stream, uint32_t group);
  // What was stored of a group, into the ring.
  Status Restore(uint32_t layer, uint32_t stream, uint32_t group, std::span<const std::byte> stored);
  // An exact group, which is whole: as a record of the window, and as it is stored.
  Status PutExact(uint32_t layer, uint32_t stream, uint32_t group, std::span<const std::byte> record,
                  std::span<const std::byte> stored);
  std::span<const std::byte> Exact(uint32_t layer, uint32_t stream, uint32_t group) const;
  // The same into the ring.
  Status RestoreExact(uint32_t layer, uint32_t stream, uint32_t group);
  // ShiftRecord of all records of a sequence: of the ring, of the exact groups, and of what UndoPrefill
  // brings back. shifts: float [streams of the sequence, n_heads, 2, head_dim].
  Status Shift(uint32_t layer, uint32_t sequence, std::span<const float> shifts);
  void NoteFirstGroup(uint32_t sequence, uint32_t group) { first_groups_[sequence] = group; }

  // Prefill of a sequence of `length` entries: keeps its groups from `first_kept` on, which lie nowhere else,
  // to the incomplete one.
  Status BeginPrefill(uint32_t sequence, uint32_t length, uint32_t first_kept);
  // Records of consecutive groups of that sequence, [streams of the sequence, n_groups].
  Status Put(uint32_t layer, uint32_t first_group, uint32_t n_groups, std::span<const std::byte> records);
  // It has succeeded: the sequence's entries are [0, length) now.
  Status EndPrefill(uint32_t length);
  // Or it has failed: the groups that were kept are as they were; the ring holds nothing else of the
  // sequence.
  Status UndoPrefill();
  bool in_prefill() const { return prefilled_.has_value(); }
  uint32_t prefilled_sequence() const { return prefilled_->sequence; }

  // Not while a prompt is computed.
  Status VisitState(StateVisitor& visitor);

  // A step computes `position`: rounds the entry that leaves the exact ones, and names the window's groups in
  // the stream's mapping table. Returns with the layer's table in the device's sight.
  Status BeginEntry(uint32_t layer, uint32_t stream, uint32_t position);

 private:
  struct Layer {
    std::unique_ptr<Buffer> records;  // kShared, [n_streams, n_exact_groups + n_slots]
    std::unique_ptr<Buffer> table;    // kShared
  };

  uint32_t heads() const { return plan_->n_streams / plan_->n_sequences; }
  uint32_t n_slots() const { return plan_->window.n_slots; }
  uint32_t group_tokens() const { return plan_->window.record.group_tokens; }
  uint64_t record_bytes() const { return plan_->window.record.size_bytes(); }
  uint64_t Offset(uint32_t stream, uint32_t group) const {
    return (uint64_t{stream} * plan_->window.n_records() + n_exact_groups() + group % n_slots()) *
           record_bytes();
  }
  uint64_t ExactOffset(uint32_t stream, uint32_t group) const {
    return (uint64_t{stream} * plan_->window.n_records() + group) * record_bytes();
  }
  uint32_t n_exact_groups() const { return plan_->window.n_exact_groups; }
  std::span<std::byte> Record(uint32_t layer, uint32_t stream, uint32_t group) const {
    return layers_[layer].records->host().subspan(Offset(stream, group), record_bytes());
  }
  uint32_t exact_entries() const { return plan_->window.exact_entries(); }
  bool is_exact() const { return plan_->window.record == plan_->record; }
  Status Round(uint32_t layer, uint32_t stream, uint32_t position);

  struct Prefill {
    uint32_t sequence = 0;
    uint32_t first = 0;  // group
    uint32_t end = 0;
    std::vector<std::byte> records;  // [n_layers, streams of the sequence, end - first]
  };

  const KvPlan* plan_;
  std::vector<Layer> layers_;
  std::optional<Prefill> prefilled_;
  std::vector<uint32_t> first_groups_;  // of each sequence: the first that the ring holds
};

}  // namespace kvrun
