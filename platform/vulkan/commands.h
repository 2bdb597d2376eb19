// Command buffers: recorded once, submitted often; and one-shot work outside of any loop.
#pragma once

#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "platform/base/status.h"
#include "platform/vulkan/device.h"

namespace kvrun {

// Command buffers live as long as their pool. Not thread-safe.
class CommandPool {
 public:
  static Result<CommandPool> Create(const VulkanDevice& device);

  // A primary command buffer; it may be recorded again.
  Result<VkCommandBuffer> Allocate();
  // Its command buffers are handed out anew; none of them is running.
  Status Reset();

 private:
  CommandPool() = default;

  const VulkanDevice* device_ = nullptr;
  UniqueCommandPool pool_;
  std::vector<VkCommandBuffer> buffers_;  // the first n_used_ are handed out
  size_t n_used_ = 0;
};

Status BeginCommands(const VulkanDevice& device, VkCommandBuffer commands, bool one_time = false);
Status EndCommands(const VulkanDevice& device, VkCommandBuffer commands);

// All earlier writes of shaders and copies become visible to all later commands, and to the host.
void RecordFullBarrier(const VulkanDevice& device, VkCommandBuffer commands);
// What earlier shaders wrote to these buffers becomes visible to later shaders, which begin when the earlier
// ones have ended: what stands between dependent dispatches. after_host: so does what the host wrote before
// the commands began, and after they were submitted.
void RecordComputeBarrier(const VulkanDevice& device, VkCommandBuffer commands,
                          std::span<const VkBuffer> written, bool after_host);

// Records, submits and waits. `what` names the work in messages.
Status RunOnce(const VulkanDevice& device, std::string_view what,
               const std::function<void(VkCommandBuffer)>& record);

}  // namespace kvrun
