// Which device is meant by --device, of Vulkan's and the CPU itself.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "platform/base/status.h"
#include "platform/vulkan/device_facts.h"
#include "runtime/device/open_device.h"

namespace kvrun {

struct AnyDeviceChoice {
  std::optional<size_t> vulkan;  // an index into Vulkan's devices; none: the CPU itself
  std::string note;              // something the user should know; may be empty
};

// `wanted`: "host" or "cpu"; "gpu" (the best real one, else an error); "" or "auto" (as SelectDevice chooses;
// the CPU itself where Vulkan has no GPU, as a driver for CPUs is several times slower); "vulkan"; an index,
// where the CPU comes after Vulkan's devices; or a part of a name in either case, Vulkan's first.
Result<AnyDeviceChoice> ChooseDevice(std::span<const DeviceFacts> vulkan, std::string_view cpu_name,
                                     std::string_view wanted);

// Of Vulkan's devices the one that SelectDevice takes for "auto", if it can be used. `changes`: what is not
// in its facts and changes how fast it is.
AutoCandidates ChooseCandidates(std::span<const DeviceFacts> vulkan, std::string_view changes);

// "A+host" or "A+cpu": two devices as one, of which A computes prompts and the CPU itself decodes. Answers A;
// nothing where `wanted` names one device; an error where it names another pair.
Result<std::optional<std::string>> PrefillDeviceOfPair(std::string_view wanted);
// A of such a pair: one of Vulkan's devices, as ChooseDevice understands it.
Result<AnyDeviceChoice> ChoosePrefillDevice(std::span<const DeviceFacts> vulkan, std::string_view cpu_name,
                                            std::string_view wanted);

}  // namespace kvrun
