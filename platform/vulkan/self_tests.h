// What only the user's own device can show: each test really does it, on a few KiB. For `doctor`, and for
// choosing how flash reads reach the device.
#pragma once

#include <string>

#include "platform/base/status.h"
#include "platform/vulkan/device.h"

namespace kvrun {

// On success a line of detail. kUnsupported: not there, and another way is used; any other code: broken.

// Host memory imported, read and written by the device, compared.
Result<std::string> TestMemoryImport(const VulkanDevice& device);

// A file in `folder` read by O_DIRECT straight into mapped memory of MemoryKind::kShared, read from there by
// the device, compared.
Result<std::string> TestDirectReadIntoMapped(const VulkanDevice& device, const std::string& folder);

// The device waits for the host and the host for the device, by what the plan chose.
Result<std::string> TestTimeline(const VulkanDevice& device);

}  // namespace kvrun
