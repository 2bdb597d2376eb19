// Which extent each slot holds, and which slot to give up (the papers' reuse buffer). Knows ids: no bytes,
// files or devices. Pure and deterministic. Source: KVSwap, section 3.4.
//
// More extents may be chosen than there are slots: the *rest*, those that find none, go elsewhere (the pool
// that layers share).
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
  std::span<const uint32_t> extents;    // that each slot holds; kNoExtent: free
  std::span<const uint64_t> loaded_at;  // step
  std::span<const uint64_t> used_at;    // step
  // Of each extent, in a slot or not: how often it was chosen, what is recent counting most; 0: hardly ever.
  // Empty where the policy does not go by it.
  std::span<const uint8_t> frequency;
};

// A row of the table of policies (replacement_policy.cc). `better_victim(view, a, b)`: slot a goes before
// slot b; a strict weak order. Asked about slots that hold an extent that this step does not need: free slots
// are taken before any of them. Where neither goes before the other, the lower slot does.
struct ReplacementPolicy {
  std::string_view name;  // "fifo", "lru", "non-hit", "lfu"
  bool (*better_victim)(const SlotView& view, uint32_t a, uint32_t b);
  bool needs_equal_capacity = false;  // only where there are as many slots as chosen extents
  // The most frequent of what is chosen take slots, where they are more frequent than what lies there (or the
  // rest would not find room elsewhere); otherwise what is chosen takes any victim's slot, by ascending
  // extent.
  bool goes_by_frequency = false;
};
std::span<const ReplacementPolicy> ReplacementPolicies();
// An unknown name is answered with the known ones.
Result<const ReplacementPolicy*> FindReplacementPolicy(std::string_view name);

struct SlotLoad {
  uint32_t extent = 0;
  uint32_t slot = 0;
};

// Sizes of a SlotCache.
struct SlotCacheShape {
  uint32_t n_slots = 0;
  uint32_t max_chosen = 0;  // extents of a step
  uint32_t max_rest =
      0;  // of them, those for which there is room elsewhere; n_slots + max_rest >= max_chosen
  uint32_t n_extents = 0;  // all ids are less; looked at where the policy goes by frequency
};

// The slots of one stream of one layer. One thread at a time; Plan allocates nothing and takes O(n log n),
// and a pass over n_extents bytes where the policy goes by frequency.
class SlotCache {
 public:
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
  };
  // chosen: ascending, distinct, at most max_chosen. No slot that a chosen extent is in is given up. The
  // answer is valid until the next call.
  PlanResult Plan(std::span<const uint32_t> chosen);
  // A load that failed: the slot is free again.
  void Drop(uint32_t slot);
  // Forgets extents from `first` on.
  void Truncate(uint32_t first);
  void Clear() { Truncate(0); }

  uint32_t n_slots() const { return static_cast<uint32_t>(extents_.size()); }

 private:
  static constexpr uint32_t kNoSlot = UINT32_MAX;

  SlotView view() const { return {extents_, loaded_at_, used_at_, frequency_}; }
  void NoteFrequency(std::span<const uint32_t> chosen);
  size_t FindHits(std::span<const uint32_t> chosen);
  size_t ChooseVictims(size_t most);
  size_t Admit(std::span<const uint32_t> chosen, size_t n_misses, size_t n_victims);
  bool IsWorthIt(uint32_t extent, uint32_t victim) const;
  void MergeLoads(size_t n_loads);

  const ReplacementPolicy* policy_;
  uint32_t max_rest_;
  uint64_t step_ = 0;
  std::vector<uint32_t> extents_;
  std::vector<uint64_t> loaded_at_;
  std::vector<uint64_t> used_at_;
  std::vector<uint32_t> by_extent_;  // slots, by ascending extent; free ones at the end
  std::vector<uint32_t> victims_;
  std::vector<uint32_t> slots_;
  std::vector<uint32_t> misses_;  // places in `chosen`
  std::vector<uint32_t> rest_;
  std::vector<SlotLoad> loads_;
  std::vector<uint8_t> frequency_;
};

}  // namespace kvrun
