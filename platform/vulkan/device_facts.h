// Everything a plan needs to know about a device, as plain data: queried once, or read from a file.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "platform/base/status.h"

namespace kvrun {

// The values are those of VkPhysicalDeviceType.
enum class DeviceType : uint32_t {
  kOther = 0,
  kIntegratedGpu = 1,
  kDiscreteGpu = 2,
  kVirtualGpu = 3,
  kCpu = 4
};

std::string_view DeviceTypeName(DeviceType type);

struct MemoryHeapFacts {
  uint64_t size_bytes = 0;
  uint32_t flags = 0;  // VkMemoryHeapFlags
};

struct MemoryTypeFacts {
  uint32_t heap_index = 0;
  uint32_t flags = 0;  // VkMemoryPropertyFlags
};

struct QueueFamilyFacts {
  uint32_t flags = 0;  // VkQueueFlags
  uint32_t queue_count = 0;
  uint32_t timestamp_valid_bits = 0;
};

struct DeviceFacts {
  std::string source;  // where a committed file's values come from; empty if queried here
  std::string name;
  uint32_t vendor_id = 0;
  uint32_t device_id = 0;
  DeviceType type = DeviceType::kOther;
  uint32_t api_version = 0;  // as VK_MAKE_API_VERSION packs it
  uint32_t driver_version = 0;
  uint32_t driver_id = 0;  // VkDriverId; 0 if the driver does not say
  std::string driver_name;
  std::string driver_info;
  std::string device_uuid;  // pipelineCacheUUID, 32 hexadecimal digits: changes with device and driver

  // Limits.
  uint64_t max_storage_buffer_range_bytes = 0;
  uint64_t max_uniform_buffer_range_bytes = 0;
  uint32_t max_texel_buffer_elements = 0;
  uint64_t min_storage_buffer_offset_alignment_bytes = 0;
  uint64_t min_uniform_buffer_offset_alignment_bytes = 0;
  uint64_t non_coherent_atom_bytes = 0;
  uint64_t min_memory_map_alignment_bytes = 0;
  uint64_t max_allocation_bytes = 0;
  uint32_t max_allocations = 0;
  uint32_t max_push_constants_bytes = 0;
  uint32_t max_bound_descriptor_sets = 0;
  uint32_t max_storage_buffers_per_stage = 0;
  uint32_t max_uniform_buffers_per_stage = 0;
  uint32_t max_storage_buffers_per_set = 0;
  uint32_t max_dynamic_uniform_buffers_per_set = 0;
  uint32_t max_shared_memory_bytes = 0;
  uint32_t max_workgroup_invocations = 0;
  uint32_t max_workgroup_size_x = 0;
  uint32_t max_workgroup_size_y = 0;
  uint32_t max_workgroup_size_z = 0;
  uint32_t max_workgroup_count_x = 0;
  uint32_t max_workgroup_count_y = 0;
  uint32_t max_workgroup_count_z = 0;
  double timestamp_period_ns = 0;

  // Subgroups. Operations are VkSubgroupFeatureFlags, and 0 if the compute stage has none.
  uint32_t subgroup_width = 0;
  uint32_t min_subgroup_width = 0;  // equal to subgroup_width where the driver does not say
  uint32_t max_subgroup_width = 0;
  uint32_t subgroup_ops = 0;
  bool subgroup_size_control = false;  // a required width can be asked for in the compute stage
  bool compute_full_subgroups = false;

  // Features.
  bool shader_float16 = false;
  bool shader_int8 = false;
  bool shader_int16 = false;
  bool storage_buffer_8bit = false;
  bool storage_buffer_16bit = false;
  bool uniform_buffer_8bit = false;
  bool uniform_buffer_16bit = false;
  bool integer_dot_product = false;
  bool integer_dot_product_4x8_accelerated = false;
  bool timeline = false;
  bool buffer_device_address = false;
  bool external_memory_host = false;
  uint64_t min_imported_host_pointer_alignment_bytes = 0;
  bool memory_budget = false;
  bool portability_subset = false;  // must be enabled where it is present

  std::vector<MemoryHeapFacts> memory_heaps;
  std::vector<MemoryTypeFacts> memory_types;
  std::vector<QueueFamilyFacts> queue_families;
};

// "1.3.230".
std::string FormatApiVersion(uint32_t version);

std::string DeviceFactsToJson(const DeviceFacts& facts);
// `origin` names the text in messages, such as a path. Unknown and missing keys are errors.
Result<DeviceFacts> DeviceFactsFromJson(std::string_view json, std::string_view origin);
Status SaveDeviceFacts(const DeviceFacts& facts, const std::string& path);
Result<DeviceFacts> LoadDeviceFacts(const std::string& path);

// Lowers what the device can do: `spec` is "" (nothing), or a comma-separated list of "floor" (the floor
// profile) and field=value. A field is only ever made worse; a value better than the device's own has no
// effect. Names and ids cannot be clamped.
Result<DeviceFacts> ClampFacts(DeviceFacts facts, std::string_view spec);
// The environment variable KVRUN_DEVICE_CLAMP holds the spec.
Result<DeviceFacts> ClampFactsByEnvironment(DeviceFacts facts);

}  // namespace kvrun
