// The replacement policies: a function each, and a row of the table.
#include <fmt/format.h>

#include <array>
#include <bit>
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

bool IsReserved(const SlotView& view, uint32_t slot) {
  return !view.touched_at.empty() && view.touched_at[slot] > view.reserved_after;
}

// Steps since its last use, in classes that double: what lies within one was used at about the same time.
uint32_t AgeClass(const SlotView& view, uint32_t slot) {
  return static_cast<uint32_t>(std::bit_width(view.step - view.used_at[slot]));
}

// What has not changed of late, then what was used in an older class of time, then what belongs to a larger
// cluster, then what was used earlier. Source: DynaKV, section 6.2.
bool OldThenLarge(const SlotView& view, uint32_t a, uint32_t b) {
  const bool a_is_reserved = IsReserved(view, a);
  if (a_is_reserved != IsReserved(view, b)) return !a_is_reserved;
  const uint32_t age_a = AgeClass(view, a);
  const uint32_t age_b = AgeClass(view, b);
  if (age_a != age_b) return age_a > age_b;
  if (!view.weights.empty() && view.weights[a] != view.weights[b]) return view.weights[a] > view.weights[b];
  return UsedEarlier(view, a, b);
}

constexpr std::array kPolicies = {
    ReplacementPolicy{"fifo", LoadedEarlier},
    ReplacementPolicy{"lru", UsedEarlier},
    ReplacementPolicy{"non-hit", AnyOrder, /*needs_equal_capacity=*/true},
    ReplacementPolicy{"lfu", ChosenLess, /*needs_equal_capacity=*/false, /*goes_by_frequency=*/true},
    ReplacementPolicy{"cluster", OldThenLarge, /*needs_equal_capacity=*/false, /*goes_by_frequency=*/false,
                      /*goes_by_changes=*/true},
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
