#include "platform/vulkan/timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "platform/base/check.h"
#include "platform/vulkan/vk_status.h"

namespace kvrun {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kMaxWaitNs = uint64_t{365} * 24 * 3600 * 1'000'000'000;  // keeps the clock from overflow
constexpr uint64_t kDestructionWaitNs = uint64_t{10} * 1'000'000'000;

uint64_t NanosecondsUntil(Clock::time_point deadline) {
  const auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(deadline - Clock::now()).count();
  return left > 0 ? static_cast<uint64_t>(left) : 0;
}

}  // namespace

Result<std::unique_ptr<Timeline>> Timeline::Create(const VulkanDevice& device, bool use_semaphore) {
  std::unique_ptr<Timeline> timeline(new Timeline(device));
  if (!use_semaphore) return timeline;
  if (!device.plan().use_timeline) {
    return Status(StatusCode::kUnsupported,
                  fmt::format("device \"{}\" has no timeline semaphores", device.facts().name));
  }
  VkSemaphoreTypeCreateInfo type{};
  type.sType = VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO;
  type.semaphoreType = VK_SEMAPHORE_TYPE_TIMELINE;
  VkSemaphoreCreateInfo info{};
  info.sType = VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO;
  info.pNext = &type;
  VkSemaphore semaphore = VK_NULL_HANDLE;
  KVRUN_RETURN_IF_VK_ERROR(device.vk().vkCreateSemaphore(device.handle(), &info, nullptr, &semaphore),
                           "cannot create a timeline semaphore");
  timeline->semaphore_ = UniqueSemaphore(device, semaphore);
  return timeline;
}

Timeline::~Timeline() {
  if (semaphore_) {
    (void)Wait(last_value_, kDestructionWaitNs);
  } else if (!pending_.empty()) {
    (void)WaitForFence(pending_.back().value, kDestructionWaitNs);
  }
}

// Called with the mutex held.
Status Timeline::Advance(uint64_t value) {
  if (value <= last_value_) {
    return {StatusCode::kInternal,
            fmt::format("timeline value {} does not come after {}", value, last_value_)};
  }
  last_value_ = value;
  return Status::Ok();
}

Status Timeline::Submit(std::span<const VkCommandBuffer> commands, uint64_t signal_value,
                        std::optional<TimelinePoint> wait) {
  if (wait && wait->timeline->uses_semaphore() != uses_semaphore()) {
    return {StatusCode::kInternal, "a timeline of semaphores and one of fences cannot wait for each other"};
  }
  return semaphore_ ? SubmitWithSemaphore(commands, signal_value, wait)
                    : SubmitWithFence(commands, signal_value, wait);
}

Status Timeline::SubmitWithSemaphore(std::span<const VkCommandBuffer> commands, uint64_t signal_value,
                                     std::optional<TimelinePoint> wait) {
  if (commands.size() <= 1) {
    const TimelineWork work{commands.empty() ? VK_NULL_HANDLE : commands[0], signal_value, wait};
    return SubmitAll({&work, 1});
  }
  std::vector<TimelineWork> works;
  for (const VkCommandBuffer buffer : commands) works.push_back({buffer, 0, std::nullopt});
  works.front().wait = wait;
  works.back().value = signal_value;
  return SubmitAll(works);
}

Status Timeline::SubmitAll(std::span<const TimelineWork> works) {
  const VkSemaphore signalled = semaphore_.get();
  const VkPipelineStageFlags stages = VK_PIPELINE_STAGE_ALL_COMMANDS_BIT;
  const std::lock_guard lock(mutex_);  // values reach the queue in order
  // What the driver reads keeps its place, and its memory from step to step.
  semaphore_infos_.assign(works.size(), {});
  submits_.assign(works.size(), {});
  waited_.assign(works.size(), VK_NULL_HANDLE);
  for (size_t i = 0; i < works.size(); ++i) {
    const TimelineWork& work = works[i];
    VkTimelineSemaphoreSubmitInfo& values = semaphore_infos_[i];
    VkSubmitInfo& submit = submits_[i];
    values.sType = VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO;
    submit.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO;
    submit.pNext = &values;
    submit.commandBufferCount = work.commands != VK_NULL_HANDLE ? 1 : 0;
    submit.pCommandBuffers = &work.commands;
    if (work.value != 0) {
      KVRUN_RETURN_IF_ERROR(Advance(work.value));
      values.signalSemaphoreValueCount = 1;
      values.pSignalSemaphoreValues = &work.value;
      submit.signalSemaphoreCount = 1;
      submit.pSignalSemaphores = &signalled;
    }
    if (work.wait) {
      waited_[i] = work.wait->timeline->semaphore_.get();
      values.waitSemaphoreValueCount = 1;
      values.pWaitSemaphoreValues = &work.wait->value;
      submit.waitSemaphoreCount = 1;
      submit.pWaitSemaphores = &waited_[i];
      submit.pWaitDstStageMask = &stages;
    }
  }
  return device_->Submit(submits_, VK_NULL_HANDLE, "cannot submit work to the device");
}

Status Timeline::SubmitWithFence(std::span<const VkCommandBuffer> commands, uint64_t signal_value,
                                 std::optional<TimelinePoint> wait) {
  if (wait) {
    const Result<bool> reached = wait->timeline->Wait(wait->value, kWaitForever);
    if (!reached.ok()) return reached.status();
  }
  VkSubmitInfo submit{};
  submit.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO;
  submit.commandBufferCount = static_cast<uint32_t>(commands.size());
  submit.pCommandBuffers = commands.data();
  const std::lock_guard lock(mutex_);
  KVRUN_RETURN_IF_ERROR(Advance(signal_value));
  KVRUN_ASSIGN_OR_RETURN(std::shared_ptr<UniqueFence> fence, TakeFence());
  KVRUN_RETURN_IF_ERROR(device_->Submit({&submit, 1}, fence->get(), "cannot submit work to the device"));
  pending_.push_back({signal_value, std::move(fence)});
  changed_.notify_all();
  return Status::Ok();
}

// Called with the mutex held.
Result<std::shared_ptr<UniqueFence>> Timeline::TakeFence() {
  KVRUN_RETURN_IF_ERROR(CollectFences());
  const auto idle = std::find_if(spare_.begin(), spare_.end(), [](const std::shared_ptr<UniqueFence>& fence) {
    return fence.use_count() == 1;
  });
  if (idle != spare_.end()) {
    std::shared_ptr<UniqueFence> fence = std::move(*idle);
    spare_.erase(idle);
    const VkFence handle = fence->get();
    KVRUN_RETURN_IF_VK_ERROR(device_->vk().vkResetFences(device_->handle(), 1, &handle),
                             "cannot reset a fence");
    return fence;
  }
  VkFenceCreateInfo info{};
  info.sType = VK_STRUCTURE_TYPE_FENCE_CREATE_INFO;
  VkFence fence = VK_NULL_HANDLE;
  KVRUN_RETURN_IF_VK_ERROR(device_->vk().vkCreateFence(device_->handle(), &info, nullptr, &fence),
                           "cannot create a fence");
  return std::make_shared<UniqueFence>(*device_, fence);
}

// Called with the mutex held: moves the fences that are signalled out of pending_.
Status Timeline::CollectFences() {
  while (!pending_.empty()) {
    PendingFence& first = pending_.front();
    const VkResult result = device_->vk().vkGetFenceStatus(device_->handle(), first.fence->get());
    KVRUN_RETURN_IF_VK_ERROR(result, "cannot ask the device for its progress");
    if (result != VK_SUCCESS) break;
    completed_ = std::max(completed_, first.value);
    spare_.push_back(std::move(first.fence));
    pending_.erase(pending_.begin());
    changed_.notify_all();
  }
  return Status::Ok();
}

Status Timeline::Signal(uint64_t value) {
  const std::lock_guard lock(mutex_);
  KVRUN_RETURN_IF_ERROR(Advance(value));
  if (!semaphore_) {
    completed_ = value;
    changed_.notify_all();
    return Status::Ok();
  }
  VkSemaphoreSignalInfo info{};
  info.sType = VK_STRUCTURE_TYPE_SEMAPHORE_SIGNAL_INFO;
  info.semaphore = semaphore_.get();
  info.value = value;
  return StatusFromVk(device_->vk().vkSignalSemaphoreKHR(device_->handle(), &info),
                      "cannot signal the device");
}

Result<bool> Timeline::Wait(uint64_t value, uint64_t timeout_ns) {
  if (!semaphore_) return WaitForFence(value, timeout_ns);
  const VkSemaphore semaphore = semaphore_.get();
  VkSemaphoreWaitInfo info{};
  info.sType = VK_STRUCTURE_TYPE_SEMAPHORE_WAIT_INFO;
  info.semaphoreCount = 1;
  info.pSemaphores = &semaphore;
  info.pValues = &value;
  const VkResult result = device_->vk().vkWaitSemaphoresKHR(device_->handle(), &info, timeout_ns);
  KVRUN_RETURN_IF_VK_ERROR(result, "cannot wait for the device");
  return result == VK_SUCCESS;
}

Result<bool> Timeline::WaitForFence(uint64_t value, uint64_t timeout_ns) {
  const auto deadline = Clock::now() + std::chrono::nanoseconds(std::min(timeout_ns, kMaxWaitNs));
  std::unique_lock lock(mutex_);
  while (completed_ < value) {
    const auto next = std::find_if(pending_.begin(), pending_.end(),
                                   [value](const PendingFence& fence) { return fence.value >= value; });
    if (next == pending_.end()) {
      // Not submitted yet: by another thread, or never.
      if (changed_.wait_until(lock, deadline) == std::cv_status::timeout) return completed_ >= value;
      continue;
    }
    const std::shared_ptr<UniqueFence> fence = next->fence;  // keeps it from being reset
    const uint64_t fence_value = next->value;
    const VkFence handle = fence->get();
    lock.unlock();
    const VkResult result =
        device_->vk().vkWaitForFences(device_->handle(), 1, &handle, VK_TRUE, NanosecondsUntil(deadline));
    KVRUN_RETURN_IF_VK_ERROR(result, "cannot wait for the device");
    lock.lock();
    if (result == VK_TIMEOUT) return completed_ >= value;
    completed_ = std::max(completed_, fence_value);
    KVRUN_RETURN_IF_ERROR(CollectFences());
  }
  return true;
}

Result<uint64_t> Timeline::Completed() {
  if (semaphore_) {
    uint64_t value = 0;
    KVRUN_RETURN_IF_VK_ERROR(
        device_->vk().vkGetSemaphoreCounterValueKHR(device_->handle(), semaphore_.get(), &value),
        "cannot ask the device for its progress");
    return value;
  }
  const std::lock_guard lock(mutex_);
  KVRUN_RETURN_IF_ERROR(CollectFences());
  return completed_;
}

}  // namespace kvrun
