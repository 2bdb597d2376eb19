// The self-tests of the operations on the index.
#pragma once

#include "runtime/device/vulkan/self_test.h"

namespace kvrun {

void AddIndexChecks(const DevicePlan& plan, bool is_cpu, std::vector<KernelCheck>& checks);

}  // namespace kvrun
