// Pages that are laid anew (StaticPlan::lays_pages): what of a stream is not in its static set is written to
// flash again, in order, in pages of its own, so that a page that is read holds nothing that is attended to
// elsewhere. Source: PRKV, section 4.1, which does it in CPU memory.
//
// Groups stay where they are; pages lie behind them in the store. Say that groups 0 to 9 of 32 entries are
// laid anew and 40 of their 320 entries are in the set: pages 0 to 8 hold the other 280, the last of them 24.
// From then on, numbers 0 to 8 mean these pages, in the index and in slots; 9 means nothing. Groups that are
// stored later are read as ever.
//
// Threads: one at a time; during a step the KV thread alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "platform/base/status.h"
#include "runtime/kv/contracts/kv_index.h"
#include "runtime/kv/plan/kv_plan.h"
#include "runtime/store/record_store.h"

namespace kvrun {

class StaticPages {
 public:
  static constexpr uint32_t kGroupsAtOnce = 8;  // that are read, and as many that are written
  static constexpr uint64_t kListBytes = 48;    // of a stream of a layer in memory, besides what is taken

  // All must outlive it. The store has room for n_stored_groups() of each stream, and the index takes
  // records.
  StaticPages(const KvPlan& plan, uint32_t n_layers, RecordStore& store, KvIndex& index);

  // Reads whole groups of a stream: records [n], by ascending number.
  using ReadFn = std::function<Status(uint32_t layer, uint32_t stream, std::span<const uint32_t> groups,
                                      std::span<std::byte> records)>;
  // Lays the groups of a stream from the first that is not pinned to `end_group`, without the entries at
  // `taken` (ascending positions in them), and makes the pages' rows of the index. Nothing is written where
  // pages without these entries are there. After an error there are none, and rows are to be made again.
  Status Lay(uint32_t layer, uint32_t stream, uint32_t end_group, std::span<const uint32_t> taken,
             const ReadFn& read);
  // Waits until all that was laid can be read.
  Status Flush() { return store_.Flush(); }
  // The stream's groups are read as they are, in all layers.
  void Drop(uint32_t stream);

  // Rows of the index are pages', or were to become so.
  bool has_rows(uint32_t layer, uint32_t stream) const { return layouts_[At(layer, stream)].end_of_rows > 0; }
  // Of which groups, ascending; without those that hold an entry from `end` on.
  std::vector<uint32_t> GroupsOfRows(uint32_t layer, uint32_t stream, uint32_t end) const;
  // They are the groups' again: the caller has made them.
  void NoteRows(uint32_t layer, uint32_t stream) { layouts_[At(layer, stream)].end_of_rows = 0; }

  // The number means a page.
  bool Has(uint32_t layer, uint32_t stream, uint32_t number) const {
    const Layout& layout = layouts_[At(layer, stream)];
    return number >= plan_.choice.n_pinned && number < layout.end_group;
  }
  // Of a page: how many entries it has, in front; and which.
  uint32_t CountEntries(uint32_t layer, uint32_t stream, uint32_t number) const;
  void AddPositions(uint32_t layer, uint32_t stream, uint32_t number, std::vector<uint32_t>* positions) const;
  // What is to be read of the store for `fetches`, in its order; numbers that mean nothing are left out.
  // Valid until the next call.
  std::span<const GroupFetch> Reads(uint32_t layer, std::span<const GroupFetch> fetches);

  // In a context of another length, pages that were laid lie elsewhere: they are laid anew.
  Status VisitState(StateVisitor& visitor);

 private:
  struct Layout {
    uint32_t end_group = 0;    // of what was laid; 0: nothing
    uint32_t end_of_rows = 0;  // of groups whose rows are pages'; 0: none are
    std::vector<uint32_t> taken;
  };
  static_assert(sizeof(Layout) <= kListBytes);

  size_t At(uint32_t layer, uint32_t stream) const { return size_t{layer} * plan_.n_streams + stream; }
  uint32_t group_tokens() const { return plan_.record.group_tokens; }
  uint32_t begin() const {
    return plan_.choice.n_pinned * group_tokens();
  }  // the first entry that can be laid
  Status LayEntries(uint32_t layer, uint32_t stream, uint32_t end_group, std::span<const uint32_t> taken,
                    const ReadFn& read);
  Status WritePages(uint32_t layer, uint32_t stream, uint32_t first, uint32_t n);
  Status EmptyNumbers(uint32_t layer, uint32_t stream, uint32_t first, uint32_t end_group);

  const KvPlan& plan_;
  RecordStore& store_;
  KvIndex& index_;
  std::vector<Layout> layouts_;  // [n_layers, n_streams]
  std::vector<GroupFetch> reads_;
  std::vector<std::byte> records_;  // groups that are read
  std::vector<std::byte> pages_;
};

}  // namespace kvrun
