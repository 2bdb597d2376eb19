// What is known of a plan before sizes are tried. Internal to the planner.
#pragma once

#include <cstdint>
#include <optional>

#include "runtime/kv/plan/kv_plan.h"
#include "runtime/kv/plan/kv_plan_input.h"

namespace kvrun {

// A row of the table in plan_kv.h.
struct PlanRow {
  double share;
  KvType k_type;
  KvType v_type;
  uint32_t sigma;
  KvType index_type;
  uint32_t window_entries;
};

// Of one method, which `options` names; options and model outlive it.
struct PlanDraft {
  const KvOptions& options;
  const KvModelShape& model;
  KvPlan plan = {};  // what does not depend on the sizes that are tried
  // Groups, or entries of a list; empty: as many as fit.
  std::optional<uint32_t> n_chosen = {};
  std::optional<uint32_t> n_cache_slots = {};
  uint32_t size = 0;  // of clusters on average, or of groups: what is tried (KvFamily::Sizes); 0: as usual
  bool leaves_statics_out = false;
  double reads_per_layer = 0.0;  // KvSlotPlan::reads_per_layer, of what is tried

  bool has_budget() const { return plan.budget.bytes != UINT64_MAX; }
  // What is open is how much is selected.
  bool fills_budget() const { return !n_chosen && !n_cache_slots; }
  bool adapts() const { return options.adapt.value_or(false); }
  // Nobody has said anything of the static set or of how much is selected.
  bool may_choose_statics() const {
    return has_budget() && plan.method.defaults.static_share_of_budget && !options.static_share &&
           !options.select_entries && !options.reuse_groups;
  }
};

}  // namespace kvrun
