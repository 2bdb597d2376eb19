// A logical device with one compute queue, and exactly the features that its plan uses.
#pragma once

#include <volk.h>

#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <utility>

#include "platform/base/status.h"
#include "platform/vulkan/device_facts.h"
#include "platform/vulkan/device_plan.h"
#include "platform/vulkan/instance.h"

namespace kvrun {

// Must outlive everything that was made from it. Device functions are called through vk(), a table of its
// own, so several devices can be used at once. Thread-safe.
class VulkanDevice {
 public:
  // `plan` was made from `facts` (which may be clamped), and `facts` from `physical`.
  static Result<std::unique_ptr<VulkanDevice>> Create(std::shared_ptr<VulkanInstance> instance,
                                                      VkPhysicalDevice physical, DeviceFacts facts,
                                                      DevicePlan plan);

  VulkanDevice(const VulkanDevice&) = delete;
  VulkanDevice& operator=(const VulkanDevice&) = delete;
  ~VulkanDevice();  // waits until the queue is idle

  const VolkDeviceTable& vk() const { return table_; }
  VkDevice handle() const { return device_; }
  VkPhysicalDevice physical() const { return physical_; }
  const DeviceFacts& facts() const { return facts_; }
  const DevicePlan& plan() const { return plan_; }
  const VulkanInstance& instance() const { return *instance_; }

  // vkQueueSubmit under a lock.
  Status Submit(std::span<const VkSubmitInfo> submits, VkFence fence, std::string_view what) const;
  // For start, end and tests; never in the decode loop.
  Status WaitIdle() const;

  // What the driver says is left for this process in a heap; the heap's size where it does not say.
  uint64_t HeapBudgetBytes(uint32_t heap_index) const;

 private:
  VulkanDevice(std::shared_ptr<VulkanInstance> instance, VkPhysicalDevice physical, DeviceFacts facts,
               DevicePlan plan);

  std::shared_ptr<VulkanInstance> instance_;
  VkPhysicalDevice physical_ = VK_NULL_HANDLE;
  DeviceFacts facts_;
  DevicePlan plan_;
  VolkDeviceTable table_{};
  VkDevice device_ = VK_NULL_HANDLE;
  VkQueue queue_ = VK_NULL_HANDLE;
  mutable std::mutex queue_mutex_;
};

// Owns a child object of a device; move-only. kDestroy is its vkDestroy… or vkFree… member of the table.
template <typename Handle, auto kDestroy>
class UniqueHandle {
 public:
  UniqueHandle() = default;
  UniqueHandle(const VulkanDevice& device, Handle handle) : device_(&device), handle_(handle) {}
  UniqueHandle(UniqueHandle&& other) noexcept
      : device_(other.device_), handle_(std::exchange(other.handle_, Handle{})) {}
  UniqueHandle& operator=(UniqueHandle&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(handle_, other.handle_);
    return *this;
  }
  UniqueHandle(const UniqueHandle&) = delete;
  UniqueHandle& operator=(const UniqueHandle&) = delete;
  ~UniqueHandle() {
    if (handle_ != Handle{}) (device_->vk().*kDestroy)(device_->handle(), handle_, nullptr);
  }

  Handle get() const { return handle_; }
  explicit operator bool() const { return handle_ != Handle{}; }

 private:
  const VulkanDevice* device_ = nullptr;
  Handle handle_{};
};

using UniqueBuffer = UniqueHandle<VkBuffer, &VolkDeviceTable::vkDestroyBuffer>;
using UniqueBufferView = UniqueHandle<VkBufferView, &VolkDeviceTable::vkDestroyBufferView>;
using UniqueMemory = UniqueHandle<VkDeviceMemory, &VolkDeviceTable::vkFreeMemory>;
using UniqueFence = UniqueHandle<VkFence, &VolkDeviceTable::vkDestroyFence>;
using UniqueSemaphore = UniqueHandle<VkSemaphore, &VolkDeviceTable::vkDestroySemaphore>;
using UniqueShaderModule = UniqueHandle<VkShaderModule, &VolkDeviceTable::vkDestroyShaderModule>;
using UniquePipeline = UniqueHandle<VkPipeline, &VolkDeviceTable::vkDestroyPipeline>;
using UniquePipelineLayout = UniqueHandle<VkPipelineLayout, &VolkDeviceTable::vkDestroyPipelineLayout>;
using UniqueSetLayout = UniqueHandle<VkDescriptorSetLayout, &VolkDeviceTable::vkDestroyDescriptorSetLayout>;
using UniqueDescriptorPool = UniqueHandle<VkDescriptorPool, &VolkDeviceTable::vkDestroyDescriptorPool>;
using UniqueCommandPool = UniqueHandle<VkCommandPool, &VolkDeviceTable::vkDestroyCommandPool>;
using UniqueQueryPool = UniqueHandle<VkQueryPool, &VolkDeviceTable::vkDestroyQueryPool>;
using UniquePipelineCache = UniqueHandle<VkPipelineCache, &VolkDeviceTable::vkDestroyPipelineCache>;

}  // namespace kvrun
