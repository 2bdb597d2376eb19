#include "platform/vulkan/commands.h"

#include <string>

#include "platform/vulkan/vk_status.h"

namespace kvrun {

Result<CommandPool> CommandPool::Create(const VulkanDevice& device) {
  VkCommandPoolCreateInfo info{};
  info.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO;
  info.flags = VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT;
  info.queueFamilyIndex = device.plan().queue_family;
  VkCommandPool pool = VK_NULL_HANDLE;
  KVRUN_RETURN_IF_VK_ERROR(device.vk().vkCreateCommandPool(device.handle(), &info, nullptr, &pool),
                           "cannot create a command pool");
  CommandPool result;
  result.device_ = &device;
  result.pool_ = UniqueCommandPool(device, pool);
  return result;
}

Result<VkCommandBuffer> CommandPool::Allocate() {
  if (n_used_ < buffers_.size()) return buffers_[n_used_++];
  VkCommandBufferAllocateInfo info{};
  info.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO;
  info.commandPool = pool_.get();
  info.level = VK_COMMAND_BUFFER_LEVEL_PRIMARY;
  info.commandBufferCount = 1;
  VkCommandBuffer commands = VK_NULL_HANDLE;
  KVRUN_RETURN_IF_VK_ERROR(device_->vk().vkAllocateCommandBuffers(device_->handle(), &info, &commands),
                           "cannot allocate a command buffer");
  buffers_.push_back(commands);
  ++n_used_;
  return commands;
}

Status CommandPool::Reset() {
  n_used_ = 0;
  return StatusFromVk(device_->vk().vkResetCommandPool(device_->handle(), pool_.get(), 0),
                      "cannot reset a command pool");
}

Status BeginCommands(const VulkanDevice& device, VkCommandBuffer commands, bool one_time) {
  VkCommandBufferBeginInfo info{};
  info.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO;
  if (one_time) info.flags = VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT;
  return StatusFromVk(device.vk().vkBeginCommandBuffer(commands, &info), "cannot record commands");
}

Status EndCommands(const VulkanDevice& device, VkCommandBuffer commands) {
  return StatusFromVk(device.vk().vkEndCommandBuffer(commands), "cannot record commands");
}

void RecordFullBarrier(const VulkanDevice& device, VkCommandBuffer commands) {
  constexpr VkPipelineStageFlags kWork =
      VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT | VK_PIPELINE_STAGE_TRANSFER_BIT;
  VkMemoryBarrier barrier{};
  barrier.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER;
  barrier.srcAccessMask = VK_ACCESS_SHADER_WRITE_BIT | VK_ACCESS_TRANSFER_WRITE_BIT;
  barrier.dstAccessMask = VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT |
                          VK_ACCESS_UNIFORM_READ_BIT | VK_ACCESS_TRANSFER_READ_BIT |
                          VK_ACCESS_TRANSFER_WRITE_BIT | VK_ACCESS_HOST_READ_BIT |
                          VK_ACCESS_INDIRECT_COMMAND_READ_BIT;
  device.vk().vkCmdPipelineBarrier(commands, kWork,
                                   kWork | VK_PIPELINE_STAGE_HOST_BIT | VK_PIPELINE_STAGE_DRAW_INDIRECT_BIT,
                                   0, 1, &barrier, 0, nullptr, 0, nullptr);
}

void RecordComputeBarrier(const VulkanDevice& device, VkCommandBuffer commands,
                          std::span<const VkBuffer> written, bool after_host) {
  VkPipelineStageFlags before = VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT;
  VkMemoryBarrier host{};
  host.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER;
  host.srcAccessMask = VK_ACCESS_HOST_WRITE_BIT;
  host.dstAccessMask = VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_UNIFORM_READ_BIT;
  if (after_host) before |= VK_PIPELINE_STAGE_HOST_BIT;
  std::vector<VkBufferMemoryBarrier> barriers;
  for (const VkBuffer buffer : written) {
    VkBufferMemoryBarrier barrier{};
    barrier.sType = VK_STRUCTURE_TYPE_BUFFER_MEMORY_BARRIER;
    barrier.srcAccessMask = VK_ACCESS_SHADER_WRITE_BIT;
    barrier.dstAccessMask = VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT;
    barrier.srcQueueFamilyIndex = barrier.dstQueueFamilyIndex = VK_QUEUE_FAMILY_IGNORED;
    barrier.buffer = buffer;
    barrier.size = VK_WHOLE_SIZE;
    barriers.push_back(barrier);
  }
  device.vk().vkCmdPipelineBarrier(commands, before, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, 0,
                                   after_host ? 1 : 0, &host, static_cast<uint32_t>(barriers.size()),
                                   barriers.data(), 0, nullptr);
}

Status RunOnce(const VulkanDevice& device, std::string_view what,
               const std::function<void(VkCommandBuffer)>& record) {
  KVRUN_ASSIGN_OR_RETURN(CommandPool pool, CommandPool::Create(device));
  KVRUN_ASSIGN_OR_RETURN(VkCommandBuffer commands, pool.Allocate());
  KVRUN_RETURN_IF_ERROR(BeginCommands(device, commands, /*one_time=*/true));
  record(commands);
  KVRUN_RETURN_IF_ERROR(EndCommands(device, commands));
  VkFenceCreateInfo fence_info{};
  fence_info.sType = VK_STRUCTURE_TYPE_FENCE_CREATE_INFO;
  VkFence fence_handle = VK_NULL_HANDLE;
  KVRUN_RETURN_IF_VK_ERROR(device.vk().vkCreateFence(device.handle(), &fence_info, nullptr, &fence_handle),
                           what);
  const UniqueFence fence(device, fence_handle);
  VkSubmitInfo submit{};
  submit.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO;
  submit.commandBufferCount = 1;
  submit.pCommandBuffers = &commands;
  KVRUN_RETURN_IF_ERROR(device.Submit({&submit, 1}, fence_handle, what));
  return StatusFromVk(device.vk().vkWaitForFences(device.handle(), 1, &fence_handle, VK_TRUE, UINT64_MAX),
                      what);
}

}  // namespace kvrun
