// Times on the device, for per-operation statistics.
#pragma once

#include <cstdint>
#include <vector>

#include "platform/base/status.h"
#include "platform/vulkan/device.h"

namespace kvrun {

class TimestampPool {
 public:
  // Fails where plan.timestamps is false.
  static Result<TimestampPool> Create(const VulkanDevice& device, uint32_t capacity);

  uint32_t capacity() const { return capacity_; }

  // Recorded before the first Write of each submission.
  void RecordReset(VkCommandBuffer commands) const;
  // The time when all commands recorded before have completed.
  void RecordWrite(VkCommandBuffer commands, uint32_t index) const;

  // The first `count` times in nanoseconds since the first of them; only once the commands have completed.
  Result<std::vector<double>> ReadNs(uint32_t count) const;

 private:
  TimestampPool() = default;

  const VulkanDevice* device_ = nullptr;
  UniqueQueryPool pool_;
  uint32_t capacity_ = 0;
};

// Nanoseconds from `begin` to `end`, counters of `valid_bits` bits that may have wrapped once.
double TimestampDifferenceNs(uint64_t begin, uint64_t end, uint32_t valid_bits, double period_ns);

}  // namespace kvrun
