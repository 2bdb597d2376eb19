// The self-tests of the operations on KV records.
#pragma once

#include "runtime/device/vulkan/self_test.h"

namespace kvrun {

void AddSlotChecks(const DevicePlan& plan, bool is_cpu, std::vector<KernelCheck>& checks);

}  // namespace kvrun
