// What is told of a plan that selects as much as flash has time for (KvPlan::reading). Internal to
// kv_plan.cc.
#pragma once

#include <string>

#include "runtime/kv/plan/kv_plan.h"

namespace kvrun {

// Why it is no more, as the plan's line goes on.
std::string DescribeReading(const KvPlan& plan);
// What was selected and why, with the options that make the same plan.
std::string NoteOfReading(const KvPlan& plan);
// The options that make the same plan on any machine, as on the command line: what --kv-hide chose, and the
// types and sizes that the budget did.
std::string SameAgain(const KvPlan& plan);

}  // namespace kvrun
