#include "platform/vulkan/device_facts_query.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string>

#include "platform/vulkan/vk_status.h"

namespace kvrun {
namespace {

// A chain of pNext structs whose members live in the caller's frame.
class Chain {
 public:
  template <typename T>
  void Add(T& item, VkStructureType type) {
    item.sType = type;
    item.pNext = head_;
    head_ = &item;
  }
  void* head() const { return head_; }

 private:
  void* head_ = nullptr;
};

Result<std::set<std::string>> ListExtensions(VkPhysicalDevice device) {
  uint32_t count = 0;
  KVRUN_RETURN_IF_VK_ERROR(vkEnumerateDeviceExtensionProperties(device, nullptr, &count, nullptr),
                           "cannot list the device's extensions");
  std::vector<VkExtensionProperties> properties(count);
  KVRUN_RETURN_IF_VK_ERROR(vkEnumerateDeviceExtensionProperties(device, nullptr, &count, properties.data()),
                           "cannot list the device's extensions");
  std::set<std::string> names;
  for (const VkExtensionProperties& property : properties) names.insert(property.extensionName);
  return names;
}

void SetIdentity(const VkPhysicalDeviceProperties& properties, DeviceFacts& facts) {
  facts.name = properties.deviceName;
  facts.vendor_id = properties.vendorID;
  facts.device_id = properties.deviceID;
  facts.type = static_cast<DeviceType>(std::min<uint32_t>(properties.deviceType, 4));
  facts.api_version = properties.apiVersion;
  facts.driver_version = properties.driverVersion;
  for (const uint8_t byte : properties.pipelineCacheUUID) facts.device_uuid += fmt::format("{:02x}", byte);
}

void SetLimits(const VkPhysicalDeviceLimits& limits, DeviceFacts& facts) {
  facts.max_storage_buffer_range_bytes = limits.maxStorageBufferRange;
  facts.max_uniform_buffer_range_bytes = limits.maxUniformBufferRange;
  facts.max_texel_buffer_elements = limits.maxTexelBufferElements;
  facts.min_storage_buffer_offset_alignment_bytes = limits.minStorageBufferOffsetAlignment;
  facts.min_uniform_buffer_offset_alignment_bytes = limits.minUniformBufferOffsetAlignment;
  facts.non_coherent_atom_bytes = limits.nonCoherentAtomSize;
  facts.min_memory_map_alignment_bytes = limits.minMemoryMapAlignment;
  facts.max_allocations = limits.maxMemoryAllocationCount;
  facts.max_push_constants_bytes = limits.maxPushConstantsSize;
  facts.max_bound_descriptor_sets = limits.maxBoundDescriptorSets;
  facts.max_storage_buffers_per_stage = limits.maxPerStageDescriptorStorageBuffers;
  facts.max_uniform_buffers_per_stage = limits.maxPerStageDescriptorUniformBuffers;
  facts.max_storage_buffers_per_set = limits.maxDescriptorSetStorageBuffers;
  facts.max_dynamic_uniform_buffers_per_set = limits.maxDescriptorSetUniformBuffersDynamic;
  facts.max_shared_memory_bytes = limits.maxComputeSharedMemorySize;
  facts.max_workgroup_invocations = limits.maxComputeWorkGroupInvocations;
  facts.max_workgroup_size_x = limits.maxComputeWorkGroupSize[0];
  facts.max_workgroup_size_y = limits.maxComputeWorkGroupSize[1];
  facts.max_workgroup_size_z = limits.maxComputeWorkGroupSize[2];
  facts.max_workgroup_count_x = limits.maxComputeWorkGroupCount[0];
  facts.max_workgroup_count_y = limits.maxComputeWorkGroupCount[1];
  facts.max_workgroup_count_z = limits.maxComputeWorkGroupCount[2];
  facts.timestamp_period_ns = static_cast<double>(limits.timestampPeriod);
}

void QueryProperties(VkPhysicalDevice device, const std::set<std::string>& extensions, DeviceFacts& facts) {
  Chain chain;
  VkPhysicalDeviceMaintenance3Properties maintenance3{};
  VkPhysicalDeviceSubgroupProperties subgroup{};
  VkPhysicalDeviceDriverProperties driver{};
  VkPhysicalDeviceSubgroupSizeControlProperties size_control{};
  VkPhysicalDeviceShaderIntegerDotProductProperties dot{};
  VkPhysicalDeviceExternalMemoryHostPropertiesEXT host{};
  chain.Add(maintenance3, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MAINTENANCE_3_PROPERTIES);
  chain.Add(subgroup, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_PROPERTIES);
  if (extensions.contains(VK_KHR_DRIVER_PROPERTIES_EXTENSION_NAME)) {
    chain.Add(driver, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_DRIVER_PROPERTIES);
  }
  const bool has_size_control = extensions.contains(VK_EXT_SUBGROUP_SIZE_CONTROL_EXTENSION_NAME);
  if (has_size_control) {
    chain.Add(size_control, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_PROPERTIES);
  }
  if (extensions.contains(VK_KHR_SHADER_INTEGER_DOT_PRODUCT_EXTENSION_NAME)) {
    chain.Add(dot, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_INTEGER_DOT_PRODUCT_PROPERTIES);
  }
  if (extensions.contains(VK_EXT_EXTERNAL_MEMORY_HOST_EXTENSION_NAME)) {
    chain.Add(host, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_EXTERNAL_MEMORY_HOST_PROPERTIES_EXT);
  }
  VkPhysicalDeviceProperties2 properties{};
  properties.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2;
  properties.pNext = chain.head();
  vkGetPhysicalDeviceProperties2(device, &properties);

  facts.max_allocation_bytes = maintenance3.maxMemoryAllocationSize;
  facts.driver_id = driver.driverID;
  facts.driver_name = driver.driverName;
  facts.driver_info = driver.driverInfo;
  const bool in_compute = (subgroup.supportedStages & VK_SHADER_STAGE_COMPUTE_BIT) != 0;
  facts.subgroup_width = subgroup.subgroupSize;
  facts.subgroup_ops = in_compute ? subgroup.supportedOperations : 0;
  facts.min_subgroup_width = has_size_control ? size_control.minSubgroupSize : subgroup.subgroupSize;
  facts.max_subgroup_width = has_size_control ? size_control.maxSubgroupSize : subgroup.subgroupSize;
  facts.subgroup_size_control = (size_control.requiredSubgroupSizeStages & VK_SHADER_STAGE_COMPUTE_BIT) != 0;
  facts.integer_dot_product_4x8_accelerated = dot.integerDotProduct4x8BitPackedSignedAccelerated == VK_TRUE;
  facts.min_imported_host_pointer_alignment_bytes = host.minImportedHostPointerAlignment;
}

void QueryFeatures(VkPhysicalDevice device, const std::set<std::string>& extensions, DeviceFacts& facts) {
  Chain chain;
  VkPhysicalDevice16BitStorageFeatures storage16{};
  VkPhysicalDevice8BitStorageFeatures storage8{};
  VkPhysicalDeviceShaderFloat16Int8Features float16_int8{};
  VkPhysicalDeviceTimelineSemaphoreFeatures timeline{};
  VkPhysicalDeviceBufferDeviceAddressFeatures address{};
  VkPhysicalDeviceSubgroupSizeControlFeatures size_control{};
  VkPhysicalDeviceShaderIntegerDotProductFeatures dot{};
  const auto add = [&](const char* extension, auto& item, VkStructureType type) {
    if (extensions.contains(extension)) chain.Add(item, type);
  };
  chain.Add(storage16, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_16BIT_STORAGE_FEATURES);
  add(VK_KHR_8BIT_STORAGE_EXTENSION_NAME, storage8, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_8BIT_STORAGE_FEATURES);
  add(VK_KHR_SHADER_FLOAT16_INT8_EXTENSION_NAME, float16_int8,
      VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_FLOAT16_INT8_FEATURES);
  add(VK_KHR_TIMELINE_SEMAPHORE_EXTENSION_NAME, timeline,
      VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_TIMELINE_SEMAPHORE_FEATURES);
  add(VK_KHR_BUFFER_DEVICE_ADDRESS_EXTENSION_NAME, address,
      VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_BUFFER_DEVICE_ADDRESS_FEATURES);
  add(VK_EXT_SUBGROUP_SIZE_CONTROL_EXTENSION_NAME, size_control,
      VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_FEATURES);
  add(VK_KHR_SHADER_INTEGER_DOT_PRODUCT_EXTENSION_NAME, dot,
      VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_INTEGER_DOT_PRODUCT_FEATURES);
  VkPhysicalDeviceFeatures2 features{};
  features.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2;
  features.pNext = chain.head();
  vkGetPhysicalDeviceFeatures2(device, &features);

  facts.shader_int16 = features.features.shaderInt16 == VK_TRUE;
  facts.shader_float16 = float16_int8.shaderFloat16 == VK_TRUE;
  facts.shader_int8 = float16_int8.shaderInt8 == VK_TRUE;
  facts.storage_buffer_8bit = storage8.storageBuffer8BitAccess == VK_TRUE;
  facts.uniform_buffer_8bit = storage8.uniformAndStorageBuffer8BitAccess == VK_TRUE;
  facts.storage_buffer_16bit = storage16.storageBuffer16BitAccess == VK_TRUE;
  facts.uniform_buffer_16bit = storage16.uniformAndStorageBuffer16BitAccess == VK_TRUE;
  facts.timeline = timeline.timelineSemaphore == VK_TRUE;
  facts.buffer_device_address = address.bufferDeviceAddress == VK_TRUE;
  facts.subgroup_size_control = facts.subgroup_size_control && size_control.subgroupSizeControl == VK_TRUE;
  facts.compute_full_subgroups = size_control.computeFullSubgroups == VK_TRUE;
  facts.integer_dot_product = dot.shaderIntegerDotProduct == VK_TRUE;
  facts.integer_dot_product_4x8_accelerated =
      facts.integer_dot_product && facts.integer_dot_product_4x8_accelerated;
  facts.external_memory_host = extensions.contains(VK_EXT_EXTERNAL_MEMORY_HOST_EXTENSION_NAME);
  facts.memory_budget = extensions.contains(VK_EXT_MEMORY_BUDGET_EXTENSION_NAME);
  facts.portability_subset = extensions.contains("VK_KHR_portability_subset");
}

void QueryMemoryAndQueues(VkPhysicalDevice device, DeviceFacts& facts) {
  VkPhysicalDeviceMemoryProperties memory{};
  vkGetPhysicalDeviceMemoryProperties(device, &memory);
  for (uint32_t i = 0; i < memory.memoryHeapCount; ++i) {
    facts.memory_heaps.push_back({memory.memoryHeaps[i].size, memory.memoryHeaps[i].flags});
  }
  for (uint32_t i = 0; i < memory.memoryTypeCount; ++i) {
    facts.memory_types.push_back({memory.memoryTypes[i].heapIndex, memory.memoryTypes[i].propertyFlags});
  }
  uint32_t count = 0;
  vkGetPhysicalDeviceQueueFamilyProperties(device, &count, nullptr);
  std::vector<VkQueueFamilyProperties> families(count);
  vkGetPhysicalDeviceQueueFamilyProperties(device, &count, families.data());
  for (const VkQueueFamilyProperties& family : families) {
    facts.queue_families.push_back({family.queueFlags, family.queueCount, family.timestampValidBits});
  }
}

}  // namespace

Result<DeviceFacts> QueryDeviceFacts(VkPhysicalDevice device) {
  DeviceFacts facts;
  VkPhysicalDeviceProperties properties{};
  vkGetPhysicalDeviceProperties(device, &properties);
  SetIdentity(properties, facts);
  SetLimits(properties.limits, facts);
  QueryMemoryAndQueues(device, facts);
  if (properties.apiVersion < VK_API_VERSION_1_1) return facts;
  KVRUN_ASSIGN_OR_RETURN(const std::set<std::string> extensions, ListExtensions(device));
  QueryProperties(device, extensions, facts);
  QueryFeatures(device, extensions, facts);
  return facts;
}

}  // namespace kvrun
