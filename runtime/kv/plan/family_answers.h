// What all code may ask of that part of a plan which is a family's own. Here is what holds where a family
// says nothing else: its part (groups_plan.h, ..) hides the answers that it gives itself, and KvPlan hands
// each question to the part that it has. So nobody else asks which family that is.
#pragma once

#include <cstdint>

#include "runtime/device/device.h"
#include "runtime/kv/plan/family_form.h"
#include "runtime/kv/plan/selection_plan.h"
#include "runtime/kv/plan/static_plan.h"

namespace kvrun {

struct KvPlan;

struct FamilyAnswers {
  // --- Extents of `plan`, which this is a part of. KvPlan's functions of the same names say what.
  uint32_t records_per_extent(const KvPlan& /*plan*/) const { return 1; }
  uint32_t n_extents(const KvPlan& plan) const;  // room of a stream
  uint32_t n_choosable(const KvPlan& plan) const;
  uint32_t EntriesOfSlots(const KvPlan& plan, uint32_t n_slots) const;
  uint32_t selected_entries(const KvPlan& plan) const;
  uint32_t sink_entries(const KvPlan& plan) const;

  // --- How a step chooses.
  CandidatePlan candidate_groups() const { return {}; }
  const ReadingPlan* decided_by() const { return nullptr; }  // null: reading has decided nothing
  // Groups that lie in the window's records for good have slots all the same: group i lies in slot i.
  bool exact_groups_have_slots() const { return false; }

  // --- The static set.
  StaticShare static_share() const { return {}; }
  uint32_t n_statics() const { return 0; }     // entries of a stream
  uint32_t most_statics() const { return 0; }  // however its precisions are shared out
  LaterPrompts prompts_after() const { return LaterPrompts::kExact; }
  uint32_t static_steps() const { return 0; }  // StaticPlan::steps, where there is a static set
  uint32_t n_total() const { return 0; }       // StaticPlan::n_total
  bool lays_pages() const { return false; }

  // --- Prompts.
  // At most so many rows are observed: how much attention they give to each entry is asked for.
  uint32_t most_observed() const { return 0; }
  bool observes_samples() const { return false; }  // some of all rows; else the last ones
  bool needs_queries() const { return false; }

  // --- Storage.
  void AddForm(FamilyForm* /*form*/) const {}          // what is stored, and by which options
  KvRecordShape lowered_record() const { return {}; }  // of entries whose precision was lowered
  bool has_rows_file() const { return false; }         // rows of the index lie in a file of their own
};

}  // namespace kvrun
