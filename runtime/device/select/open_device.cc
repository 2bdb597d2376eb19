#include "runtime/device/open_device.h"

#include <fmt/format.h>

#include <cstdlib>
#include <optional>
#include <string>
#include <utility>

#include "platform/io/cpu_name.h"
#include "platform/vulkan/instance.h"
#include "runtime/device/check_up.h"
#include "runtime/device/host/doctor.h"
#include "runtime/device/host/host_cores.h"
#include "runtime/device/host/host_device.h"
#include "runtime/device/host/host_listing.h"
#include "runtime/device/select/choose_device.h"
#include "runtime/device/select/make_pair.h"
#include "runtime/device/vulkan/found_devices.h"
#include "runtime/device/vulkan/self_test.h"

namespace kvrun {
namespace {

Status CheckOptions(const OpenDeviceOptions& options) {
  if (options.n_threads <= kMaxThreads) return Status::Ok();
  return {StatusCode::kInvalidArgument,
          fmt::format("{} threads: there can be at most {}", options.n_threads, kMaxThreads)};
}

// Of what was found, or of nothing where Vulkan is not there.
Result<AnyDeviceChoice> Choose(const Result<FoundDevices>& found, const std::string& wanted) {
  const std::string cpu = CpuName();
  if (found.ok()) return ChooseDevice(found->facts, cpu, wanted);
  if (found.status().code() != StatusCode::kNotFound) return found.status();
  if (wanted == "vulkan") return found.status();
  return ChooseDevice({}, cpu, wanted);
}

Result<std::unique_ptr<host::HostDevice>> CreateHost(const OpenDeviceOptions& options, std::string note) {
  return host::HostDevice::Create({.n_threads = options.n_threads,
                                   .exact_activations = options.exact_activations,
                                   .profile = options.profile,
                                   .note = std::move(note)});
}

Result<std::unique_ptr<Device>> OpenHost(const OpenDeviceOptions& options, std::string note) {
  KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<host::HostDevice> device, CreateHost(options, std::move(note)));
  return std::unique_ptr<Device>(std::move(device));
}

// What slows a Vulkan device down or takes kernels from it, beyond its driver.
std::string ChangesByEnvironment(bool validation) {
  const char* clamp = std::getenv("KVRUN_DEVICE_CLAMP");
  std::string changes = clamp == nullptr || *clamp == '\0' ? "" : fmt::format("clamped to {}", clamp);
  if (validation || InstanceOptions::FromEnvironment().validation) changes += " validated";
  return changes;
}

Result<std::unique_ptr<VulkanComputeDevice>> OpenVulkan(const FoundDevices& found,
                                                        const AnyDeviceChoice& choice,
                                                        const OpenDeviceOptions& options) {
  return OpenCheckedDevice(found, *choice.vulkan, options.profile, choice.note, CheckSubgroups);
}

// What `prefill` names, and the CPU.
Result<std::unique_ptr<Device>> OpenPair(const std::string& prefill, const OpenDeviceOptions& options) {
  KVRUN_ASSIGN_OR_RETURN(const FoundDevices found, FindDevices(options.validation));
  KVRUN_ASSIGN_OR_RETURN(const AnyDeviceChoice choice, ChoosePrefillDevice(found.facts, CpuName(), prefill));
  KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<VulkanComputeDevice> vulkan, OpenVulkan(found, choice, options));
  KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<host::HostDevice> host, CreateHost(options, ""));
  return MakePair(std::move(vulkan), std::move(host));
}

Result<std::vector<DoctorReport>> RunCheckUps(const std::vector<CheckUp>& check_ups,
                                              const std::function<bool(size_t, size_t)>& progress) {
  size_t done = 0;
  size_t total = 0;
  for (const CheckUp& check_up : check_ups) total += check_up.n_tests;
  const auto tick = [&]() -> Status {
    ++done;
    if (progress && progress(done, total)) return {StatusCode::kCancelled, "the self-tests were cancelled"};
    return Status::Ok();
  };
  std::vector<DoctorReport> reports;
  for (const CheckUp& check_up : check_ups) {
    KVRUN_ASSIGN_OR_RETURN(DoctorReport report, check_up.run(tick));
    reports.push_back(std::move(report));
  }
  return reports;
}

}  // namespace

Result<AutoCandidates> FindAutoCandidates(const OpenDeviceOptions& options) {
  KVRUN_RETURN_IF_ERROR(CheckOptions(options));
  const Result<FoundDevices> found = FindDevices(options.validation);
  if (!found.ok() && found.status().code() != StatusCode::kNotFound) return found.status();
  AutoCandidates candidates;
  if (found.ok()) candidates = ChooseCandidates(found->facts, ChangesByEnvironment(options.validation));
  candidates.cpu_name = CpuName();
  candidates.n_threads =
      options.n_threads != 0 ? options.n_threads : static_cast<uint32_t>(host::PerformanceCores().size());
  return candidates;
}

Result<std::vector<DeviceListing>> ListDevices() {
  const Result<FoundDevices> found = FindDevices(false);
  if (!found.ok() && found.status().code() != StatusCode::kNotFound) return found.status();
  std::vector<DeviceListing> listings;
  if (found.ok()) listings = ListFoundDevices(*found);
  listings.push_back(host::ListHostDevice(static_cast<uint32_t>(listings.size())));
  return listings;
}

Result<std::unique_ptr<Device>> OpenDevice(const OpenDeviceOptions& options) {
  KVRUN_RETURN_IF_ERROR(CheckOptions(options));
  if (IsHostName(options.device)) return OpenHost(options, "");
  KVRUN_ASSIGN_OR_RETURN(const std::optional<std::string> prefill, PrefillDeviceOfPair(options.device));
  if (prefill) return OpenPair(*prefill, options);
  const Result<FoundDevices> found = FindDevices(options.validation);
  KVRUN_ASSIGN_OR_RETURN(AnyDeviceChoice choice, Choose(found, options.device));
  if (!choice.vulkan) return OpenHost(options, std::move(choice.note));
  KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<VulkanComputeDevice> device, OpenVulkan(*found, choice, options));
  return std::unique_ptr<Device>(std::move(device));
}

Result<std::vector<DoctorReport>> RunDoctor(const std::string& device,
                                            const std::function<bool(size_t, size_t)>& progress) {
  if (IsHostName(device)) return RunCheckUps({host::PlanCheckUp("")}, progress);
  KVRUN_ASSIGN_OR_RETURN(const std::optional<std::string> prefill, PrefillDeviceOfPair(device));
  if (prefill) {
    return Status(
        StatusCode::kUnsupported,
        fmt::format("a pair of devices has no self-tests of its own: name \"{}\" or \"host\"", *prefill));
  }
  const Result<FoundDevices> found = FindDevices(false);
  std::vector<CheckUp> check_ups;
  if (!device.empty()) {
    KVRUN_ASSIGN_OR_RETURN(const AnyDeviceChoice choice, Choose(found, device));
    check_ups.push_back(choice.vulkan ? PlanCheckUp(*found, *choice.vulkan) : host::PlanCheckUp(choice.note));
    return RunCheckUps(check_ups, progress);
  }
  if (!found.ok() && found.status().code() != StatusCode::kNotFound) return found.status();
  const size_t n_vulkan = found.ok() ? found->facts.size() : 0;
  for (size_t i = 0; i < n_vulkan; ++i) check_ups.push_back(PlanCheckUp(*found, i));
  check_ups.push_back(host::PlanCheckUp(found.ok() ? "" : found.status().message()));
  return RunCheckUps(check_ups, progress);
}

}  // namespace kvrun
