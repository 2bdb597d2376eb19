// Which extent each slot holds, and which slot to give up (the papers' reuse buffer). Knows ids: no bytes,
// files or devices. Pure and deterministic. Source: KVSwap, section 3.4.
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
};

// A row of the table of policies (replacement_policy.cc). `better_victim(view, a, b)`: slot a goes before
// slot b; a strict weak order. Asked about slots that hold an extent that this step does not need: free slots
// are taken before any of them. Where neither goes before the other, the lower slot does.
struct ReplacementPolicy {
  std::string_view name;  // "fifo", "lru", "non-hit"
  bool (*better_victim)(const SlotView& view, uint32_t a, uint32_t b);
  bool needs_equal_capacity = false;  // only where there are as many slots as chosen extents
};
std::span<const ReplacementPolicy> ReplacementPolicies();
// An unknown name is answered with the known ones.
Result<const ReplacementPolicy*> FindReplacementPolicy(std::string_view name);

struct SlotLoad {
  uint32_t extent = 0;
  uint32_t slot = 0;
};

// The slots of one stream of one layer. One thread at a time; Plan allocates nothing and takes O(n log n).
class SlotCache {
 public:
  // `n_slots` >= max_chosen, and equal where the policy needs it. The policy outlives the cache.
  SlotCache(uint32_t n_slots, uint32_t max_chosen, const ReplacementPolicy* policy);
  static uint64_t MemoryBytes(uint32_t n_slots, uint32_t max_chosen);

  struct PlanResult {
    std::span<const uint32_t> slots;  // slots[i] holds (or will hold) chosen[i]
    std::span<const SlotLoad> loads;  // by ascending extent
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

  size_t FindHits(std::span<const uint32_t> chosen);
  void ChooseVictims(size_t count);
  void MergeLoads(size_t n_loads);

  const ReplacementPolicy* policy_;
  uint64_t step_ = 0;
  std::vector<uint32_t> extents_;
  std::vector<uint64_t> loaded_at_;
  std::vector<uint64_t> used_at_;
  std::vector<uint32_t> by_extent_;  // slots, by ascending extent; free ones at the end
  std::vector<uint32_t> victims_;
  std::vector<uint32_t> slots_;
  std::vector<SlotLoad> loads_;
};

}  // namespace kvrun
