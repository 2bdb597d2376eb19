// Compute pipelines from SPIR-V, and the descriptor sets that they are bound with.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "platform/base/status.h"
#include "platform/vulkan/device.h"

namespace kvrun {

// One set (set 0): storage buffers at bindings 0 …, then uniform buffers. Some of the former may be texel
// buffers (of four 32-bit words each): they are read only, through what the device has for textures.
struct PipelineSpec {
  std::string_view name;
  std::span<const uint32_t> spirv;
  std::span<const uint32_t> constants;  // of constant_id 0, 1, …
  uint32_t storage_buffers = 0;
  uint32_t texel_buffers_mask = 0;  // bit i: binding i is a texel buffer
  uint32_t uniform_buffers = 0;
  bool dynamic_uniform_buffers = false;
  uint32_t push_constants_bytes = 0;
  uint32_t required_subgroup_width = 0;  // 0: any; needs plan.use_subgroup_size_control
  bool require_full_subgroups = false;   // needs plan.use_full_subgroups and a fitting workgroup
};

class ComputePipeline {
 public:
  // Exceeding the plan's limits is an error here, rather than in the driver.
  static Result<ComputePipeline> Create(const VulkanDevice& device, const PipelineSpec& spec,
                                        VkPipelineCache cache = VK_NULL_HANDLE);

  ComputePipeline() = default;

  VkPipeline handle() const { return pipeline_.get(); }
  VkPipelineLayout layout() const { return layout_.get(); }
  VkDescriptorSetLayout set_layout() const { return set_layout_.get(); }
  uint32_t storage_buffers() const { return storage_buffers_; }
  uint32_t texel_buffers_mask() const { return texel_buffers_mask_; }
  uint32_t uniform_buffers() const { return uniform_buffers_; }
  bool dynamic_uniform_buffers() const { return dynamic_uniform_buffers_; }
  uint32_t push_constants_bytes() const { return push_constants_bytes_; }

 private:
  UniqueSetLayout set_layout_;
  UniquePipelineLayout layout_;
  UniquePipeline pipeline_;
  uint32_t storage_buffers_ = 0;
  uint32_t texel_buffers_mask_ = 0;
  uint32_t uniform_buffers_ = 0;
  bool dynamic_uniform_buffers_ = false;
  uint32_t push_constants_bytes_ = 0;
};

// A part of a buffer. Offsets are multiples of the plan's alignments, lengths at most its binding sizes.
struct BufferBinding {
  VkBuffer buffer = VK_NULL_HANDLE;
  uint64_t offset = 0;
  uint64_t length_bytes = VK_WHOLE_SIZE;
  VkBufferView texels = VK_NULL_HANDLE;  // of texel buffers, in place of the others
};

// Descriptor sets out of pools that grow; sets live as long as this does. Not thread-safe.
class DescriptorSets {
 public:
  // The first pool has `sets_per_pool` sets, each further one four times as many as the one before.
  explicit DescriptorSets(const VulkanDevice& device, uint32_t sets_per_pool = 16)
      : device_(&device), sets_per_pool_(sets_per_pool) {}

  // `bindings` in the order of the pipeline's bindings.
  Result<VkDescriptorSet> Allocate(const ComputePipeline& pipeline, std::span<const BufferBinding> bindings);
  // Its sets are gone; none of them is in use. Keeps the largest pool for others.
  Status Reset();

 private:
  Status AddPool();
  void Write(VkDescriptorSet set, const ComputePipeline& pipeline, std::span<const BufferBinding> bindings);

  const VulkanDevice* device_;
  uint32_t sets_per_pool_;  // of the next one
  std::vector<UniqueDescriptorPool> pools_;
};

}  // namespace kvrun
