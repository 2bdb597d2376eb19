// Reads DeviceFacts from a driver.
#pragma once

#include <volk.h>

#include "platform/vulkan/device_facts.h"

namespace kvrun {

// Never fails on what is missing: a device below Vulkan 1.1 yields its 1.0 facts only.
Result<DeviceFacts> QueryDeviceFacts(VkPhysicalDevice device);

}  // namespace kvrun
