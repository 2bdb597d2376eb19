// What a plan has of full.
#pragma once

#include "runtime/kv/plan/family_answers.h"

namespace kvrun {

// Nothing is chosen, and all groups have slots.
struct ResidentPlan : FamilyAnswers {
  bool exact_groups_have_slots() const { return true; }
};

}  // namespace kvrun
