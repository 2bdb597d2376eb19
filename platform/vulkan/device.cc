#include "platform/vulkan/device.h"

#include <fmt/format.h>

#include <vector>

#include "platform/vulkan/vk_status.h"

namespace kvrun {
namespace {

// The extensions and feature structs that a plan needs; must stay where it is once Build was called.
class FeatureChain {
 public:
  explicit FeatureChain(const DevicePlan& plan) {
    AddArithmetic(plan);
    AddStorage(plan);
    if (plan.use_timeline) {
      timeline_.timelineSemaphore = VK_TRUE;
      Add(VK_KHR_TIMELINE_SEMAPHORE_EXTENSION_NAME, timeline_,
          VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_TIMELINE_SEMAPHORE_FEATURES);
    }
    if (plan.use_subgroup_size_control) {
      size_control_.subgroupSizeControl = VK_TRUE;
      size_control_.computeFullSubgroups = plan.use_full_subgroups ? VK_TRUE : VK_FALSE;
      Add(VK_EXT_SUBGROUP_SIZE_CONTROL_EXTENSION_NAME, size_control_,
          VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_FEATURES);
    }
    if (plan.use_external_memory_host) extensions_.push_back(VK_EXT_EXTERNAL_MEMORY_HOST_EXTENSION_NAME);
    if (plan.use_memory_budget) extensions_.push_back(VK_EXT_MEMORY_BUDGET_EXTENSION_NAME);
    if (plan.enable_portability_subset) extensions_.push_back("VK_KHR_portability_subset");
    features_.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2;
    features_.pNext = head_;
  }
  FeatureChain(const FeatureChain&) = delete;
  FeatureChain& operator=(const FeatureChain&) = delete;

  const void* head() const { return &features_; }
  const std::vector<const char*>& extensions() const { return extensions_; }

 private:
  template <typename T>
  void Add(const char* extension, T& item, VkStructureType type) {
    if (extension != nullptr) extensions_.push_back(extension);
    item.sType = type;
    item.pNext = head_;
    head_ = &item;
  }

  void AddArithmetic(const DevicePlan& plan) {
    features_.features.shaderInt16 = plan.use_int16 ? VK_TRUE : VK_FALSE;
    if (plan.use_float16 || plan.use_int8) {
      float16_int8_.shaderFloat16 = plan.use_float16 ? VK_TRUE : VK_FALSE;
      float16_int8_.shaderInt8 = plan.use_int8 ? VK_TRUE : VK_FALSE;
      Add(VK_KHR_SHADER_FLOAT16_INT8_EXTENSION_NAME, float16_int8_,
          VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_FLOAT16_INT8_FEATURES);
    }
    if (plan.use_integer_dot) {
      dot_.shaderIntegerDotProduct = VK_TRUE;
      Add(VK_KHR_SHADER_INTEGER_DOT_PRODUCT_EXTENSION_NAME, dot_,
          VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_INTEGER_DOT_PRODUCT_FEATURES);
    }
  }

  void AddStorage(const DevicePlan& plan) {
    if (plan.use_storage_8bit) {
      storage8_.storageBuffer8BitAccess = VK_TRUE;
      Add(VK_KHR_8BIT_STORAGE_EXTENSION_NAME, storage8_,
          VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_8BIT_STORAGE_FEATURES);
    }
    if (plan.use_storage_16bit) {
      storage16_.storageBuffer16BitAccess = VK_TRUE;
      Add(nullptr, storage16_, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_16BIT_STORAGE_FEATURES);
    }
  }

  std::vector<const char*> extensions_;
  void* head_ = nullptr;
  VkPhysicalDeviceFeatures2 features_{};
  VkPhysicalDevice16BitStorageFeatures storage16_{};
  VkPhysicalDevice8BitStorageFeatures storage8_{};
  VkPhysicalDeviceShaderFloat16Int8Features float16_int8_{};
  VkPhysicalDeviceShaderIntegerDotProductFeatures dot_{};
  VkPhysicalDeviceTimelineSemaphoreFeatures timeline_{};
  VkPhysicalDeviceSubgroupSizeControlFeatures size_control_{};
};

}  // namespace

VulkanDevice::VulkanDevice(std::shared_ptr<VulkanInstance> instance, VkPhysicalDevice physical,
                           DeviceFacts facts, DevicePlan plan)
    : instance_(std::move(instance)), physical_(physical), facts_(std::move(facts)), plan_(std::move(plan)) {}

Result<std::unique_ptr<VulkanDevice>> VulkanDevice::Create(std::shared_ptr<VulkanInstance> instance,
                                                           VkPhysicalDevice physical, DeviceFacts facts,
                                                           DevicePlan plan) {
  std::unique_ptr<VulkanDevice> device(
      new VulkanDevice(std::move(instance), physical, std::move(facts), std::move(plan)));
  const float priority = 1.0f;
  VkDeviceQueueCreateInfo queue{};
  queue.sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO;
  queue.queueFamilyIndex = device->plan_.queue_family;
  queue.queueCount = 1;
  queue.pQueuePriorities = &priority;
  const FeatureChain features(device->plan_);
  VkDeviceCreateInfo info{};
  info.sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO;
  info.pNext = features.head();
  info.queueCreateInfoCount = 1;
  info.pQueueCreateInfos = &queue;
  info.enabledExtensionCount = static_cast<uint32_t>(features.extensions().size());
  info.ppEnabledExtensionNames = features.extensions().data();
  KVRUN_RETURN_IF_VK_ERROR(vkCreateDevice(physical, &info, nullptr, &device->device_),
                           fmt::format("cannot open device \"{}\"", device->facts_.name));
  volkLoadDeviceTable(&device->table_, device->device_);
  device->table_.vkGetDeviceQueue(device->device_, device->plan_.queue_family, 0, &device->queue_);
  return device;
}

VulkanDevice::~VulkanDevice() {
  if (device_ == VK_NULL_HANDLE) return;
  (void)WaitIdle();
  table_.vkDestroyDevice(device_, nullptr);
}

Status VulkanDevice::Submit(std::span<const VkSubmitInfo> submits, VkFence fence,
                            std::string_view what) const {
  const std::lock_guard lock(queue_mutex_);
  return StatusFromVk(
      table_.vkQueueSubmit(queue_, static_cast<uint32_t>(submits.size()), submits.data(), fence), what);
}

Status VulkanDevice::WaitIdle() const {
  const std::lock_guard lock(queue_mutex_);
  return StatusFromVk(table_.vkQueueWaitIdle(queue_), "cannot wait for the device");
}

uint64_t VulkanDevice::HeapBudgetBytes(uint32_t heap_index) const {
  VkPhysicalDeviceMemoryBudgetPropertiesEXT budget{};
  budget.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_BUDGET_PROPERTIES_EXT;
  VkPhysicalDeviceMemoryProperties2 memory{};
  memory.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_PROPERTIES_2;
  memory.pNext = plan_.use_memory_budget ? &budget : nullptr;
  vkGetPhysicalDeviceMemoryProperties2(physical_, &memory);
  if (heap_index >= memory.memoryProperties.memoryHeapCount) return 0;
  if (!plan_.use_memory_budget) return memory.memoryProperties.memoryHeaps[heap_index].size;
  const uint64_t used = budget.heapUsage[heap_index];
  return budget.heapBudget[heap_index] > used ? budget.heapBudget[heap_index] - used : 0;
}

}  // namespace kvrun
