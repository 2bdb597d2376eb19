#include "runtime/device/select/choose_device.h"

#include <fmt/format.h>

#include <algorithm>

#include "platform/vulkan/device_plan.h"
#include "platform/vulkan/select_device.h"
#include "runtime/device/select/open_host.h"

namespace kvrun {
namespace {

std::string ListDevices(std::span<const DeviceFacts> vulkan, std::string_view cpu_name) {
  std::string list;
  for (size_t i = 0; i < vulkan.size(); ++i) {
    list += fmt::format("{}: {} ({}), ", i, vulkan[i].name, DeviceTypeName(vulkan[i].type));
  }
  return fmt::format("{}{}: {} (cpu)", list, vulkan.size(), cpu_name);
}

Status NoSuchDevice(std::span<const DeviceFacts> vulkan, std::string_view cpu_name, std::string_view wanted) {
  return {StatusCode::kNotFound, fmt::format("no device is named \"{}\"; the devices are: {}", wanted,
                                             ListDevices(vulkan, cpu_name))};
}

// A driver for CPUs is none, whatever it calls itself.
Result<AnyDeviceChoice> ChooseGpu(std::span<const DeviceFacts> vulkan, std::string_view cpu_name,
                                  bool has_gpu) {
  if (!has_gpu) {
    return Status(StatusCode::kNotFound,
                  fmt::format("no GPU was found: install its Vulkan driver, or compute on the CPU with "
                              "--device cpu; the devices are: {}",
                              ListDevices(vulkan, cpu_name)));
  }
  KVRUN_ASSIGN_OR_RETURN(const DeviceChoice choice, SelectDevice(vulkan, "vulkan"));
  return AnyDeviceChoice{.vulkan = choice.index, .note = choice.note};
}

Status NoSuchPair(std::string_view wanted) {
  return {StatusCode::kInvalidArgument,
          fmt::format("\"{}\" is not a pair of devices: name a Vulkan device that computes prompts, then "
                      "\"+cpu\", as in \"gpu+cpu\"",
                      wanted)};
}

}  // namespace

AutoCandidates ChooseCandidates(std::span<const DeviceFacts> vulkan, std::string_view changes) {
  AutoCandidates candidates;
  const Result<DeviceChoice> choice = SelectDevice(vulkan, "auto");
  if (!choice.ok()) return candidates;  // there is none
  const DeviceFacts& facts = vulkan[choice->index];
  const Result<DevicePlan> plan = PlanDevice(facts, {});
  if (!plan.ok()) {
    candidates.note = fmt::format("computing on the CPU itself; {}", plan.status().message());
    return candidates;
  }
  candidates.gpu = {
      .device = std::to_string(choice->index),
      .name = facts.name,
      .driver = fmt::format("{} {} {:x} {}{}{}", facts.driver_name, facts.driver_info, facts.driver_version,
                            facts.device_uuid, changes.empty() ? "" : " ", changes),
      .runs_on_cpu = facts.type == DeviceType::kCpu,
      .has_unified_memory = plan->unified_memory};
  return candidates;
}

Result<AnyDeviceChoice> ChooseDevice(std::span<const DeviceFacts> vulkan, std::string_view cpu_name,
                                     std::string_view wanted) {
  const std::string name = LowerCase(wanted);
  const AnyDeviceChoice host{.vulkan = std::nullopt, .note = {}};
  if (IsHostName(name) || name == std::to_string(vulkan.size())) return host;
  const bool has_gpu = std::any_of(vulkan.begin(), vulkan.end(),
                                   [](const DeviceFacts& facts) { return facts.type != DeviceType::kCpu; });
  if (!has_gpu && IsAutoName(wanted)) {
    return AnyDeviceChoice{.vulkan = std::nullopt, .note = "no GPU was found; computing on the CPU itself"};
  }
  if (name == "gpu") return ChooseGpu(vulkan, cpu_name, has_gpu);
  if (!vulkan.empty() || name == "vulkan") {
    const Result<DeviceChoice> choice = SelectDevice(vulkan, wanted);
    if (choice.ok()) return AnyDeviceChoice{.vulkan = choice->index, .note = choice->note};
    if (name == "vulkan") return choice.status();
  }
  if (IsPartOfCpuName(wanted, cpu_name)) return host;
  return NoSuchDevice(vulkan, cpu_name, wanted);
}

Result<std::optional<std::string>> PrefillDeviceOfPair(std::string_view wanted) {
  const size_t plus = wanted.find('+');
  if (plus == std::string_view::npos) return std::optional<std::string>();
  const std::string_view first = wanted.substr(0, plus);
  if (first.empty() || IsHostName(first) || !IsHostName(wanted.substr(plus + 1))) return NoSuchPair(wanted);
  return std::optional<std::string>(first);
}

Result<AnyDeviceChoice> ChoosePrefillDevice(std::span<const DeviceFacts> vulkan, std::string_view cpu_name,
                                            std::string_view wanted) {
  KVRUN_ASSIGN_OR_RETURN(AnyDeviceChoice choice, ChooseDevice(vulkan, cpu_name, wanted));
  // By its index or name, or as there is nothing better.
  if (!choice.vulkan) return NoSuchPair(fmt::format("{}+host", wanted));
  return choice;
}

}  // namespace kvrun
