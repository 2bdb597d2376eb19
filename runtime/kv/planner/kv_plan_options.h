// What PlanKv checks before it plans, and the words of its messages. Internal to the planner.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "platform/base/status.h"
#include "runtime/kv/plan/kv_plan.h"
#include "runtime/kv/plan/kv_plan_input.h"

namespace kvrun {

std::string BytesText(uint64_t bytes);  // "3.2 MiB (3371008 bytes)"

// Nothing computed from sizes that pass overflows 64 bits, nor a count 32.
Status CheckSizes(const KvModelShape& model, uint32_t n_ctx, uint32_t n_sequences);
// Each option alone, and with the method.
Status CheckKvOptions(const KvOptions& options, const KvModelShape& model);
// How extents are chosen, and M, where given. `plan` holds group, pinned groups and policy.
Status CheckChoice(const KvOptions& options, const KvPlan& plan, std::optional<uint32_t> n_chosen);
// M and C, where given, with each other, the policy and reads.
Status CheckCounts(const KvOptions& options, const KvPlan& plan, std::optional<uint32_t> n_chosen,
                   std::optional<uint32_t> n_cache_slots);
// UINT64_MAX: none was given.
uint64_t KvBudgetBytes(const KvOptions& options, uint64_t full_bytes);

}  // namespace kvrun
