// Self-tests of kernels on an open device, each against a small computation on the CPU. For `doctor`.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "platform/base/status.h"
#include "platform/vulkan/device_plan.h"
#include "runtime/device/vulkan/compute_device.h"

namespace kvrun {

struct KernelCheck {
  std::string name;  // begins with the variants that run
  // On success a line of detail, else what is wrong.
  std::function<Result<std::string>(VulkanComputeDevice&)> run;
};

// Every variant that the plan can choose, at least once.
std::vector<KernelCheck> KernelChecks(const DevicePlan& plan, bool is_cpu);

// A product by the fast path of the plan, to know before it is first used whether subgroup operations
// compute.
Result<std::string> CheckSubgroups(VulkanComputeDevice& device);

}  // namespace kvrun
