// Which extent each slot holds, and which slot to give up (the papers' reuse buffer). Knows ids: no bytes,
// files or devices. Pure and deterministic. Source: KVSwap, section 3.4.
//
// More extents may be chosen than there are slots: the *rest*, those that find none, go elsewhere (the pool
// that layers share).
//
// Where what is chosen are clusters of several records, each record has a slot of its own: what is called an
// extent here is then a *record* of one, by the id cluster * most records of a cluster + k. All records of a
// chosen cluster are among what is chosen. A cluster's records have its weight and its frequency, and are
// touched together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "platform/base/status.h"

namespace kvrun {

inline constexpr uint32_t kNoExtent = UINT32_MAX;

// What a policy may look at when it chooses a victim: slots of one stream.
struct SlotView {
  std::span<const uint32_t> extents;         // that each slot holds; kNoExtent: free
  std::span<const uint64_t> loaded_at = {};  // step
  std::span<const uint64_t> used_at;         // step
  // Of each extent, or each cluster (extent / extent_records), in a slot or not: how often it was chosen,
  // what is recent counting most; 0: hardly ever. Empty where the policy does not go by it.
  std::span<const uint8_t> frequency = {};
  uint32_t extent_records = 1;
  // Of each slot. How many records the cluster has that its record belongs to; empty: 1 each. The step at
  // which that cluster was last touched, that is, got an entry or was divided, while it was in a slot; 0:
  // never. Empty where the policy does not go by changes.
  std::span<const uint32_t> weights = {};
  std::span<const uint64_t> touched_at = {};
  uint64_t step = 0;  // this one; the first is 1
  // Slots that were touched later are reserved: of those that could be given up, one in sixteen at most.
  uint64_t reserved_after = 0;

  uint8_t FrequencyOf(uint32_t slot) const { return frequency[extents[slot] / extent_records]; }
};

// A row of the table of policies (replacement_policy.cc). `better_victim(view, a, b)`: slot a goes before
// slot b; a strict weak order. Asked about slots that hold an extent that this step does not need: free slots
// are taken before any of them. Where neither goes before the other, the lower slot does.
struct ReplacementPolicy {
  std::string_view name;  // "fifo", "lru", "non-hit", "lfu", "cluster"
  bool (*better_victim)(const SlotView& view, uint32_t a, uint32_t b);
  bool needs_equal_capacity = false;  // only where there are as many slots as chosen extents
  // The most frequent of what is chosen take slots, where they are more frequent than what lies there (or the
  // rest would not find room elsewhere); otherwise what is chosen takes any victim's slot, by ascending
  // extent.
  bool goes_by_frequency = false;
  // By what Touch and weights say. Where extents are records of their own, none of it says anything.
  bool goes_by_changes = false;
};
std::span<const ReplacementPolicy> ReplacementPolicies();
// An unknown name is answered with the known ones.
Result<const ReplacementPolicy*> FindReplacementPolicy(std::string_view name);

struct SlotLoad {
  uint32_t extent = 0;
  uint32_t slot = 0;
  uint32_t victim = kNoExtent;  // which the slot held before; kNoExtent: it was free
};

// What is not to take the place of another extent: it takes a free slot, if there is one; else an extent that
// lies in a slot and was not chosen stands in for it, the last used first.
struct StayOut {
  std::span<const uint8_t> may_stay = {};  // [chosen.size()], or empty: all are read
  uint32_t stand_ins_below = kNoExtent;    // extents that may stand in are less
};

// Sizes of a SlotCache.
struct SlotCacheShape {
  uint32_t n_slots = 0;
  uint32_t max_chosen = 0;  // extents of a step
  uint32_t max_rest =
      0;  // of them, those for which there is room elsewhere; n_slots + max_rest >= max_chosen
  uint32_t n_extents = 0;  // all ids are less; looked at where the policy goes by frequency
  // Ids of a cluster's records: [k * extent_records, (k + 1) * extent_records).
  uint32_t extent_records = 1;

  uint32_t n_frequencies() const { return n_extents / extent_records + (n_extents % extent_records > 0); }
};

// The slots of one stream of one layer. One thread at a time; Plan allocates nothing and takes O(n log n),
// and a pass over n_extents bytes where the policy goes by frequency.
class SlotCache {
 public:
  static constexpr uint32_t kNoSlot = UINT32_MAX;

  // The policy outlives the cache; `n_slots` equals max_chosen where it needs that.
  SlotCache(const SlotCacheShape& shape, const ReplacementPolicy* policy);
  static uint64_t MemoryBytes(const SlotCacheShape& shape, const ReplacementPolicy& policy);

  struct PlanResult {
    // Where those of `chosen` lie (or will lie) that are not in `rest`, in their order.
    std::span<const uint32_t> slots = {};
    std::span<const SlotLoad> loads = {};  // into slots, by ascending extent
    std::span<const uint32_t> rest =
        {};  // extents of `chosen` that have no slot, ascending; at most max_rest
    uint32_t hits = 0;
    // Extents of `chosen` that are neither: as many of the last of `slots` hold others, which stand in.
    uint32_t stand_ins = 0;
  };
  // chosen: ascending, distinct, at most max_chosen. No slot that a chosen extent is in is given up. weights
  // [chosen.size()]: of the clusters that they belong to; empty: 1 each. Kept where the policy goes by
  // changes. is_passing [chosen.size()]: what is not to take a slot, as it will hardly come again, or empty;
  // those are at most max_rest. Not both is_passing and stay_out. The answer is valid until the next call of
  // Plan.
  PlanResult Plan(std::span<const uint32_t> chosen, std::span<const uint32_t> weights = {},
                  std::span<const uint8_t> is_passing = {}, const StayOut& stay_out = {});
  // PlanResult::slots of the last Plan.
  std::span<const uint32_t> planned_slots() const { return std::span(slots_).first(n_planned_); }
  // A load that failed: the slot is free again.
  void Drop(uint32_t slot);

  // --- Records of clusters that change between two Plans. Each takes O(log n), or O(n) where it says so.
  // The slot that a record lies in, or kNoSlot.
  uint32_t SlotOf(uint32_t record) const;
  // What the record's cluster consists of has changed in this step; it has `weight` records now. Records in
  // no slot are none to remember.
  void Touch(uint32_t record, uint32_t weight);
  // What lies in the slot of `from` is record `to` from now on, which is in no slot. When it was loaded, used
  // and touched, and how often it was chosen, stay: a cluster that was divided has left both parts its
  // frequency. O(n).
  void Rename(uint32_t from, uint32_t to);
  // The record is no more: its slot, if it has one, is free again. O(n).
  void DropRecord(uint32_t record);

  // What decides later plans: for a cache that is to go on where this one is.
  struct Memory {
    uint64_t step = 0;
    std::vector<uint32_t> extents;    // of each slot, as below
    std::vector<uint32_t> by_extent;  // slots, by ascending extent; free ones at the end
    std::vector<uint64_t> loaded_at;
    std::vector<uint64_t> used_at;
    std::vector<uint8_t> frequency;
    std::vector<uint32_t> weights;
    std::vector<uint64_t> touched_at;
  };
  Memory Remember() const;
  // All that it holds is to be loaded into its slots. False: it is of a cache of another shape, or
  // contradicts itself, and nothing is done.
  bool Recall(const Memory& memory);

  // Forgets extents from `first` on.
  void Truncate(uint32_t first);
  void Clear() { Truncate(0); }

  uint32_t n_slots() const { return static_cast<uint32_t>(extents_.size()); }
  // What the slot holds, or kNoExtent.
  uint32_t extent(uint32_t slot) const { return extents_[slot]; }

 private:
  uint64_t FindReservedAfter(std::span<uint32_t> candidates) const;
  void NoteFrequency(std::span<const uint32_t> chosen);
  size_t FindHits(std::span<const uint32_t> chosen);
  size_t ChooseVictims(size_t most);
  size_t LeaveOutPassing(std::span<const uint8_t> is_passing, size_t n_misses);
  size_t LeaveOutStaying(std::span<const uint8_t> may_stay, size_t n_misses);
  size_t AddStandIns(uint32_t below, size_t most, size_t n_slots);
  size_t Admit(std::span<const uint32_t> chosen, size_t n_misses, size_t n_victims, size_t n_passing);
  bool IsWorthIt(uint32_t extent, uint32_t victim);
  void MergeLoads(size_t n_loads);
  size_t PlaceOf(uint32_t extent) const;
  void Free(uint32_t slot);

  uint8_t& FrequencyOf(uint32_t extent) { return frequency_[extent / extent_records_]; }

  const ReplacementPolicy* policy_;
  uint32_t max_rest_;
  uint32_t extent_records_;
  uint64_t step_ = 0;
  std::vector<uint32_t> extents_;
  std::vector<uint64_t> loaded_at_;
  std::vector<uint64_t> used_at_;
  std::vector<uint32_t> by_extent_;  // slots, by ascending extent; free ones at the end
  std::vector<uint32_t> victims_;
  std::vector<uint32_t> slots_;
  size_t n_planned_ = 0;
  std::vector<uint32_t> rest_;
  std::vector<SlotLoad> loads_;
  std::vector<uint8_t> frequency_;
  std::vector<uint32_t> weights_;     // of each slot
  std::vector<uint64_t> touched_at_;  // of each slot
};

}  // namespace kvrun
