// Which device is meant by --device.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "platform/base/status.h"
#include "platform/vulkan/device_facts.h"

namespace kvrun {

struct DeviceChoice {
  size_t index = 0;
  std::string note;  // something the user should know, such as that it is a CPU driver; may be empty
};

// `wanted`: "", "auto" or "vulkan" (a discrete GPU, else integrated, virtual, and a CPU driver only if it
// is the only kind there is), an index into `devices`, or a part of a name in either case.
Result<DeviceChoice> SelectDevice(std::span<const DeviceFacts> devices, std::string_view wanted);

}  // namespace kvrun
