// The Vulkan devices of this machine, as found: facts already clamped by the environment. Drivers that crash
// or hang are left out: docs/devices.md.
#pragma once

#include <volk.h>

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "platform/base/status.h"
#include "platform/vulkan/device_facts.h"
#include "platform/vulkan/driver_trials.h"
#include "platform/vulkan/instance.h"
#include "runtime/device/check_up.h"
#include "runtime/device/open_device.h"
#include "runtime/device/vulkan/compute_device.h"

namespace kvrun {

struct FoundDevices {
  std::shared_ptr<VulkanInstance> instance;  // null, and no handles, where they were only looked for
  std::vector<VkPhysicalDevice> handles;
  std::vector<DeviceFacts> facts;       // of each device
  std::vector<DriverFile> drivers;      // that were asked
  std::vector<LeftOutDriver> left_out;  // the others
};

// No Vulkan loader or driver on the machine is kNotFound; kCancelled if a user's signal ended a trial.
// Drivers are opened in this process.
Result<FoundDevices> FindDevices(bool validation);
// The same for who wants to know facts alone: drivers are opened in a process of its own where that can be,
// so that no crash reaches this one.
Result<FoundDevices> LookForDevices(bool validation);
std::vector<DeviceListing> ListFoundDevices(const FoundDevices& found);

// Of `work` with the device `index`, which opens it: apart where that can be, with a note that a trial is in
// progress. Where the driver crashes or hangs (`limit_s`) it is left out from now on, and the status says so.
// `doing` completes "it crashed while kvrun ...".
Result<std::string> TryDevice(const FoundDevices& found, size_t index, const std::string& doing,
                              const std::function<Result<std::string>()>& work,
                              const std::function<bool()>& is_cancelled, double limit_s);
// Whether a device of its driver was opened before and has computed, here or in a trial.
bool WasOpened(const FoundDevices& found, size_t index);
// Whether there is a driver with devices of which this is not known.
bool HasUnopenedDriver();

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
