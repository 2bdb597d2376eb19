#include "runtime/kv/plan/family_answers.h"

#include <algorithm>

#include "runtime/kv/plan/kv_plan.h"

namespace kvrun {

uint32_t FamilyAnswers::n_extents(const KvPlan& plan) const { return plan.n_groups(); }

uint32_t FamilyAnswers::n_choosable(const KvPlan& plan) const { return plan.n_groups(); }

uint32_t FamilyAnswers::EntriesOfSlots(const KvPlan& plan, uint32_t n_slots) const {
  return static_cast<uint32_t>(
      std::min<uint64_t>(uint64_t{n_slots} * plan.slots.record.group_tokens, plan.n_ctx));
}

uint32_t FamilyAnswers::selected_entries(const KvPlan& plan) const {
  return (plan.choice.n_chosen - plan.choice.n_pinned) * plan.record.group_tokens + plan.n_statics();
}

uint32_t FamilyAnswers::sink_entries(const KvPlan& plan) const {
  return plan.choice.n_pinned * plan.record.group_tokens;
}

}  // namespace kvrun
