// Prefill and decoding have few kernels in common: under a budget they are not both kept.
#pragma once

#include <cstdint>

#include "platform/base/status.h"
#include "runtime/device/device.h"
#include "runtime/kv/plan/kv_plan.h"

namespace kvrun {

// Before either begins: those of the other go. Nothing that was recorded may be left.
inline Status DropKernelsOfOtherPhase(Device& device, const KvPlan& plan) {
  return plan.budget.bytes != UINT64_MAX ? device.DropUnusedKernels() : Status::Ok();
}

}  // namespace kvrun
