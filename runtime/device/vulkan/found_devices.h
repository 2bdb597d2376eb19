// The Vulkan devices of this machine, as found: facts already clamped by the environment.
#pragma once

#include <volk.h>

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "platform/base/status.h"
#include "platform/vulkan/device_facts.h"
#include "platform/vulkan/instance.h"
#include "runtime/device/check_up.h"
#include "runtime/device/open_device.h"
#include "runtime/device/vulkan/compute_device.h"

namespace kvrun {

struct FoundDevices {
  std::shared_ptr<VulkanInstance> instance;
  std::vector<VkPhysicalDevice> handles;
  std::vector<DeviceFacts> facts;  // of each handle
};

// No Vulkan loader or driver on the machine is kNotFound.
Result<FoundDevices> FindDevices(bool validation);
std::vector<DeviceListing> ListFoundDevices(const FoundDevices& found);
Result<std::unique_ptr<VulkanComputeDevice>> OpenFoundDevice(const FoundDevices& found, size_t index,
                                                             bool profile, std::string note);
// The same, without subgroup operations where `check` finds that they miscalculate; a note says so.
using DeviceCheck = std::function<Result<std::string>(VulkanComputeDevice&)>;
Result<std::unique_ptr<VulkanComputeDevice>> OpenCheckedDevice(const FoundDevices& found, size_t index,
                                                               bool profile, const std::string& note,
                                                               const DeviceCheck& check);
// Every self-test of one device. `found` outlives what is planned.
CheckUp PlanCheckUp(const FoundDevices& found, size_t index);

}  // namespace kvrun
