// Values that only grow, signalled by the device or the host: by a timeline semaphore, or by fences where a
// driver has none.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "platform/base/status.h"
#include "platform/vulkan/device.h"

namespace kvrun {

class Timeline;

struct TimelinePoint {
  Timeline* timeline = nullptr;
  uint64_t value = 0;
};

// Commands that start after `wait` is reached, and signal `value`, if it is not 0, when all is done.
struct TimelineWork {
  VkCommandBuffer commands = VK_NULL_HANDLE;
  uint64_t value = 0;
  std::optional<TimelinePoint> wait;
};

inline constexpr uint64_t kWaitForever = UINT64_MAX;

// Starts at 0. Every value of Submit and Signal is larger than the one before; a timeline is signalled by the
// device or by the host, not by both at once. Thread-safe. All work submitted must be able to complete before
// destruction, which waits for it.
class Timeline {
 public:
  static Result<std::unique_ptr<Timeline>> Create(const VulkanDevice& device) {
    return Create(device, device.plan().use_timeline);
  }
  // `use_semaphore` needs plan.use_timeline; false: fences, whatever the plan says.
  static Result<std::unique_ptr<Timeline>> Create(const VulkanDevice& device, bool use_semaphore);

  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;
  ~Timeline();

  // Submits `commands` to start after `wait` is reached, and to signal `signal_value` when all is done.
  // With semaphores this returns at once. With fences it returns only when `wait` has been reached, so
  // another thread (or earlier work) has to get there; `wait` must be of the same kind of timeline.
  Status Submit(std::span<const VkCommandBuffer> commands, uint64_t signal_value,
                std::optional<TimelinePoint> wait = std::nullopt);
  // The same of each in turn, in one call of the driver; with semaphores alone.
  Status SubmitAll(std::span<const TimelineWork> works);
  // By the host.
  Status Signal(uint64_t value);
  // False: `timeout_ns` has passed first. `value` is one that is signalled, not one in between (validation
  // layers stumble over those, and over several threads that wait for the same value). What the device wrote
  // can be read by the host if its commands end with RecordFullBarrier (and after Invalidate).
  Result<bool> Wait(uint64_t value, uint64_t timeout_ns = kWaitForever);
  Result<uint64_t> Completed();

  bool uses_semaphore() const { return static_cast<bool>(semaphore_); }

 private:
  struct PendingFence {
    uint64_t value = 0;
    std::shared_ptr<UniqueFence> fence;
  };

  explicit Timeline(const VulkanDevice& device) : device_(&device) {}
  Status Advance(uint64_t value);
  Status SubmitWithSemaphore(std::span<const VkCommandBuffer> commands, uint64_t signal_value,
                             std::optional<TimelinePoint> wait);
  Status SubmitWithFence(std::span<const VkCommandBuffer> commands, uint64_t signal_value,
                         std::optional<TimelinePoint> wait);
  Result<std::shared_ptr<UniqueFence>> TakeFence();
  Result<bool> WaitForFence(uint64_t value, uint64_t timeout_ns);
  Status CollectFences();

  const VulkanDevice* device_;
  UniqueSemaphore semaphore_;

  std::mutex mutex_;
  uint64_t last_value_ = 0;  // the latest of Submit and Signal

  // Semaphores only, of SubmitAll: what the driver reads.
  std::vector<VkTimelineSemaphoreSubmitInfo> semaphore_infos_;
  std::vector<VkSubmitInfo> submits_;
  std::vector<VkSemaphore> waited_;

  // Fences only.
  std::condition_variable changed_;  // a fence was submitted, or completed_ has grown
  uint64_t completed_ = 0;
  std::vector<PendingFence> pending_;                // few; keeps its memory from step to step
  std::vector<std::shared_ptr<UniqueFence>> spare_;  // signalled; reset before use, once nobody waits
};

}  // namespace kvrun
