// The Vulkan device behind runtime/device: buffers, packed matrices, recorded lists.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "platform/base/status.h"
#include "platform/vulkan/commands.h"
#include "platform/vulkan/device.h"
#include "platform/vulkan/memory.h"
#include "platform/vulkan/timeline.h"
#include "runtime/device/device.h"
#include "runtime/device/vulkan/packed_matrix.h"
#include "runtime/device/vulkan/pipelines.h"

namespace kvrun {

class VulkanCommandList;

// "gpu", "integrated", "virtual" or "cpu", as DeviceInfo::kind says it.
std::string_view DeviceKindName(DeviceType type);

class VulkanBuffer : public Buffer {
 public:
  VulkanBuffer(DeviceBuffer memory, uint64_t size_bytes, BufferUse use)
      : Buffer(size_bytes), memory_(std::move(memory)), use_(use) {}

  std::span<std::byte> host() override {
    return IsOfDevice(use_) ? std::span<std::byte>{} : memory_.bytes().first(size_bytes_);
  }
  Status Flush(uint64_t offset_bytes, uint64_t length_bytes) override {
    return memory_.Flush(offset_bytes, length_bytes);
  }
  Status Invalidate(uint64_t offset_bytes, uint64_t length_bytes) override {
    return memory_.Invalidate(offset_bytes, length_bytes);
  }
  const DeviceBuffer& memory() const { return memory_; }
  BufferUse use() const { return use_; }

 private:
  DeviceBuffer memory_;
  BufferUse use_;
};

// Every buffer of a Vulkan device is one.
inline const VulkanBuffer& AsVulkan(const Buffer& buffer) { return static_cast<const VulkanBuffer&>(buffer); }

// What one operation's dispatches, or workgroups, hand on to each other. Lists share it, as they run one
// after another.
enum class Workspace : uint8_t {
  kGroups,  // of experts' uses
  kValues,
  kCounters,  // zeros, but while a kernel runs
};
inline constexpr size_t kWorkspaces = 3;

// Rows [row_begin, row_begin + layout.n_rows) of a matrix, packed in a buffer of their own.
struct MatrixSlice {
  uint32_t row_begin = 0;
  PackedLayout layout;
  DeviceBuffer memory;
};

class VulkanMatrix : public Matrix {
 public:
  VulkanMatrix(TensorType type, uint32_t n_rows, uint32_t n_cols) : Matrix(type, n_rows, n_cols) {}

  uint64_t size_bytes() const override;
  const std::vector<MatrixSlice>& slices() const { return slices_; }

 private:
  friend class VulkanComputeDevice;
  std::vector<MatrixSlice> slices_;
};

class VulkanComputeDevice : public Device {
 public:
  // `note` of the choice of device, for DeviceInfo::notes; may be empty.
  static Result<std::unique_ptr<VulkanComputeDevice>> Create(std::unique_ptr<VulkanDevice> vulkan,
                                                             bool profile, std::string note);
  ~VulkanComputeDevice() override;

  const DeviceInfo& info() const override { return info_; }
  bool FitsKv(const KvShape& shape) const override;
  // A sequence's KV head each: of the buffer of a shape that fits, RopeAndStore and Attend bind so many at a
  // time.
  uint32_t KvWindowStreams(const KvShape& shape) const;
  Result<std::unique_ptr<Buffer>> CreateBuffer(uint64_t size_bytes, BufferUse use,
                                               std::string_view part) override;
  // In memory that the CPU sees through caches, whatever the use, so that a device on the CPU can compute
  // there too: mapped, aligned to `alignment_bytes`. kUnsupported where the device has no such memory.
  Result<std::unique_ptr<VulkanBuffer>> CreateCachedBuffer(uint64_t size_bytes, BufferUse use,
                                                           std::string_view part, uint64_t alignment_bytes);
  Result<std::unique_ptr<Buffer>> CreateConstants(std::span<const std::byte> bytes,
                                                  std::string_view part) override;
  Result<std::unique_ptr<Matrix>> CreateMatrix(TensorType type, uint32_t n_cols,
                                               std::span<const MatrixSource> sources) override;
  uint64_t AttendScratchBytes(const AttentionArgs& args) const override;
  Status DropUnusedKernels() override;
  uint64_t AttendSlotsScratchBytes(const SlotAttentionArgs& args) const override;
  uint64_t ScoreScratchBytes(const ScoreArgs& args) const override;
  Result<std::unique_ptr<CommandList>> CreateCommandList() override;
  Result<uint64_t> Submit(CommandList& list, uint64_t wait_host = 0) override;
  Status SubmitAll(std::span<const Submission> submissions,
                   const std::function<void(size_t, uint64_t)>& submitted) override;
  // Of all lists that were submitted since the device was opened.
  struct WorkCounts {
    uint64_t lists = 0;
    uint64_t dispatches = 0;
    uint64_t barriers = 0;
  };
  WorkCounts work_counts();
  uint64_t ReserveHostValues(uint32_t count) override;
  Status SignalHost(uint64_t value) override;
  Status Wait(uint64_t value) override;
  Result<uint64_t> Completed() override { return timeline_->Completed(); }
  std::vector<MemoryPart> MemoryInUse() const override;
  std::vector<OperationTime> TakeOperationTimes() override;

  using Device::Download;
  Status Download(const Buffer& from, uint64_t offset_bytes, std::span<std::byte> to) override;
  Status Upload(std::span<const std::byte> from, Buffer* to, uint64_t offset_bytes) override;

  const VulkanDevice& vulkan() const { return *vulkan_; }
  const DevicePlan& plan() const { return vulkan_->plan(); }
  bool is_cpu() const { return info_.is_cpu; }
  bool profile() const { return profile_; }
  PipelineLibrary& pipelines() { return *pipelines_; }
  // Bound where an operation has no buffer for a binding.
  const VulkanBuffer& empty_buffer() const { return *empty_; }
  // At least so much of it. A list keeps what it was recorded with: the device may have grown another.
  Result<std::shared_ptr<const VulkanBuffer>> GetWorkspace(Workspace which, uint64_t size_bytes);
  // The list goes: no later Wait looks at it.
  void Forget(const VulkanCommandList& list);
  // What a list is made of. Drivers take a third of a millisecond to make it, so that what lists leave is
  // used again: a prompt has thousands of short ones.
  struct ListParts {
    CommandPool pool;
    DescriptorSets sets;
  };
  Result<ListParts> TakeListParts();
  // Nothing that was recorded with them is running.
  void GiveListParts(ListParts parts);

 private:
  VulkanComputeDevice() = default;

  Result<DeviceBuffer> AllocateFilled(uint64_t size_bytes, MemoryKind kind, std::string_view part,
                                      uint64_t alignment_bytes = 1);
  Result<std::unique_ptr<VulkanBuffer>> NewBuffer(uint64_t size_bytes, BufferUse use, MemoryKind kind,
                                                  std::string_view part, uint64_t alignment_bytes);
  // Copies into device memory that the host may not see.
  Status CopyToDevice(std::span<const std::byte> bytes, const DeviceBuffer& to, uint64_t offset_bytes);
  // Of a list that is about to be submitted: the value of its last part.
  Result<uint64_t> BeginSubmission(VulkanCommandList& list);
  TimelineWork PartOf(const VulkanCommandList& list, size_t part, uint64_t list_value,
                      uint64_t wait_host) const;
  // With profile, of a list that was waited for and whose times are still to be read. Under mutex_.
  Status TakeTimesOf(const VulkanCommandList& list);
  Status FillSlice(MatrixSlice& slice, std::span<const MatrixSource> sources);

  std::unique_ptr<VulkanDevice> vulkan_;
  DeviceInfo info_;
  bool profile_ = false;
  std::unique_ptr<DeviceAllocator> allocator_;
  std::unique_ptr<PipelineLibrary> pipelines_;
  std::unique_ptr<VulkanBuffer> empty_;
  std::unique_ptr<Timeline> timeline_;       // of the device's work
  std::unique_ptr<Timeline> host_timeline_;  // of the host's signals

  struct Submitted {
    uint64_t value = 0;
    VulkanCommandList* list = nullptr;
  };
  std::mutex submit_mutex_;          // guards works_
  std::vector<TimelineWork> works_;  // of SubmitAll: keeps its memory from step to step

  std::mutex mutex_;  // guards what follows
  uint64_t last_value_ = 0;
  uint64_t last_host_value_ = 0;
  WorkCounts work_counts_;
  std::vector<Submitted> submitted_;               // ascending; until they were waited for
  std::vector<const VulkanCommandList*> untimed_;  // complete, with profile: their times are still to be read
  std::map<std::string, OperationTime> times_;
  std::vector<ListParts> idle_parts_;
  std::array<std::shared_ptr<const VulkanBuffer>, kWorkspaces> workspaces_;
};

}  // namespace kvrun
