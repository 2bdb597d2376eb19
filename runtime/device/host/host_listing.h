// The CPU in a list of devices.
#pragma once

#include <cstdint>

#include "runtime/device/open_device.h"

namespace kvrun::host {

DeviceListing ListHostDevice(uint32_t index);

}  // namespace kvrun::host
