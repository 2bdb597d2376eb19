// A plan in words.
#pragma once

#include <string>

#include "runtime/kv/plan/kv_plan.h"

namespace kvrun {

// One line: what the budget buys.
std::string DescribePlan(const KvPlan& plan);

}  // namespace kvrun
