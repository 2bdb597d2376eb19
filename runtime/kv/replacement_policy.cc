// The replacement policies: a function each, and a row of the table.
#include <fmt/format.h>

#include <array>
#include <string>

#include "runtime/kv/slot_cache.h"

namespace kvrun {
namespace {

// The paper's text: what was loaded first goes first, used or not.
bool LoadedEarlier(const SlotView& view, uint32_t a, uint32_t b) {
  return view.loaded_at[a] < view.loaded_at[b];
}

bool UsedEarlier(const SlotView& view, uint32_t a, uint32_t b) { return view.used_at[a] < view.used_at[b]; }

// With as many slots as chosen extents, all that are not hit go: their order is that of the slots.
bool AnyOrder(const SlotView& /*view*/, uint32_t /*a*/, uint32_t /*b*/) { return false; }

// What was chosen least often of late.
bool ChosenLess(const SlotView& view, uint32_t a, uint32_t b) {
  return view.frequency[view.extents[a]] < view.frequency[view.extents[b]];
}

constexpr std::array kPolicies = {
    ReplacementPolicy{"fifo", LoadedEarlier},
    ReplacementPolicy{"lru", UsedEarlier},
    ReplacementPolicy{"non-hit", AnyOrder, /*needs_equal_capacity=*/true},
    ReplacementPolicy{"lfu", ChosenLess, /*needs_equal_capacity=*/false, /*goes_by_frequency=*/true},
};

}  // namespace

std::span<const ReplacementPolicy> ReplacementPolicies() { return kPolicies; }

Result<const ReplacementPolicy*> FindReplacementPolicy(std::string_view name) {
  std::string known;
  for (const ReplacementPolicy& policy : kPolicies) {
    if (policy.name == name) return &policy;
    if (!known.empty()) known += ", ";
    known += policy.name;
  }
  return Status(StatusCode::kInvalidArgument,
                fmt::format("unknown replacement policy '{}'; known: {}", name, known));
}

}  // namespace kvrun
