// From what a user says and a model's shape to a plan (kv_plan.h says by which rules).
#pragma once

#include <cstdint>

#include "platform/base/status.h"
#include "runtime/kv/plan/kv_plan.h"

namespace kvrun {

// True where PlanKv takes the method full whatever the flash is like. False too where it refuses.
bool IsSurelyResident(const KvOptions& options, const KvModelShape& model, uint32_t n_ctx,
                      uint32_t n_sequences);

// `io_alignment_bytes`: a power of two; 1 in buffered mode. A budget that cannot hold is kOutOfMemory, with
// what is needed by part, the smallest budget that could, and how many entries would fit. Options that
// contradict each other or the method are kInvalidArgument.
Result<KvPlan> PlanKv(const KvOptions& options, const KvModelShape& model, uint32_t n_ctx,
                      uint32_t n_sequences, uint32_t io_alignment_bytes);

}  // namespace kvrun
