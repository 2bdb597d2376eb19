// The static set (StaticPlan): which entries of each stream are in it, and, while decoding, a source of
// attention that holds them. In slots, a group's other entries lie in front, and only these count.
//
// Threads: one at a time; during a step the KV thread alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "platform/base/status.h"
#include "runtime/device/device.h"
#include "runtime/kv/kv_index.h"
#include "runtime/kv/kv_plan.h"
#include "runtime/kv/kv_slots.h"
#include "runtime/kv/prompt_entries.h"

namespace kvrun {

class StaticSet {
 public:
  // Of a prompt, the last rows that say what is in the set. (PRKV's are those of its window, 64.)
  static constexpr uint32_t kObservedRows = 32;
  static constexpr uint32_t kGroupsAtOnce = 8;  // that are read

  // Empty. The plan must outlive it, and may change its share (StaticShare::by_prompt) while there is no
  // source.
  StaticSet(Device& device, const KvPlan& plan, uint32_t n_layers);

  // --- Which entries.
  // A layer of a prompt: what its last rows attend to most before the window, over the heads of a stream;
  // of equal ones the newer. Pinned groups are left out: they are attended to anyway.
  Status Choose(uint32_t layer, const KvRange& prompt, PromptEntries& entries);
  // For benchmarks: evenly spaced ones, of the first `end` entries.
  void ChooseEvenly(uint32_t sequence, uint32_t end);
  // Entries from `end` on are in it no more.
  void Truncate(uint32_t sequence, uint32_t end);
  // Of the prompts so far, where the plan asks for it: the share of a selection by their first observed row
  // that one by their last row has too, in whole groups (PRKV's Eq. 4 and 5; a row's KV heads are means of
  // their query heads, as in Choose). Nothing where no prompt could say.
  std::optional<double> measured_share() const;

  // Ascending, once the share is known.
  std::span<const uint32_t> positions(uint32_t layer, uint32_t stream) const {
    return positions_[ListOf(layer, stream)];
  }
  // Those of a group, as entries of it; ascending. Valid until the next call.
  std::span<const uint32_t> EntriesOf(uint32_t layer, uint32_t stream, uint32_t group);

  // --- The source, while decoding.
  // Reads whole groups of a stream: records [n], by ascending number.
  using ReadFn = std::function<Status(uint32_t layer, uint32_t stream, std::span<const uint32_t> groups,
                                      std::span<std::byte> records)>;
  // Makes it and reads its entries. An index (or null) takes them out of its rows, and back what was taken
  // out before and is in the set no more.
  Status Load(const ReadFn& read, KvIndex* index);
  void Drop();
  // After Truncate: the index takes back what is not in the set any more. Groups from that of entry `end` on
  // cannot be read. After an error it is to be called again, or Load is.
  Status TakeBack(uint32_t sequence, uint32_t end, const ReadFn& read, KvIndex* index);
  void AddSource(uint32_t layer, SlotAttentionArgs* args) const;
  // Of a group that was read into a slot: entries that are not in the set come first, in order. Answers how
  // many.
  void Compact(uint32_t layer, uint32_t stream, uint32_t group, std::span<std::byte> record);
  uint32_t CountOthers(uint32_t layer, uint32_t stream, uint32_t group);

 private:
  struct Overlap {
    uint64_t sum = 0;
    uint64_t n_heads = 0;
    uint64_t n_entries = 0;  // of selections
  };

  size_t ListOf(uint32_t layer, uint32_t stream) const { return size_t{layer} * plan_.n_streams + stream; }
  uint32_t most_entries() const;
  uint32_t model_heads() const { return plan_.record.n_heads * plan_.heads_per_sequence(); }
  // As EntriesOf, of ascending positions.
  std::span<const uint32_t> EntriesOfGroup(std::span<const uint32_t> all, uint32_t group);
  void KeepLargest(std::span<const float> scores, uint32_t begin, uint32_t n, std::vector<uint32_t>* kept);
  Status MeasureOverlap(uint32_t end, PromptEntries& entries);
  Status LoadStream(uint32_t layer, uint32_t stream, const ReadFn& read, KvIndex* index);
  Status TakeUnstoredBack(uint32_t layer, uint32_t stream, uint32_t end, KvIndex* index);
  Status TakeStreamBack(uint32_t layer, uint32_t stream, const ReadFn& read, KvIndex* index);
  using VisitFn = std::function<Status(uint32_t group, std::span<const std::byte> record)>;
  Status VisitGroups(uint32_t layer, uint32_t stream, std::span<const uint32_t> groups, const ReadFn& read,
                     const VisitFn& visit);
  void CopyEntries(uint32_t layer, uint32_t stream, uint32_t group, std::span<const std::byte> record);
  std::vector<uint32_t> GroupsOf(std::span<const uint32_t> a, std::span<const uint32_t> b) const;

  Device& device_;
  const KvPlan& plan_;
  uint32_t n_layers_;
  bool has_share_ = false;                        // of the plan: prompts have nothing more to say of it
  std::vector<std::vector<uint32_t>> positions_;  // [n_layers, n_streams]; without the share by rank
  std::vector<std::vector<uint32_t>> taken_out_;  // of the index's rows: the same
  std::vector<SlotBuffers> sources_;              // [n_layers] while decoding
  std::optional<Overlap> overlap_;                // of the prompts so far
  std::vector<uint32_t> order_;
  std::vector<uint32_t> entries_;  // of a group
  std::vector<std::byte> records_;
};

}  // namespace kvrun
