#include "platform/vulkan/timestamp_pool.h"

#include <fmt/format.h>

#include "platform/base/check.h"
#include "platform/vulkan/vk_status.h"

namespace kvrun {

Result<TimestampPool> TimestampPool::Create(const VulkanDevice& device, uint32_t capacity) {
  if (!device.plan().timestamps) {
    return Status(StatusCode::kUnsupported,
                  fmt::format("device \"{}\" has no timestamps", device.facts().name));
  }
  VkQueryPoolCreateInfo info{};
  info.sType = VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO;
  info.queryType = VK_QUERY_TYPE_TIMESTAMP;
  info.queryCount = capacity;
  VkQueryPool pool = VK_NULL_HANDLE;
  KVRUN_RETURN_IF_VK_ERROR(device.vk().vkCreateQueryPool(device.handle(), &info, nullptr, &pool),
                           "cannot create a pool of timestamps");
  TimestampPool result;
  result.device_ = &device;
  result.pool_ = UniqueQueryPool(device, pool);
  result.capacity_ = capacity;
  return result;
}

void TimestampPool::RecordReset(VkCommandBuffer commands) const {
  device_->vk().vkCmdResetQueryPool(commands, pool_.get(), 0, capacity_);
}

void TimestampPool::RecordWrite(VkCommandBuffer commands, uint32_t index) const {
  KVRUN_CHECK(index < capacity_);
  device_->vk().vkCmdWriteTimestamp(commands, VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, pool_.get(), index);
}

Result<std::vector<double>> TimestampPool::ReadNs(uint32_t count) const {
  KVRUN_CHECK(count <= capacity_);
  if (count == 0) return std::vector<double>();
  std::vector<uint64_t> ticks(count);
  const VkResult result = device_->vk().vkGetQueryPoolResults(device_->handle(), pool_.get(), 0, count,
                                                              ticks.size() * sizeof(uint64_t), ticks.data(),
                                                              sizeof(uint64_t), VK_QUERY_RESULT_64_BIT);
  KVRUN_RETURN_IF_VK_ERROR(result, "cannot read timestamps");
  if (result == VK_NOT_READY) {
    return Status(StatusCode::kInternal, "timestamps were read before they were written");
  }
  const DevicePlan& plan = device_->plan();
  std::vector<double> times(count);
  for (uint32_t i = 0; i < count; ++i) {
    times[i] = TimestampDifferenceNs(ticks[0], ticks[i], plan.timestamp_valid_bits, plan.timestamp_period_ns);
  }
  return times;
}

double TimestampDifferenceNs(uint64_t begin, uint64_t end, uint32_t valid_bits, double period_ns) {
  const uint64_t mask = valid_bits >= 64 ? UINT64_MAX : (uint64_t{1} << valid_bits) - 1;
  return static_cast<double>((end - begin) & mask) * period_ns;
}

}  // namespace kvrun
