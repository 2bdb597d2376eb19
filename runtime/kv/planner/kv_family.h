// A family of methods, as the planner sees it: what it settles, what it takes of a budget, and how it is
// described. The planner searches over what a family offers, and does not ask which one it is.
//
//   resident   full: all KV in memory
//   groups     kvswap, flexgen, prkv, streaming, ..: groups of consecutive entries on flash
//   clusters   dynakv: clusters of entries on flash
//   kept       arkv, h2o, snapkv, ..: as many entries as there is room for; the others are gone
//
// Stateless; one object each, for all threads.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "platform/base/status.h"
#include "runtime/kv/plan/kv_plan.h"
#include "runtime/kv/plan/kv_plan_input.h"
#include "runtime/kv/planner/kv_plan_sizes.h"
#include "runtime/kv/planner/plan_draft.h"

namespace kvrun {

class KvFamily {
 public:
  virtual ~KvFamily() = default;

  // Makes the plan's part that is the family's own, with nothing settled.
  virtual void Begin(KvPlan& plan) const = 0;

  // --- Options.
  // Beyond what the table of options says of methods.
  virtual Status CheckOptions(const KvOptions& /*options*/) const { return Status::Ok(); }

  // --- Before sizes are tried.
  // PlanDraft::size: those that are tried, one after another: larger ones leave more of a small budget.
  virtual std::vector<uint32_t> Sizes(const PlanDraft& draft) const;
  // Sets the shape of records and extents, what is pinned, and what of M and C is given.
  virtual Status Settle(PlanDraft& draft) const = 0;

  // --- How much.
  // M for so many entries.
  virtual uint32_t SlotsOf(const KvPlan& plan, uint32_t entries) const = 0;
  // A selection of fewer entries misses too much; and the smallest M that is tried.
  virtual uint32_t LeastEntries(const PlanDraft& draft) const = 0;
  virtual uint32_t LeastChosen(const PlanDraft& draft) const = 0;
  // The number of entries can be said, and could be less.
  virtual bool counts_entries(const KvPlan& /*plan*/) const { return true; }
  // A step attends to a part of what is on flash; else everything that is there is attended to.
  virtual bool selects_from_flash() const { return true; }
  // A budget is filled with recent entries.
  virtual bool fills_window(const PlanDraft& /*draft*/) const { return false; }
  // Few extents miss so much that more are read through the pool.
  virtual bool pools_small_selections() const { return false; }
  // There can be no pool.
  virtual bool needs_equal_capacity(const KvPlan& /*plan*/) const { return false; }
  // Of M extents, those that are chosen in a step: the others are a static set's.
  virtual uint32_t ChosenOf(const KvPlan& /*plan*/, uint32_t n_total) const { return n_total; }

  // --- A plan of given sizes.
  // The types of a row are not taken: what is stored is exact.
  virtual bool is_exact(const KvPlan& /*plan*/) const { return false; }
  // From the row; records and window are there.
  virtual void ShapeIndex(const PlanDraft& /*draft*/, const PlanRow& /*row*/, KvPlan& /*plan*/) const {}
  virtual void SetCounts(const PlanDraft& draft, uint32_t n_chosen, uint32_t n_cache_slots,
                         KvPlan& plan) const = 0;
  // KvWindowPlan::n_exact_groups and n_exact_chosen, of rotated records.
  virtual void SetExactGroups(KvPlan& plan) const = 0;

  // --- Bytes, of all layers and sequences.
  // There is a file; prompts may put tiles and hidden states there.
  virtual bool has_file() const { return true; }
  // Sets every part but "prefill".
  virtual void SizeParts(const KvSizeInput& input, KvPlan& plan) const = 0;
  // In prefill, of one sequence, beside tiles, hidden states and encoded records: all the time; when a layer
  // is computed; and while it is, for earlier entries that are read.
  virtual uint64_t PromptBytes(const KvSizeInput& /*input*/, const KvPlan& /*plan*/) const { return 0; }
  virtual uint64_t LayerEndBytes(const KvSizeInput& /*input*/, const KvPlan& /*plan*/) const { return 0; }
  virtual uint64_t ImageBytes(const KvPlan& /*plan*/) const { return 0; }
  // Of the projections of a prompt's keys; 0: they are not projected.
  virtual uint32_t projected_columns(const KvPlan& /*plan*/) const { return 0; }

  // --- Words.
  // DescribePlan's, after what all methods have in common.
  virtual std::string Describe(const KvPlan& plan) const = 0;
  // "select at most N entries": what would fit.
  virtual std::string AdviseLess(const PlanDraft& draft, const KvPlan& most) const;
};

const KvFamily& FamilyOf(const KvMethod& method);

// One of each; FamilyOf chooses.
const KvFamily& ResidentFamily();
const KvFamily& GroupsFamily();
const KvFamily& ClustersFamily();
const KvFamily& KeptFamily();

}  // namespace kvrun
