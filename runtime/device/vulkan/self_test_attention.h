// The self-tests of rope_store, attention and combine_splits.
#pragma once

#include "runtime/device/vulkan/self_test.h"

namespace kvrun {

void AddAttentionChecks(const DevicePlan& plan, bool is_cpu, std::vector<KernelCheck>& checks);

}  // namespace kvrun
