#include "runtime/device/vulkan/found_devices.h"

#include <fmt/format.h>

#include <algorithm>

#include "platform/vulkan/device.h"
#include "platform/vulkan/device_facts_query.h"
#include "platform/vulkan/instance.h"
#include "runtime/device/vulkan/compute_device.h"

namespace kvrun {

Result<FoundDevices> FindDevices(bool validation) {
  InstanceOptions options = InstanceOptions::FromEnvironment();
  if (validation) options.validation = options.sync_validation = true;
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

namespace {

Result<std::unique_ptr<VulkanComputeDevice>> OpenPlanned(const FoundDevices& found, size_t index,
                                                         const PlanRequest& request, bool profile,
                                                         std::string note) {
  KVRUN_ASSIGN_OR_RETURN(DevicePlan plan, PlanDevice(found.facts[index], request));
  KVRUN_ASSIGN_OR_RETURN(
      std::unique_ptr<VulkanDevice> vulkan,
      VulkanDevice::Create(found.instance, found.handles[index], found.facts[index], std::move(plan)));
  return VulkanComputeDevice::Create(std::move(vulkan), profile, std::move(note));
}

}  // namespace

Result<std::unique_ptr<VulkanComputeDevice>> OpenFoundDevice(const FoundDevices& found, size_t index,
                                                             bool profile, std::string note) {
  return OpenPlanned(found, index, {}, profile, std::move(note));
}

Result<std::unique_ptr<VulkanComputeDevice>> OpenCheckedDevice(const FoundDevices& found, size_t index,
                                                               bool profile, const std::string& note,
                                                               const DeviceCheck& check) {
  KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<VulkanComputeDevice> device,
                         OpenPlanned(found, index, {}, profile, note));
  if (!device->plan().use_subgroup_shuffle) return device;
  const Result<std::string> result = check(*device);
  if (result.ok()) return device;
  device.reset();
  const std::string failed = fmt::format("subgroup operations are not used, they miscalculate: {}{}{}",
                                         result.status().message(), note.empty() ? "" : "; ", note);
  return OpenPlanned(found, index, {.allow_subgroups = false}, profile, failed);
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
