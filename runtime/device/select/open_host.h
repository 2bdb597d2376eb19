// The CPU as the device that a name means, and what opening any device begins with.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "platform/base/status.h"
#include "runtime/device/check_up.h"
#include "runtime/device/host/host_device.h"
#include "runtime/device/open_device.h"

namespace kvrun {

std::string LowerCase(std::string_view text);
// "host" or "cpu" (in either case): the CPU. Then nothing else needs to be looked for.
bool IsHostName(std::string_view wanted);
// A part of the CPU's name, in either case. Digits are in every CPU's name: an index that is not there is
// none.
bool IsPartOfCpuName(std::string_view wanted, std::string_view cpu_name);

Status CheckOptions(const OpenDeviceOptions& options);
Result<std::unique_ptr<host::HostDevice>> CreateHost(const OpenDeviceOptions& options, std::string note);
Result<std::unique_ptr<Device>> OpenHost(const OpenDeviceOptions& options, std::string note);
// The CPU's part of what "auto" chooses from.
AutoCandidates HostCandidates(const OpenDeviceOptions& options);
// limit_s: as RunDoctor; 0: none.
Result<std::vector<DoctorReport>> RunCheckUps(const std::vector<CheckUp>& check_ups,
                                              const std::function<bool(size_t, size_t)>& progress,
                                              double limit_s);

}  // namespace kvrun
