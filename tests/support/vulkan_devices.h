// Every Vulkan device of this machine, for tests that need a driver; opened with validation, unless the
// environment says KVRUN_VALIDATION=0.
#pragma once

#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "platform/vulkan/device.h"
#include "platform/vulkan/instance.h"

namespace kvrun::testing {

// One instance with (synchronisation) validation for the whole test program; null without a loader.
std::shared_ptr<VulkanInstance> TestInstance();

// Facts clamped by KVRUN_DEVICE_CLAMP and then by `clamp`. Devices that cannot be planned are left out,
// with a line on stderr; an error in opening one aborts. `change` may change the plan that was made, and the
// facts that are kept with it.
std::vector<std::unique_ptr<VulkanDevice>> OpenTestDevices(
    std::string_view clamp = "", const std::function<void(DeviceFacts&, DevicePlan&)>& change = {});

}  // namespace kvrun::testing
