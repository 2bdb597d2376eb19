// A plan in words.
#pragma once

#include <string>

#include "runtime/kv/plan/kv_plan.h"

namespace kvrun {

// One line: what the budget buys.
std::string DescribePlan(const KvPlan& plan);

// Parts of it, for families. Of what is on flash; `extents` says in which units it is chosen.
std::string DescribeOnFlash(const KvPlan& plan, const std::string& extents);
// Of an index: how scores are made of it.
std::string DescribeScores(const KvPlan& plan);
std::string DescribePrefill(const KvPlan& plan);

}  // namespace kvrun
