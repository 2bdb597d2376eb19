#include "runtime/device/vulkan/found_devices.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include <nlohmann/json.hpp>

#include "platform/vulkan/device.h"
#include "platform/vulkan/device_facts_query.h"
#include "platform/vulkan/driver_files.h"
#include "platform/vulkan/driver_notes.h"
#include "platform/vulkan/driver_trials.h"
#include "platform/vulkan/instance.h"
#include "runtime/device/vulkan/compute_device.h"

namespace kvrun {

namespace {

constexpr const char* kTogether = "listed the devices of all drivers";
constexpr const char* kOpening = "opened a device of it";

InstanceOptions OptionsFor(bool validation) {
  InstanceOptions options = InstanceOptions::FromEnvironment();
  if (validation) options.validation = options.sync_validation = true;
  return options;
}

// With all drivers that the loader finds, or only those of `options`.
Result<FoundDevices> FindWith(const InstanceOptions& options) {
  FoundDevices found;
  KVRUN_ASSIGN_OR_RETURN(found.instance, VulkanInstance::Create(options));
  KVRUN_ASSIGN_OR_RETURN(found.handles, found.instance->PhysicalDevices());
  for (VkPhysicalDevice handle : found.handles) {
    KVRUN_ASSIGN_OR_RETURN(DeviceFacts facts, QueryDeviceFacts(handle));
    KVRUN_ASSIGN_OR_RETURN(facts, ClampFactsByEnvironment(std::move(facts)));
    found.facts.push_back(std::move(facts));
  }
  return found;
}

// The identities of a driver's devices, a line each.
Result<std::string> LookAtDriver(const DriverFile& driver) {
  InstanceOptions options;
  options.drivers = {driver.manifest};
  const Result<std::shared_ptr<VulkanInstance>> instance = VulkanInstance::Create(options);
  if (!instance.ok()) {
    // The loader takes no driver from this manifest, which may be for another architecture.
    const bool is_none = instance.status().message().find("INCOMPATIBLE_DRIVER") != std::string::npos;
    if (is_none) return std::string();
    return instance.status();
  }
  KVRUN_ASSIGN_OR_RETURN(const std::vector<VkPhysicalDevice> handles, (*instance)->PhysicalDevices());
  std::string devices;
  for (VkPhysicalDevice handle : handles) {
    KVRUN_ASSIGN_OR_RETURN(const DeviceFacts facts, QueryDeviceFacts(handle));
    devices += facts.device_uuid + "\n";
  }
  return devices;
}

DriverNotes Notes() { return DriverNotes(DriverNotesFolder()); }

Result<JudgedDrivers> Judge(bool try_all = false) {
  KVRUN_RETURN_IF_ERROR(VulkanInstance::FindLoader());
  return JudgeDrivers(FindDriverFiles(DriverPlaces(EnvironmentVariables())), Notes(), LookAtDriver, try_all);
}

// The loader is told which drivers to take only where it must not take all that it finds.
void Restrict(const JudgedDrivers& judged, InstanceOptions* options) {
  if (judged.left_out.empty()) return;
  options->drivers.emplace();
  for (const DriverFile& driver : judged.usable) options->drivers->push_back(driver.manifest);
}

FoundDevices WithDrivers(FoundDevices found, JudgedDrivers judged) {
  found.drivers = std::move(judged.usable);
  found.left_out = std::move(judged.left_out);
  return found;
}

std::string PackFacts(const FoundDevices& found) {
  nlohmann::json list = nlohmann::json::array();
  for (const DeviceFacts& facts : found.facts) list.push_back(DeviceFactsToJson(facts));
  return list.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

Result<FoundDevices> UnpackFacts(const std::string& packed) {
  FoundDevices found;
  const auto list = nlohmann::json::parse(packed, nullptr, /*allow_exceptions=*/false);
  for (const auto& text : list) {
    KVRUN_ASSIGN_OR_RETURN(DeviceFacts facts, DeviceFactsFromJson(text.get<std::string>(),
                                                                  "what a Vulkan driver's trial found"));
    found.facts.push_back(std::move(facts));
  }
  return found;
}

TrialOutcome LookApart(const InstanceOptions& options) {
  return TryWork(
      [&]() -> Result<std::string> {
        KVRUN_ASSIGN_OR_RETURN(const FoundDevices found, FindWith(options));
        return PackFacts(found);
      },
      {}, DriverTimeoutSeconds());
}

// The driver of a device, where it is known: of each one's record.
std::optional<DriverFile> DriverOf(const FoundDevices& found, size_t index, const DriverNotes& notes,
                                   DriverRecord* record) {
  for (const DriverFile& driver : found.drivers) {
    *record = notes.Read(driver);
    if (std::find(record->devices.begin(), record->devices.end(), found.facts[index].device_uuid) !=
        record->devices.end()) {
      return driver;
    }
  }
  return std::nullopt;
}

void KeepOpened(const DriverFile& driver, const DriverNotes& notes, DriverRecord record) {
  if (record.was_opened) return;
  record.was_opened = true;
  (void)notes.Write(driver, record);
}

Result<std::unique_ptr<VulkanComputeDevice>> OpenUnguarded(const FoundDevices& found, size_t index,
                                                           const PlanRequest& request, bool profile,
                                                           std::string note) {
  KVRUN_ASSIGN_OR_RETURN(DevicePlan plan, PlanDevice(found.facts[index], request));
  KVRUN_ASSIGN_OR_RETURN(
      std::unique_ptr<VulkanDevice> vulkan,
      VulkanDevice::Create(found.instance, found.handles[index], found.facts[index], std::move(plan)));
  return VulkanComputeDevice::Create(std::move(vulkan), profile, std::move(note));
}

// Held while a device is opened in this process.
class OpeningNote {
 public:
  OpeningNote(const FoundDevices& found, size_t index) : notes_(Notes()) {
    driver_ = DriverOf(found, index, notes_, &record_);
    if (!driver_) return;
    const NoteKind kind = record_.was_opened ? NoteKind::kUse : NoteKind::kTrial;
    note_ = notes_.Begin(*driver_, kind, kOpening, DriverTimeoutSeconds());
  }

  void Succeed() {
    if (driver_) KeepOpened(*driver_, notes_, record_);
  }

 private:
  const DriverNotes notes_;
  DriverRecord record_;
  std::optional<DriverFile> driver_;
  TrialNote note_;
};

}  // namespace

Result<FoundDevices> FindDevices(bool validation) {
  KVRUN_ASSIGN_OR_RETURN(JudgedDrivers judged, Judge());
  if (judged.usable.empty() && !judged.left_out.empty()) return WithDrivers({}, std::move(judged));
  InstanceOptions options = OptionsFor(validation);
  Restrict(judged, &options);
  const DriverNotes notes = Notes();
  std::vector<TrialNote> held;
  for (const DriverFile& driver : judged.usable) {
    held.push_back(notes.Begin(driver, NoteKind::kUse, kTogether, DriverTimeoutSeconds()));
  }
  KVRUN_ASSIGN_OR_RETURN(FoundDevices found, FindWith(options));
  return WithDrivers(std::move(found), std::move(judged));
}

Result<FoundDevices> LookForDevices(bool validation) {
  if (!CanTryApart()) return FindDevices(validation);
  KVRUN_ASSIGN_OR_RETURN(JudgedDrivers judged, Judge());
  for (const bool is_last : {false, true}) {
    if (judged.usable.empty() && !judged.left_out.empty()) break;
    InstanceOptions options = OptionsFor(validation);
    Restrict(judged, &options);
    const TrialOutcome outcome = LookApart(options);
    if (!outcome.is_fault) {
      KVRUN_RETURN_IF_ERROR(outcome.answer.status());
      KVRUN_ASSIGN_OR_RETURN(FoundDevices found, UnpackFacts(*outcome.answer));
      return WithDrivers(std::move(found), std::move(judged));
    }
    // One that worked before does not now, which trials of each alone find out.
    if (!is_last) {
      KVRUN_ASSIGN_OR_RETURN(judged, Judge(/*try_all=*/true));
      continue;
    }
    const std::string message =
        fmt::format("Vulkan is not used: a driver {} while kvrun {}, though each alone did not",
                    outcome.fault, kTogether);
    judged.left_out.push_back({{}, message, message});
  }
  return WithDrivers({}, std::move(judged));
}

bool WasOpened(const FoundDevices& found, size_t index) {
  DriverRecord record;
  return DriverOf(found, index, Notes(), &record) && record.was_opened;
}

bool HasUnopenedDriver() {
  const DriverNotes notes = Notes();
  if (!notes.is_kept()) return false;
  for (const DriverFile& driver : FindDriverFiles(DriverPlaces(EnvironmentVariables()))) {
    const DriverRecord record = notes.Read(driver);
    const bool is_known =
        record.state == DriverState::kWorks && (record.was_opened || record.devices.empty());
    if (!is_known && record.state != DriverState::kLeftOut) return true;
  }
  return false;
}

Result<std::string> TryDevice(const FoundDevices& found, size_t index, const std::string& doing,
                              const std::function<Result<std::string>()>& work,
                              const std::function<bool()>& is_cancelled, double limit_s) {
  const DriverNotes notes = Notes();
  DriverRecord record;
  const std::optional<DriverFile> driver = DriverOf(found, index, notes, &record);
  TrialNote note;
  // Another limit than the one of a list of devices: what measures takes longer.
  if (driver) note = notes.Begin(*driver, TrialKind(), doing, limit_s);
  const TrialOutcome outcome = TryWork(work, is_cancelled, limit_s);
  if (!outcome.is_fault) {
    if (driver && outcome.answer.ok()) {
      KeepOpened(*driver, notes, record);
      notes.ForgetEnds(*driver, doing);
    }
    return outcome.answer;
  }
  if (!driver) return outcome.answer;
  return Status(StatusCode::kDevice, LeaveOut(*driver, notes, outcome, doing).message);
}

Result<std::unique_ptr<VulkanComputeDevice>> OpenFoundDevice(const FoundDevices& found, size_t index,
                                                             bool profile, std::string note) {
  OpeningNote opening(found, index);
  auto device = OpenUnguarded(found, index, {}, profile, std::move(note));
  if (device.ok()) opening.Succeed();
  return device;
}

Result<std::unique_ptr<VulkanComputeDevice>> OpenCheckedDevice(const FoundDevices& found, size_t index,
                                                               bool profile, const std::string& note,
                                                               const DeviceCheck& check) {
  OpeningNote opening(found, index);
  KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<VulkanComputeDevice> device,
                         OpenUnguarded(found, index, {}, profile, note));
  const bool is_checked = device->plan().use_subgroup_shuffle;
  const Result<std::string> result = is_checked ? check(*device) : std::string();
  opening.Succeed();
  if (result.ok()) return device;
  device.reset();
  const std::string failed = fmt::format("subgroup operations are not used, as they miscalculate: {}{}{}",
                                         result.status().message(), note.empty() ? "" : "; ", note);
  return OpenUnguarded(found, index, {.allow_subgroups = false}, profile, failed);
}

std::vector<DeviceListing> ListFoundDevices(const FoundDevices& found) {
  std::vector<DeviceListing> listings;
  for (const DeviceFacts& facts : found.facts) {
    DeviceListing listing;
    listing.index = static_cast<uint32_t>(listings.size());
    listing.name = facts.name;
    listing.kind = DeviceKindName(facts.type);
    listing.api_version = FormatApiVersion(facts.api_version);
    listing.driver = fmt::format("{} {}", facts.driver_name, facts.driver_info);
    for (const MemoryHeapFacts& heap : facts.memory_heaps) {
      listing.memory_bytes = std::max(listing.memory_bytes, heap.size_bytes);
    }
    const Result<DevicePlan> plan = PlanDevice(facts, {});
    listing.usable = plan.ok();
    if (!plan.ok()) listing.reason = plan.status().message();
    listings.push_back(std::move(listing));
  }
  return listings;
}

}  // namespace kvrun
