// The Vulkan instance, with the validation layer and a counting messenger where asked for.
#pragma once

#include <volk.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "platform/base/status.h"

namespace kvrun {

struct InstanceOptions {
  bool validation = false;
  bool sync_validation = false;  // with `validation`: synchronisation validation too
  // Manifests of the drivers that may be opened; nothing: those that the loader finds. While an instance is
  // created with some, this process's VK_DRIVER_FILES and VK_ICD_FILENAMES name them.
  std::optional<std::vector<std::string>> drivers = std::nullopt;

  // KVRUN_VALIDATION=1 turns both on.
  static InstanceOptions FromEnvironment();
};

// Asks for Vulkan 1.1 only, so that everything newer has to come through an extension that was found.
// Devices keep the instance alive (shared_ptr). Several instances may exist.
class VulkanInstance {
 public:
  static Result<std::shared_ptr<VulkanInstance>> Create(const InstanceOptions& options);
  // kNotFound where this machine has none. Opens no driver.
  static Status FindLoader();
  // Whether this process has opened drivers: a copy of it (fork) could not use them.
  static bool WasCreated();

  VulkanInstance(const VulkanInstance&) = delete;
  VulkanInstance& operator=(const VulkanInstance&) = delete;
  ~VulkanInstance();

  VkInstance handle() const { return instance_; }
  // In the loader's order, devices below Vulkan 1.1 included (PlanDevice refuses them with a reason).
  Result<std::vector<VkPhysicalDevice>> PhysicalDevices() const;

  // False if validation was not asked for, or the layer is not installed (said on stderr).
  bool validation_enabled() const { return validation_enabled_; }
  // Warnings and errors of the validation layer so far; each is written to stderr.
  uint64_t validation_messages() const { return validation_messages_.load(); }
  // The same over all instances of the process, those that are gone included.
  static uint64_t AllValidationMessages();
  void CountValidationMessage();

 private:
  VulkanInstance() = default;
  Status CreateHandle(const InstanceOptions& options);
  void CreateMessenger(const VkDebugUtilsMessengerCreateInfoEXT& info);

  VkInstance instance_ = VK_NULL_HANDLE;
  VkDebugUtilsMessengerEXT messenger_ = VK_NULL_HANDLE;
  bool validation_enabled_ = false;
  std::atomic<uint64_t> validation_messages_{0};
};

}  // namespace kvrun
