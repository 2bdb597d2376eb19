// A recorded list of dispatches. Barriers are put where an operation uses a buffer that an earlier one wrote,
// or writes one that an earlier one used.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "platform/vulkan/commands.h"
#include "platform/vulkan/pipeline.h"
#include "platform/vulkan/timestamp_pool.h"
#include "runtime/device/vulkan/compute_device.h"
#include "runtime/device/vulkan/kernel_plan.h"

namespace kvrun {

enum class Access : uint8_t { kRead, kWrite, kReadWrite };

struct Binding {
  const DeviceBuffer* memory = nullptr;
  Access access = Access::kRead;
};

struct Dispatch {
  const KernelChoice& kernel;
  std::span<const Binding> storage;
  const VulkanBuffer* step = nullptr;  // the uniform buffer after the storage buffers, if the kernel has one
  std::span<const std::byte> params;   // push constants
};

class VulkanCommandList : public CommandList {
 public:
  static Result<std::unique_ptr<VulkanCommandList>> Create(VulkanComputeDevice& device);
  ~VulkanCommandList() override;

  Status Embed(const Matrix& table, const Buffer& step, uint32_t n_tokens, Buffer* out) override;
  Status RmsNorm(const Buffer& x, const Buffer& weight, float epsilon, uint32_t n_rows, uint32_t n_cols,
                 Buffer* out) override;
  Status MatMul(const MatMulArgs& args) override;
  Status RopeAndStore(const AttentionArgs& args) override;
  Status Attend(const AttentionArgs& args) override;
  Status SwiGlu(const Buffer& gate_up, uint32_t n_tokens, uint32_t n_ff, Buffer* out) override;
  Status GatherRows(const Buffer& x, const Buffer& step, uint32_t n_rows, uint32_t n_cols,
                    Buffer* out) override;
  Status AluRate(uint32_t n_groups, uint32_t n_steps, Buffer* values) override;
  Status ReadRate(uint32_t n_groups, uint32_t n_steps, Buffer* values) override;
  Status Finish() override;

  // In order; each is a submission of its own, so that no single one keeps the device for too long.
  std::span<const VkCommandBuffer> parts() const { return parts_; }
  // Before a submission: what the host wrote reaches the device. After it: what the device wrote reaches the
  // host.
  Status FlushUploads() const;
  Status InvalidateReadbacks() const;
  // True once, for the first call: drivers compile kernels when a list first runs.
  bool TakeFirstRun() { return std::exchange(is_first_run_, false); }
  // Adds the times of the last submission, by variant.
  Status AddTimes(std::map<std::string, OperationTime>* times) const;

 private:
  explicit VulkanCommandList(VulkanComputeDevice& device, CommandPool pool);

  Status Record(const Dispatch& dispatch);
  Status BeginPart();
  void OrderAfterEarlier(std::span<const Binding> storage);
  void NoteHostBuffer(const VulkanBuffer& buffer);
  const DeviceBuffer* MemoryOrEmpty(const Buffer* buffer) const;

  VulkanComputeDevice& device_;
  CommandPool pool_;
  std::vector<VkCommandBuffer> parts_;
  VkCommandBuffer commands_ = VK_NULL_HANDLE;  // the last part
  bool is_first_run_ = true;
  uint32_t dispatches_ = 0;  // in the last part
  DescriptorSets sets_;
  std::vector<const DeviceBuffer*> read_;     // since the last barrier
  std::vector<const DeviceBuffer*> written_;  // since the last barrier
  std::vector<const VulkanBuffer*> uploads_;
  std::vector<const VulkanBuffer*> readbacks_;
  std::optional<TimestampPool> timestamps_;
  std::vector<std::string> timed_;  // the variant that ended at timestamp i + 1
};

}  // namespace kvrun
