#include "platform/vulkan/memory_import.h"

#include <fmt/format.h>

#include <optional>

#include "platform/base/units.h"
#include "platform/vulkan/vk_status.h"

namespace kvrun {
namespace {

constexpr VkExternalMemoryHandleTypeFlagBits kHandleType =
    VK_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT;

Status CheckImport(const VulkanDevice& device, std::span<const std::byte> host) {
  const DevicePlan& plan = device.plan();
  if (!plan.use_external_memory_host) {
    return {StatusCode::kUnsupported,
            device.facts().external_memory_host
                ? fmt::format("import of host memory is off for \"{}\": its driver is known to crash",
                              device.facts().name)
                : fmt::format("the driver of \"{}\" does not import host memory", device.facts().name)};
  }
  const uint64_t alignment = plan.host_import_alignment_bytes;
  const auto address = reinterpret_cast<uintptr_t>(host.data());
  if (alignment == 0 || host.empty() || address % alignment != 0 || host.size() % alignment != 0) {
    return {StatusCode::kInternal,
            fmt::format("host memory to import must be aligned to {} bytes", alignment)};
  }
  return Status::Ok();
}

Result<uint32_t> ChooseType(const VulkanDevice& device, std::span<std::byte> host, uint32_t buffer_types) {
  VkMemoryHostPointerPropertiesEXT properties{};
  properties.sType = VK_STRUCTURE_TYPE_MEMORY_HOST_POINTER_PROPERTIES_EXT;
  KVRUN_RETURN_IF_VK_ERROR(
      device.vk().vkGetMemoryHostPointerPropertiesEXT(device.handle(), kHandleType, host.data(), &properties),
      "the driver refuses this host memory");
  constexpr uint32_t kNeeded = VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
  const std::vector<MemoryTypeFacts>& types = device.facts().memory_types;
  for (uint32_t i = 0; i < types.size(); ++i) {
    if (((properties.memoryTypeBits & buffer_types) >> i & 1u) == 0) continue;
    if ((types[i].flags & kNeeded) == kNeeded) return i;
  }
  return Status(StatusCode::kUnsupported,
                "the driver imports host memory only as a type that is not coherent");
}

}  // namespace

Result<ImportedBuffer> ImportedBuffer::Import(const VulkanDevice& device, std::span<std::byte> host) {
  KVRUN_RETURN_IF_ERROR(CheckImport(device, host));
  const std::string what = fmt::format("cannot import {} of host memory", FormatBytes(host.size()));
  ImportedBuffer result;
  result.size_bytes_ = host.size();
  VkExternalMemoryBufferCreateInfo external{};
  external.sType = VK_STRUCTURE_TYPE_EXTERNAL_MEMORY_BUFFER_CREATE_INFO;
  external.handleTypes = kHandleType;
  VkBufferCreateInfo info{};
  info.sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO;
  info.pNext = &external;
  info.size = host.size();
  info.usage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_TRANSFER_SRC_BIT |
               VK_BUFFER_USAGE_TRANSFER_DST_BIT;
  VkBuffer buffer = VK_NULL_HANDLE;
  KVRUN_RETURN_IF_VK_ERROR(device.vk().vkCreateBuffer(device.handle(), &info, nullptr, &buffer), what);
  result.buffer_ = UniqueBuffer(device, buffer);
  VkMemoryRequirements needs{};
  device.vk().vkGetBufferMemoryRequirements(device.handle(), buffer, &needs);
  if (needs.size > host.size()) {
    return Status(StatusCode::kUnsupported, what + ": the driver wants more memory than the buffer holds");
  }
  KVRUN_ASSIGN_OR_RETURN(const uint32_t type_index, ChooseType(device, host, needs.memoryTypeBits));
  VkImportMemoryHostPointerInfoEXT import{};
  import.sType = VK_STRUCTURE_TYPE_IMPORT_MEMORY_HOST_POINTER_INFO_EXT;
  import.handleType = kHandleType;
  import.pHostPointer = host.data();
  VkMemoryAllocateInfo allocate{};
  allocate.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO;
  allocate.pNext = &import;
  allocate.allocationSize = host.size();
  allocate.memoryTypeIndex = type_index;
  VkDeviceMemory memory = VK_NULL_HANDLE;
  KVRUN_RETURN_IF_VK_ERROR(device.vk().vkAllocateMemory(device.handle(), &allocate, nullptr, &memory), what);
  result.memory_ = UniqueMemory(device, memory);
  KVRUN_RETURN_IF_VK_ERROR(device.vk().vkBindBufferMemory(device.handle(), buffer, memory, 0), what);
  return result;
}

}  // namespace kvrun
