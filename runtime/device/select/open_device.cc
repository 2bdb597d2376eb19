#include "runtime/device/open_device.h"

#include <fmt/format.h>

#include <cstdlib>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "platform/io/cpu_name.h"
#include "platform/vulkan/instance.h"
#include "runtime/device/check_up.h"
#include "runtime/device/host/doctor.h"
#include "runtime/device/host/host_device.h"
#include "runtime/device/host/host_listing.h"
#include "runtime/device/select/choose_device.h"
#include "runtime/device/select/make_pair.h"
#include "runtime/device/select/open_host.h"
#include "runtime/device/vulkan/found_devices.h"
#include "runtime/device/vulkan/self_test.h"

namespace kvrun {
namespace {

// So many times as long as a list of devices may an opening and a measurement take: drivers compile.
constexpr double kTrialTimeouts = 15.0;
constexpr const char* kOpening = "opened a device of it";

// What a failure to choose a device says of the drivers that are not used, and its note where that is wanted.
Result<AnyDeviceChoice> WithRemark(Result<AnyDeviceChoice> choice, const FoundDevices& found, bool in_note) {
  const std::string remark = LeftOutRemark(found.left_out);
  if (remark.empty()) return choice;
  if (!choice.ok()) return Status(choice.status().code(), choice.status().message() + "; " + remark);
  if (in_note) choice->note += (choice->note.empty() ? "" : "; ") + remark;
  return choice;
}

// Of what was found, or of nothing where Vulkan is not there.
Result<AnyDeviceChoice> Choose(const Result<FoundDevices>& found, const OpenDeviceOptions& options) {
  const std::string cpu = CpuName();
  const std::string& wanted = options.device;
  if (found.ok()) return WithRemark(ChooseDevice(found->facts, cpu, wanted), *found, options.names_left_out);
  if (found.status().code() != StatusCode::kNotFound) return found.status();
  if (wanted == "vulkan") return found.status();
  return ChooseDevice({}, cpu, wanted);
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

Result<AnyDeviceChoice> ChoosePrefill(const FoundDevices& found, const std::string& prefill,
                                      bool names_left_out) {
  return WithRemark(ChoosePrefillDevice(found.facts, CpuName(), prefill), found, names_left_out);
}

Status TryToOpenIndex(const FoundDevices& found, size_t index) {
  const auto open = [&]() -> Result<std::string> {
    KVRUN_ASSIGN_OR_RETURN(const FoundDevices again, FindDevices(false));
    if (index >= again.facts.size()) return Status(StatusCode::kNotFound, "the device is gone");
    KVRUN_RETURN_IF_ERROR(OpenCheckedDevice(again, index, false, "", CheckSubgroups).status());
    return std::string();
  };
  return TryDevice(found, index, kOpening, open, {}, kTrialTimeouts * DriverTimeoutSeconds()).status();
}

// Before devices of a driver are opened in this process for the first time, the one that `choose` names is
// opened in a process of its own. What fails there without a crash would fail here, too.
using Choice = std::function<Result<AnyDeviceChoice>(const Result<FoundDevices>& found)>;
Status TryToOpen(const OpenDeviceOptions& options, const Choice& choose) {
  if (!CanTryApart() || !HasUnopenedDriver()) return Status::Ok();
  const Result<FoundDevices> found = LookForDevices(options.validation);
  KVRUN_ASSIGN_OR_RETURN(const AnyDeviceChoice choice, choose(found));
  if (!choice.vulkan || WasOpened(*found, *choice.vulkan)) return Status::Ok();
  return TryToOpenIndex(*found, *choice.vulkan);
}

// All of them. What fails is seen when it is opened here, or left out.
Status TryToOpenAll() {
  std::set<std::string> tried;
  while (CanTryApart() && HasUnopenedDriver()) {
    // Again after each: the devices of a driver that is left out now have no index any more.
    const Result<FoundDevices> found = LookForDevices(false);
    if (!found.ok()) return found.status();
    size_t index = 0;
    const auto is_done = [&] {
      return WasOpened(*found, index) || tried.contains(found->facts[index].device_uuid);
    };
    while (index < found->facts.size() && is_done()) ++index;
    if (index == found->facts.size()) break;
    tried.insert(found->facts[index].device_uuid);
    const Status status = TryToOpenIndex(*found, index);
    if (status.code() == StatusCode::kCancelled) return status;
  }
  return Status::Ok();
}

// Drivers that are not used are no devices, but what does not work.
DoctorReport ReportOf(const LeftOutDriver& left_out) {
  return {.name = left_out.driver.manifest,
          .kind = "driver",
          .driver = left_out.driver.library,
          .limits = {},
          .plan = {},
          .tests = {{"usable", false, left_out.message}},
          .n_left_out = 0};
}

// What `prefill` names, and the CPU.
Result<std::unique_ptr<Device>> OpenPair(const std::string& prefill, const OpenDeviceOptions& options) {
  const auto choose = [&](const Result<FoundDevices>& found) -> Result<AnyDeviceChoice> {
    if (!found.ok()) return found.status();
    return ChoosePrefill(*found, prefill, options.names_left_out);
  };
  KVRUN_RETURN_IF_ERROR(TryToOpen(options, choose));
  KVRUN_ASSIGN_OR_RETURN(const FoundDevices found, FindDevices(options.validation));
  KVRUN_ASSIGN_OR_RETURN(const AnyDeviceChoice choice, ChoosePrefill(found, prefill, options.names_left_out));
  KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<VulkanComputeDevice> vulkan, OpenVulkan(found, choice, options));
  KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<host::HostDevice> host, CreateHost(options, ""));
  return MakePair(std::move(vulkan), std::move(host));
}

}  // namespace

Result<AutoCandidates> FindAutoCandidates(const OpenDeviceOptions& options) {
  KVRUN_RETURN_IF_ERROR(CheckOptions(options));
  const Result<FoundDevices> found = LookForDevices(options.validation);
  if (!found.ok() && found.status().code() != StatusCode::kNotFound) return found.status();
  AutoCandidates candidates = HostCandidates(options);
  if (found.ok()) {
    const AutoCandidates chosen = ChooseCandidates(found->facts, ChangesByEnvironment(options.validation));
    candidates.gpu = chosen.gpu;
    candidates.note = chosen.note;
    candidates.left_out = LeftOutRemark(found->left_out);
  }
  return candidates;
}

Result<std::vector<DeviceListing>> ListDevices(std::vector<LeftOutListing>* left_out) {
  const Result<FoundDevices> found = LookForDevices(false);
  if (!found.ok() && found.status().code() != StatusCode::kNotFound) return found.status();
  std::vector<DeviceListing> listings;
  if (found.ok()) listings = ListFoundDevices(*found);
  if (found.ok() && left_out != nullptr) {
    for (const LeftOutDriver& one : found->left_out) left_out->push_back({one.driver.manifest, one.message});
  }
  listings.push_back(host::ListHostDevice(static_cast<uint32_t>(listings.size())));
  return listings;
}

Result<std::unique_ptr<Device>> OpenDevice(const OpenDeviceOptions& options) {
  KVRUN_RETURN_IF_ERROR(CheckOptions(options));
  if (IsHostName(options.device)) return OpenHost(options, "");
  KVRUN_ASSIGN_OR_RETURN(const std::optional<std::string> prefill, PrefillDeviceOfPair(options.device));
  if (prefill) return OpenPair(*prefill, options);
  const auto choose = [&](const Result<FoundDevices>& seen) { return Choose(seen, options); };
  KVRUN_RETURN_IF_ERROR(TryToOpen(options, choose));
  const Result<FoundDevices> found = FindDevices(options.validation);
  KVRUN_ASSIGN_OR_RETURN(AnyDeviceChoice choice, Choose(found, options));
  if (!choice.vulkan) return OpenHost(options, std::move(choice.note));
  KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<VulkanComputeDevice> device, OpenVulkan(*found, choice, options));
  return std::unique_ptr<Device>(std::move(device));
}

Result<std::string> TryOnDevice(const OpenDeviceOptions& options, const std::string& doing,
                                const DeviceWork& work, const std::function<bool()>& is_cancelled) {
  const auto open_and_work = [&]() -> Result<std::string> {
    KVRUN_ASSIGN_OR_RETURN(const std::unique_ptr<Device> device, OpenDevice(options));
    return work(*device, IsTrialCopy() ? std::function<bool()>() : is_cancelled);
  };
  if (IsHostName(options.device)) {
    const TrialOutcome outcome =
        TryWork(open_and_work, is_cancelled, std::numeric_limits<double>::infinity());
    if (!outcome.is_fault) return outcome.answer;
    return Status(StatusCode::kDevice, fmt::format("the process that {} {}", doing, outcome.fault));
  }
  const Result<FoundDevices> found = LookForDevices(options.validation);
  KVRUN_ASSIGN_OR_RETURN(const AnyDeviceChoice choice, Choose(found, options));
  if (!choice.vulkan) return open_and_work();
  return TryDevice(*found, *choice.vulkan, doing, open_and_work, is_cancelled,
                   kTrialTimeouts * DriverTimeoutSeconds());
}

void InterruptDriverTrials() { InterruptTrials(); }

void RetryLeftOutDrivers() { RetryDrivers(); }

Result<std::vector<DoctorReport>> RunDoctor(const std::string& device,
                                            const std::function<bool(size_t, size_t)>& progress,
                                            double limit_s) {
  if (IsHostName(device)) return RunCheckUps({host::PlanCheckUp("")}, progress, limit_s);
  KVRUN_ASSIGN_OR_RETURN(const std::optional<std::string> prefill, PrefillDeviceOfPair(device));
  if (prefill) {
    return Status(
        StatusCode::kUnsupported,
        fmt::format("a pair of devices has no self-tests of its own: name \"{}\" or \"host\"", *prefill));
  }
  const auto choose = [&](const Result<FoundDevices>& seen) { return Choose(seen, {.device = device}); };
  const Status trials = device.empty() ? TryToOpenAll() : TryToOpen({.device = device}, choose);
  if (!trials.ok() && trials.code() != StatusCode::kNotFound) return trials;
  const Result<FoundDevices> found = FindDevices(false);
  std::vector<CheckUp> check_ups;
  if (!device.empty()) {
    KVRUN_ASSIGN_OR_RETURN(const AnyDeviceChoice choice, Choose(found, {.device = device}));
    check_ups.push_back(choice.vulkan ? PlanCheckUp(*found, *choice.vulkan) : host::PlanCheckUp(choice.note));
    return RunCheckUps(check_ups, progress, limit_s);
  }
  if (!found.ok() && found.status().code() != StatusCode::kNotFound) return found.status();
  const size_t n_vulkan = found.ok() ? found->facts.size() : 0;
  for (size_t i = 0; i < n_vulkan; ++i) check_ups.push_back(PlanCheckUp(*found, i));
  check_ups.push_back(host::PlanCheckUp(found.ok() ? "" : found.status().message()));
  KVRUN_ASSIGN_OR_RETURN(std::vector<DoctorReport> reports, RunCheckUps(check_ups, progress, limit_s));
  if (!found.ok()) return reports;
  for (const LeftOutDriver& left_out : found->left_out) reports.push_back(ReportOf(left_out));
  return reports;
}

}  // namespace kvrun
