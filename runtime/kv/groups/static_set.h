// The *static set* (StaticPlan): entries that a prompt's end attends to most, which stay in memory. If entry
// 17 is in it, group 4 (entries 16 to 19) is attended to without it. This knows which entries of each stream
// (a sequence, or a KV head of one, which chooses on its own) are in it, and, while decoding, sources of
// attention that hold them: one, or one for each precision (KeptTier). In slots, a group's other entries lie
// in front, and only these count.
//
// Threads: one at a time; during a step the KV thread alone.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "platform/base/status.h"
#include "runtime/device/device.h"
#include "runtime/kv/contracts/kv_index.h"
#include "runtime/kv/groups/static_choice.h"
#include "runtime/kv/groups/static_pages.h"
#include "runtime/kv/memory/kept_lists.h"
#include "runtime/kv/memory/kv_slots.h"
#include "runtime/kv/plan/kv_plan.h"

namespace kvrun {

class StaticSet {
 public:
  static constexpr uint32_t kGroupsAtOnce = 8;  // that are read

  // Empty. The plan must outlive it, and may change its share (StaticShare::by_prompt) while there is no
  // source. So must `pages`; null: groups stay as they are.
  StaticSet(Device& device, const KvPlan& plan, uint32_t n_layers, StaticPages* pages = nullptr);

  StaticChoice& choice() { return choice_; }
  const StaticChoice& choice() const { return choice_; }
  // Entries from `end` on are in it no more.
  void Truncate(uint32_t sequence, uint32_t end);
  // Those of a group, as entries of it; ascending. Valid until the next call.
  std::span<const uint32_t> EntriesOf(uint32_t layer, uint32_t stream, uint32_t group);
  // What is laid in pages of a sequence is read from its groups, until Load lays it again.
  void DropPages(uint32_t sequence);
  bool lays_pages() const { return pages_ != nullptr; }

  // Loading: not while decoding.
  Status VisitState(StateVisitor& visitor);

  // --- The source, while decoding.
  // Reads whole groups of a stream: records [n], by ascending number.
  using ReadFn = StaticPages::ReadFn;
  // Makes it and reads its entries. An index (or null) takes them out of its rows, and back what was taken
  // out before and is in the set no more. Or pages are laid without them, of groups before the window:
  // first_window_groups: [n_sequences], or nothing where no pages are laid.
  Status Load(const ReadFn& read, std::span<const uint32_t> first_window_groups, KvIndex* index);
  void Drop();
  // After Truncate: the index takes back what is not in the set any more. Groups from that of entry `end` on
  // cannot be read. After an error it is to be called again, or Load is.
  Status TakeBack(uint32_t sequence, uint32_t end, const ReadFn& read, KvIndex* index);
  // All entries of the sequence are scored again, until Load: of an index that needs no records for that.
  Status PutBack(uint32_t sequence, KvIndex& index);
  void AddSources(uint32_t layer, SlotAttentionArgs* args) const;
  // What is to be read of the store for `fetches` of a step. Valid until the next call.
  std::span<const GroupFetch> Reads(uint32_t layer, std::span<const GroupFetch> fetches) {
    return pages_ != nullptr ? pages_->Reads(layer, fetches) : fetches;
  }
  // Of a group that was read into a slot: entries that are not in the set come first, in order.
  void Compact(uint32_t layer, uint32_t stream, uint32_t group, std::span<std::byte> record);
  // How many these are.
  uint32_t CountOthers(uint32_t layer, uint32_t stream, uint32_t group);
  // Adds their positions.
  void AddOthers(uint32_t layer, uint32_t stream, uint32_t group, std::vector<uint32_t>* positions);

 private:
  size_t ListOf(uint32_t layer, uint32_t stream) const { return size_t{layer} * plan_.n_streams + stream; }
  // [n_layers] while decoding, or none. Entry i of StaticChoice::positions is in slot i.
  std::vector<SlotBuffers>& sources_of(KeptTier tier) { return sources_[static_cast<size_t>(tier)]; }
  // As EntriesOf, of ascending positions; added to what is there.
  void AddEntriesOf(std::span<const uint32_t> positions, uint32_t group);
  std::span<const uint32_t> PositionsIn(std::span<const uint32_t> positions, uint32_t group);
  const KvRecordShape& record_of(KeptTier tier) const { return choice_.precisions().record_of(tier); }
  bool IsPage(uint32_t layer, uint32_t stream, uint32_t group) const {
    return pages_ != nullptr && pages_->Has(layer, stream, group);
  }
  bool has_rows_of_pages(uint32_t layer, uint32_t stream) const {
    return pages_ != nullptr && pages_->has_rows(layer, stream);
  }
  Status LoadAll(const ReadFn& read, std::span<const uint32_t> first_window_groups, KvIndex* index);
  Status MakeSources(const PrecisionShares& counts);
  Status LoadStream(uint32_t layer, uint32_t stream, uint32_t first_window_group, const ReadFn& read,
                    KvIndex* index);
  Status TakeUnstoredBack(uint32_t layer, uint32_t stream, uint32_t end, KvIndex* index);
  Status TakeStreamBack(uint32_t layer, uint32_t stream, uint32_t end, const ReadFn& read, KvIndex* index);
  using VisitFn = std::function<Status(uint32_t group, std::span<const std::byte> record)>;
  Status VisitGroups(uint32_t layer, uint32_t stream, std::span<const uint32_t> groups, const ReadFn& read,
                     const VisitFn& visit);
  void CopyEntries(uint32_t layer, uint32_t stream, uint32_t group, std::span<const std::byte> record);
  std::vector<uint32_t> GroupsOf(std::span<const uint32_t> a, std::span<const uint32_t> b) const;

  Device& device_;
  const KvPlan& plan_;
  uint32_t n_layers_;
  StaticChoice choice_;
  StaticPages* pages_;
  std::array<std::vector<SlotBuffers>, kKeptTiers.size()> sources_;
  std::vector<std::vector<uint32_t>> taken_out_;  // of the index's rows: [n_layers, n_streams]
  // Of PositionsIn: where what it answered last begins.
  const uint32_t* last_list_ = nullptr;
  size_t last_place_ = 0;
  std::vector<uint32_t> entries_;  // of a group
  std::vector<std::byte> records_;
  std::vector<std::byte> entry_;
};

}  // namespace kvrun
