// The Vulkan devices of this machine, as found: facts already clamped by the environment.
#pragma once

#include <volk.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "platform/base/status.h"
#include "platform/vulkan/device_facts.h"
#include "platform/vulkan/instance.h"
#include "runtime/device/vulkan/compute_device.h"

namespace kvrun {

struct FoundDevices {
  std::shared_ptr<VulkanInstance> instance;
  std::vector<VkPhysicalDevice> handles;
  std::vector<DeviceFacts> facts;  // of each handle
};

// No Vulkan loader on the machine is kNotFound.
Result<FoundDevices> FindDevices(bool validation);
Result<std::unique_ptr<VulkanComputeDevice>> OpenFoundDevice(const FoundDevices& found, size_t index,
                                                             bool profile, std::string note);
// The same, without subgroup operations where `check` finds that they miscalculate; a note says so.
using DeviceCheck = std::function<Result<std::string>(VulkanComputeDevice&)>;
Result<std::unique_ptr<VulkanComputeDevice>> OpenCheckedDevice(const FoundDevices& found, size_t index,
                                                               bool profile, const std::string& note,
                                                               const DeviceCheck& check);

}  // namespace kvrun
