// In the place of open_device.cc where kvrun is built without Vulkan (KVRUN_VULKAN=OFF): the CPU is all there
// is.
#include <fmt/format.h>

#include <string>
#include <string_view>

#include "platform/io/cpu_name.h"
#include "runtime/device/host/doctor.h"
#include "runtime/device/host/host_listing.h"
#include "runtime/device/open_device.h"
#include "runtime/device/select/open_host.h"

namespace kvrun {
namespace {

Status CheckName(std::string_view wanted) {
  if (IsHostName(wanted) || IsAutoName(wanted) || wanted == "0") return Status::Ok();
  const std::string name = LowerCase(wanted);
  if (name == "vulkan" || name == "gpu" || name.find('+') != std::string::npos) {
    return {
        StatusCode::kUnsupported,
        fmt::format("\"{}\" needs Vulkan, and this kvrun was built without it (KVRUN_VULKAN=OFF): compute "
                    "on the CPU with --device cpu, or build with -DKVRUN_VULKAN=ON",
                    wanted)};
  }
  const std::string cpu_name = CpuName();
  if (IsPartOfCpuName(wanted, cpu_name)) return Status::Ok();
  return {StatusCode::kNotFound,
          fmt::format("no device is named \"{}\"; this kvrun was built without Vulkan, and has 0: {} (cpu)",
                      wanted, cpu_name)};
}

std::string NoteFor(std::string_view wanted) {
  return IsAutoName(wanted) ? "this kvrun was built without Vulkan; computing on the CPU itself" : "";
}

}  // namespace

Result<AutoCandidates> FindAutoCandidates(const OpenDeviceOptions& options) {
  KVRUN_RETURN_IF_ERROR(CheckOptions(options));
  return HostCandidates(options);
}

Result<std::vector<DeviceListing>> ListDevices(std::vector<LeftOutListing>* /*left_out*/) {
  return std::vector<DeviceListing>{host::ListHostDevice(0)};
}

Result<std::unique_ptr<Device>> OpenDevice(const OpenDeviceOptions& options) {
  KVRUN_RETURN_IF_ERROR(CheckOptions(options));
  KVRUN_RETURN_IF_ERROR(CheckName(options.device));
  return OpenHost(options, NoteFor(options.device));
}

Result<std::string> TryOnDevice(const OpenDeviceOptions& options, const std::string& /*doing*/,
                                const DeviceWork& work, const std::function<bool()>& is_cancelled) {
  KVRUN_ASSIGN_OR_RETURN(const std::unique_ptr<Device> device, OpenDevice(options));
  return work(*device, is_cancelled);
}

void InterruptDriverTrials() {}

void RetryLeftOutDrivers() {}

Result<std::vector<DoctorReport>> RunDoctor(const std::string& device,
                                            const std::function<bool(size_t, size_t)>& progress,
                                            double limit_s) {
  KVRUN_RETURN_IF_ERROR(CheckName(device));
  return RunCheckUps({host::PlanCheckUp(NoteFor(device))}, progress, limit_s);
}

}  // namespace kvrun
