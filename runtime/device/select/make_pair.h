// A Vulkan device and the CPU as one device.
#pragma once

#include <cstdint>
#include <memory>

#include "platform/base/status.h"
#include "runtime/device/device.h"
#include "runtime/device/host/host_device.h"
#include "runtime/device/pair/pair_device.h"
#include "runtime/device/vulkan/compute_device.h"

namespace kvrun {

// kUnsupported where the Vulkan device has no memory that the CPU reads through its caches.
Result<std::unique_ptr<Device>> MakePair(std::unique_ptr<VulkanComputeDevice> prefill,
                                         std::unique_ptr<host::HostDevice> decode,
                                         uint32_t max_decode_rows = pair::kMaxDecodeRows);

}  // namespace kvrun
