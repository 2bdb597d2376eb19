#include "platform/vulkan/vk_status.h"

#include <fmt/format.h>

#include <string>

namespace kvrun {
namespace {

struct VkError {
  VkResult result;
  std::string_view name;
  StatusCode code;
  std::string_view advice;  // why, and what to do
};

constexpr VkError kErrors[] = {
    {VK_ERROR_OUT_OF_HOST_MEMORY, "VK_ERROR_OUT_OF_HOST_MEMORY", StatusCode::kOutOfMemory,
     "the driver found no host memory; close other programs or use a smaller model or context"},
    {VK_ERROR_OUT_OF_DEVICE_MEMORY, "VK_ERROR_OUT_OF_DEVICE_MEMORY", StatusCode::kOutOfMemory,
     "the device has no memory left; use a smaller model or context"},
    {VK_ERROR_OUT_OF_POOL_MEMORY, "VK_ERROR_OUT_OF_POOL_MEMORY", StatusCode::kOutOfMemory,
     "a descriptor pool is exhausted"},
    {VK_ERROR_FRAGMENTED_POOL, "VK_ERROR_FRAGMENTED_POOL", StatusCode::kOutOfMemory,
     "a descriptor pool is fragmented"},
    {VK_ERROR_TOO_MANY_OBJECTS, "VK_ERROR_TOO_MANY_OBJECTS", StatusCode::kOutOfMemory,
     "the driver's limit on allocations or objects is reached"},
    {VK_ERROR_MEMORY_MAP_FAILED, "VK_ERROR_MEMORY_MAP_FAILED", StatusCode::kOutOfMemory,
     "the address space or the driver does not allow the mapping"},
    {VK_ERROR_INVALID_EXTERNAL_HANDLE, "VK_ERROR_INVALID_EXTERNAL_HANDLE", StatusCode::kDevice,
     "the driver refuses to import this host memory"},
    {VK_ERROR_DEVICE_LOST, "VK_ERROR_DEVICE_LOST", StatusCode::kDevice,
     "the driver reset the device or crashed; run `kvrun doctor`, update the driver, or choose another "
     "--device"},
    {VK_ERROR_INITIALIZATION_FAILED, "VK_ERROR_INITIALIZATION_FAILED", StatusCode::kDevice,
     "the driver could not be initialised; check its installation with `kvrun devices`"},
    {VK_ERROR_INCOMPATIBLE_DRIVER, "VK_ERROR_INCOMPATIBLE_DRIVER", StatusCode::kNotFound,
     "no Vulkan driver is installed; install one (Debian: mesa-vulkan-drivers)"},
    {VK_ERROR_LAYER_NOT_PRESENT, "VK_ERROR_LAYER_NOT_PRESENT", StatusCode::kNotFound,
     "a Vulkan layer is not installed"},
    {VK_ERROR_EXTENSION_NOT_PRESENT, "VK_ERROR_EXTENSION_NOT_PRESENT", StatusCode::kUnsupported,
     "the driver lacks an extension that it reported"},
    {VK_ERROR_FEATURE_NOT_PRESENT, "VK_ERROR_FEATURE_NOT_PRESENT", StatusCode::kUnsupported,
     "the driver lacks a feature that it reported"},
    {VK_ERROR_INVALID_SHADER_NV, "VK_ERROR_INVALID_SHADER_NV", StatusCode::kDevice,
     "the driver rejects the shader"},
    {VK_ERROR_FORMAT_NOT_SUPPORTED, "VK_ERROR_FORMAT_NOT_SUPPORTED", StatusCode::kUnsupported,
     "the driver does not support a format"},
    {VK_ERROR_UNKNOWN, "VK_ERROR_UNKNOWN", StatusCode::kDevice,
     "the driver failed without a reason; run `kvrun doctor`"},
};

const VkError* FindError(VkResult result) {
  for (const VkError& error : kErrors) {
    if (error.result == result) return &error;
  }
  return nullptr;
}

std::string_view SuccessName(VkResult result) {
  switch (result) {
    case VK_SUCCESS: return "VK_SUCCESS";
    case VK_NOT_READY: return "VK_NOT_READY";
    case VK_TIMEOUT: return "VK_TIMEOUT";
    case VK_INCOMPLETE: return "VK_INCOMPLETE";
    default: return {};
  }
}

}  // namespace

std::string VkResultName(VkResult result) {
  if (const VkError* error = FindError(result)) return std::string(error->name);
  if (const std::string_view name = SuccessName(result); !name.empty()) return std::string(name);
  return fmt::format("VkResult {}", static_cast<int>(result));
}

Status StatusFromVk(VkResult result, std::string_view what) {
  if (result >= 0) return Status::Ok();
  if (const VkError* error = FindError(result)) {
    return {error->code, fmt::format("{}: {} ({})", what, error->advice, error->name)};
  }
  return {StatusCode::kDevice,
          fmt::format("{}: the driver failed ({}); run `kvrun doctor`", what, VkResultName(result))};
}

}  // namespace kvrun
