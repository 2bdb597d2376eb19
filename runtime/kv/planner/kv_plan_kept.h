// What methods that evict take of a budget. Internal to the planner. Bytes are those of all layers and
// sequences together.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/kv/math/keep_rule.h"
#include "runtime/kv/plan/kv_plan.h"
#include "runtime/kv/planner/kv_plan_sizes.h"

namespace kvrun {

// n entries stay in each list, on average.
void SetKept(uint32_t n, KvPlan& plan);
// As SizeParts, of a plan whose method evicts.
void SizeKeptParts(const KvSizeInput& input, KvPlan& plan);

// In prefill: the rows whose attention says what stays in memory (KvPlan::observed_rows).
uint64_t ObservedRowBytes(const KvSizeInput& input, const KvPlan& plan);
// In prefill, when a layer is computed: what its entries have received, and those of a list that stay.
uint64_t KeptPromptBytes(const KvSizeInput& input, const KvPlan& plan);
// What DescribePlan says of it.
std::string DescribeKept(const KvPlan& plan);

}  // namespace kvrun
