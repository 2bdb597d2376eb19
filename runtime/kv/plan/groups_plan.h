// What a plan has of methods whose extents are groups on flash.
#pragma once

#include <cstdint>
#include <optional>

#include "runtime/kv/plan/family_answers.h"
#include "runtime/kv/plan/selection_plan.h"
#include "runtime/kv/plan/static_plan.h"

namespace kvrun {

struct GroupsPlan : FamilyAnswers {
  StaticPlan statics;
  LaterPrompts later_prompts = LaterPrompts::kExact;
  CandidatePlan candidates;
  std::optional<ReadingPlan> reading;  // where it has decided M and C

  CandidatePlan candidate_groups() const { return candidates; }
  const ReadingPlan* decided_by() const { return reading ? &*reading : nullptr; }
  LaterPrompts prompts_after() const { return later_prompts; }
  StaticShare static_share() const { return statics.share; }
  uint32_t n_statics() const { return statics.n_entries; }
  uint32_t most_statics() const { return statics.most_entries; }
  uint32_t static_steps() const { return statics.n_entries > 0 ? statics.steps : 0; }
  uint32_t n_total() const { return statics.n_total; }
  bool lays_pages() const { return n_statics() > 0 && statics.lays_pages; }
  uint32_t most_observed() const { return statics.observed_rows; }
  bool needs_queries() const { return statics.observed_rows > 0; }
  KvRecordShape lowered_record() const { return statics.low_record; }
  void AddForm(FamilyForm* form) const;
};

}  // namespace kvrun
