// The replacement policies: a function each, and a row of the table.
#include <fmt/format.h>

#include <array>
#include <string>

#include "runtime/kv/math/slot_cache.h"

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
  return view.FrequencyOf(a) < view.FrequencyOf(b);
}

bool IsReserved(const SlotView& view, uint32_t slot) {
  return !view.touched_at.empty() && view.touched_at[slot] > view.reserved_after;
}

// What frequency says a slot is worth, by the size of the cluster that its record belongs to: the fourth root
// of this.
uint64_t FrequencyToTheFourth(const SlotView& view, uint32_t slot) {
  const uint64_t square = uint64_t{view.FrequencyOf(slot)} * view.FrequencyOf(slot);
  return square * square;  // less than 2^32
}

uint64_t WeightOf(const SlotView& view, uint32_t slot) {
  return view.weights.empty() ? 1 : view.weights[slot];
}

// What has not changed of late, then the least frequency^4 / records: what was chosen less often of late, a
// large cluster before a small one. Then what was used earlier. Of equals the later cluster, record by
// record, so that a cluster goes or stays whole: one that lacks a record is read whole. Source: DynaKV,
// section 6.2, but for the frequency; docs/decisions/clusters.md has the figures.
bool SeldomThenLarge(const SlotView& view, uint32_t a, uint32_t b) {
  const bool a_is_reserved = IsReserved(view, a);
  if (a_is_reserved != IsReserved(view, b)) return !a_is_reserved;
  const uint64_t worth_a = FrequencyToTheFourth(view, a) * WeightOf(view, b);
  const uint64_t worth_b = FrequencyToTheFourth(view, b) * WeightOf(view, a);
  if (worth_a != worth_b) return worth_a < worth_b;
  if (view.used_at[a] != view.used_at[b]) return UsedEarlier(view, a, b);
  return view.extents[a] > view.extents[b];
}

constexpr std::array kPolicies = {
    ReplacementPolicy{"fifo", LoadedEarlier},
    ReplacementPolicy{"lru", UsedEarlier},
    ReplacementPolicy{"non-hit", AnyOrder, /*needs_equal_capacity=*/true},
    ReplacementPolicy{"lfu", ChosenLess, /*needs_equal_capacity=*/false, /*goes_by_frequency=*/true},
    ReplacementPolicy{"cluster", SeldomThenLarge, /*needs_equal_capacity=*/false, /*goes_by_frequency=*/true,
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
