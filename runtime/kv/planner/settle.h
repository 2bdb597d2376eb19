// What families settle alike. Internal to the planner.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "platform/base/status.h"
#include "runtime/kv/planner/plan_draft.h"

namespace kvrun {

inline constexpr uint32_t kWholeGroupTokens = 16;  // where nothing is selected
inline constexpr uint32_t kPaperEntries = 400;     // a usual selection
inline constexpr uint32_t kSinkEntries = 4;        // where no number is given

// The group's size, its heads, and the streams. `is_selected`: a part is chosen. `tried_tokens`: of a group,
// where none is given; 0: as usual.
void SettleRecord(bool is_selected, uint32_t tried_tokens, PlanDraft& draft);
// What of a choice options and method say: the kind of adapter, policy, score. `usual_policy`: where none is
// given.
void SettleChoice(uint32_t sinks, std::string_view usual_policy, PlanDraft& draft);
// Entries that a method pins, where they are said or not.
uint32_t SinksOf(const PlanDraft& draft);
// Groups of the usual sinks, where all are attended to.
uint32_t UsualSinkGroups(const KvPlan& plan);
// M and C of entries and slots that are given, of a method that can count them.
void SettleCounts(uint32_t n_extents, PlanDraft& draft);
// Of an own choice, entries that do not miss too much.
uint32_t LeastSelected(const PlanDraft& draft);
// M and C of a plan on flash, and of layers that have more than others; `n_chosen` is what is chosen.
void SetSlots(const PlanDraft& draft, uint32_t n_chosen, uint32_t n_cache_slots, KvPlan& plan);
}  // namespace kvrun
