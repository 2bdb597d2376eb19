// How a method's index is asked which groups rows of tokens attend to.
#pragma once

#include <cstdint>

#include "runtime/device/device.h"
#include "runtime/engine/pass/step_commands.h"
#include "runtime/kv/contracts/kv_index.h"
#include "runtime/kv/plan/kv_plan.h"

namespace kvrun {

// Where a choice ends, and what comes with it, in decode steps of a layer: of a plan, which has no two things
// that exclude each other. An index may have a rule of its own (KvIndex::FillScore).
ChoiceRule DecodeRule(const KvPlan& plan, uint32_t layer);
// As many as the plan says, with their scores: for choices that are put together.
ChoiceRule ScoredRule(const KvPlan& plan);

// `layer`: of those that keep growing KV. `place`: of the rows' inputs. Query, scratch and chosen are the
// caller's to fill in.
ScoreArgs LayerScore(const StepCommands& commands, const KvPlan& plan, const KvIndex& index, uint32_t layer,
                     uint32_t n_rows, const ChoiceRule& rule, const StepPlace& place);

}  // namespace kvrun
