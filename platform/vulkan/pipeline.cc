#include "platform/vulkan/pipeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "platform/base/check.h"
#include "platform/vulkan/vk_status.h"

namespace kvrun {
namespace {

constexpr uint32_t kSpirvMagic = 0x07230203;
constexpr uint32_t kMaxConstants = 32;
constexpr uint32_t kDescriptorsPerSet = 8;

Status CheckSpec(const VulkanDevice& device, const PipelineSpec& spec) {
  const DevicePlan& plan = device.plan();
  const auto fail = [&](std::string why) {
    return Status(StatusCode::kInternal, fmt::format("pipeline {}: {}", spec.name, why));
  };
  if (spec.spirv.size() < 5 || spec.spirv[0] != kSpirvMagic) return fail("its code is not SPIR-V");
  if (spec.constants.size() > kMaxConstants) return fail("too many specialisation constants");
  if (spec.storage_buffers > plan.max_storage_buffers) {
    return fail(fmt::format("{} storage buffers, the device allows {}", spec.storage_buffers,
                            plan.max_storage_buffers));
  }
  if (spec.push_constants_bytes > plan.max_push_constants_bytes || spec.push_constants_bytes % 4 != 0) {
    return fail(fmt::format("{} bytes of push constants, the device allows {}", spec.push_constants_bytes,
                            plan.max_push_constants_bytes));
  }
  if (spec.required_subgroup_width != 0 && !plan.use_subgroup_size_control) {
    return fail("it requires a subgroup width, which this device cannot give");
  }
  if (spec.require_full_subgroups && !plan.use_full_subgroups) {
    return fail("it requires full subgroups, which this device cannot give");
  }
  return Status::Ok();
}

// Of binding i of a PipelineSpec, or of a ComputePipeline's.
VkDescriptorType TypeOf(uint32_t i, uint32_t storage_buffers, uint32_t texel_buffers_mask, bool dynamic) {
  if (i >= storage_buffers) {
    return dynamic ? VK_DESCRIPTOR_TYPE_UNIFORM_BUFFER_DYNAMIC : VK_DESCRIPTOR_TYPE_UNIFORM_BUFFER;
  }
  return (texel_buffers_mask >> i & 1) != 0 ? VK_DESCRIPTOR_TYPE_UNIFORM_TEXEL_BUFFER
                                            : VK_DESCRIPTOR_TYPE_STORAGE_BUFFER;
}

Result<UniqueSetLayout> CreateSetLayout(const VulkanDevice& device, const PipelineSpec& spec) {
  std::vector<VkDescriptorSetLayoutBinding> bindings(spec.storage_buffers + spec.uniform_buffers);
  for (uint32_t i = 0; i < bindings.size(); ++i) {
    bindings[i].binding = i;
    bindings[i].descriptorType =
        TypeOf(i, spec.storage_buffers, spec.texel_buffers_mask, spec.dynamic_uniform_buffers);
    bindings[i].descriptorCount = 1;
    bindings[i].stageFlags = VK_SHADER_STAGE_COMPUTE_BIT;
  }
  VkDescriptorSetLayoutCreateInfo info{};
  info.sType = VK_STRUCTURE_TYPE_DESCRIPTOR_SET_LAYOUT_CREATE_INFO;
  info.bindingCount = static_cast<uint32_t>(bindings.size());
  info.pBindings = bindings.data();
  VkDescriptorSetLayout layout = VK_NULL_HANDLE;
  KVRUN_RETURN_IF_VK_ERROR(device.vk().vkCreateDescriptorSetLayout(device.handle(), &info, nullptr, &layout),
                           fmt::format("cannot create the descriptor layout of {}", spec.name));
  return UniqueSetLayout(device, layout);
}

Result<UniquePipelineLayout> CreateLayout(const VulkanDevice& device, const PipelineSpec& spec,
                                          VkDescriptorSetLayout set_layout) {
  const VkPushConstantRange range{VK_SHADER_STAGE_COMPUTE_BIT, 0, spec.push_constants_bytes};
  VkPipelineLayoutCreateInfo info{};
  info.sType = VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO;
  info.setLayoutCount = 1;
  info.pSetLayouts = &set_layout;
  info.pushConstantRangeCount = spec.push_constants_bytes > 0 ? 1 : 0;
  info.pPushConstantRanges = &range;
  VkPipelineLayout layout = VK_NULL_HANDLE;
  KVRUN_RETURN_IF_VK_ERROR(device.vk().vkCreatePipelineLayout(device.handle(), &info, nullptr, &layout),
                           fmt::format("cannot create the pipeline layout of {}", spec.name));
  return UniquePipelineLayout(device, layout);
}

Result<UniqueShaderModule> CreateModule(const VulkanDevice& device, const PipelineSpec& spec) {
  VkShaderModuleCreateInfo info{};
  info.sType = VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO;
  info.codeSize = spec.spirv.size_bytes();
  info.pCode = spec.spirv.data();
  VkShaderModule module = VK_NULL_HANDLE;
  KVRUN_RETURN_IF_VK_ERROR(
      device.vk().vkCreateShaderModule(device.handle(), &info, nullptr, &module),
      fmt::format("device \"{}\" does not accept shader {}", device.facts().name, spec.name));
  return UniqueShaderModule(device, module);
}

Result<UniquePipeline> CreatePipeline(const VulkanDevice& device, const PipelineSpec& spec,
                                      VkPipelineLayout layout, VkPipelineCache cache) {
  KVRUN_ASSIGN_OR_RETURN(const UniqueShaderModule module, CreateModule(device, spec));
  std::array<VkSpecializationMapEntry, kMaxConstants> entries{};
  for (uint32_t i = 0; i < spec.constants.size(); ++i) entries[i] = {i, i * 4, 4};
  const VkSpecializationInfo constants{static_cast<uint32_t>(spec.constants.size()), entries.data(),
                                       spec.constants.size_bytes(), spec.constants.data()};
  VkPipelineShaderStageRequiredSubgroupSizeCreateInfo width{};
  width.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_REQUIRED_SUBGROUP_SIZE_CREATE_INFO;
  width.requiredSubgroupSize = spec.required_subgroup_width;
  VkComputePipelineCreateInfo info{};
  info.sType = VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO;
  info.stage.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO;
  info.stage.pNext = spec.required_subgroup_width != 0 ? &width : nullptr;
  if (spec.require_full_subgroups) {
    info.stage.flags = VK_PIPELINE_SHADER_STAGE_CREATE_REQUIRE_FULL_SUBGROUPS_BIT_EXT;
  }
  info.stage.stage = VK_SHADER_STAGE_COMPUTE_BIT;
  info.stage.module = module.get();
  info.stage.pName = "main";
  info.stage.pSpecializationInfo = spec.constants.empty() ? nullptr : &constants;
  info.layout = layout;
  VkPipeline pipeline = VK_NULL_HANDLE;
  const std::string what =
      fmt::format("device \"{}\" cannot build the pipeline {}", device.facts().name, spec.name);
  KVRUN_RETURN_IF_VK_ERROR(
      device.vk().vkCreateComputePipelines(device.handle(), cache, 1, &info, nullptr, &pipeline), what);
  // Some drivers report success and return nothing.
  if (pipeline == VK_NULL_HANDLE) {
    return Status(StatusCode::kDevice, what + ": the driver returned no pipeline; run `kvrun doctor`");
  }
  return UniquePipeline(device, pipeline);
}

}  // namespace

Result<ComputePipeline> ComputePipeline::Create(const VulkanDevice& device, const PipelineSpec& spec,
                                                VkPipelineCache cache) {
  KVRUN_RETURN_IF_ERROR(CheckSpec(device, spec));
  ComputePipeline result;
  result.storage_buffers_ = spec.storage_buffers;
  result.texel_buffers_mask_ = spec.texel_buffers_mask;
  result.uniform_buffers_ = spec.uniform_buffers;
  result.dynamic_uniform_buffers_ = spec.dynamic_uniform_buffers;
  result.push_constants_bytes_ = spec.push_constants_bytes;
  KVRUN_ASSIGN_OR_RETURN(result.set_layout_, CreateSetLayout(device, spec));
  KVRUN_ASSIGN_OR_RETURN(result.layout_, CreateLayout(device, spec, result.set_layout_.get()));
  KVRUN_ASSIGN_OR_RETURN(result.pipeline_, CreatePipeline(device, spec, result.layout_.get(), cache));
  return result;
}

Status DescriptorSets::AddPool() {
  const uint32_t count = sets_per_pool_ * kDescriptorsPerSet;
  const VkDescriptorPoolSize sizes[] = {{VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, count},
                                        {VK_DESCRIPTOR_TYPE_UNIFORM_TEXEL_BUFFER, count},
                                        {VK_DESCRIPTOR_TYPE_UNIFORM_BUFFER, sets_per_pool_},
                                        {VK_DESCRIPTOR_TYPE_UNIFORM_BUFFER_DYNAMIC, sets_per_pool_}};
  VkDescriptorPoolCreateInfo info{};
  info.sType = VK_STRUCTURE_TYPE_DESCRIPTOR_POOL_CREATE_INFO;
  info.maxSets = sets_per_pool_;
  info.poolSizeCount = static_cast<uint32_t>(std::size(sizes));
  info.pPoolSizes = sizes;
  VkDescriptorPool pool = VK_NULL_HANDLE;
  KVRUN_RETURN_IF_VK_ERROR(device_->vk().vkCreateDescriptorPool(device_->handle(), &info, nullptr, &pool),
                           "cannot create a descriptor pool");
  pools_.emplace_back(*device_, pool);
  constexpr uint32_t kMostSetsPerPool = 1024;
  sets_per_pool_ = std::min(sets_per_pool_ * 4, kMostSetsPerPool);
  return Status::Ok();
}

Status DescriptorSets::Reset() {
  if (pools_.empty()) return Status::Ok();
  pools_.erase(pools_.begin(), pools_.end() - 1);
  return StatusFromVk(device_->vk().vkResetDescriptorPool(device_->handle(), pools_.back().get(), 0),
                      "cannot reset a descriptor pool");
}

Result<VkDescriptorSet> DescriptorSets::Allocate(const ComputePipeline& pipeline,
                                                 std::span<const BufferBinding> bindings) {
  KVRUN_CHECK(bindings.size() == pipeline.storage_buffers() + pipeline.uniform_buffers());
  const VkDescriptorSetLayout layout = pipeline.set_layout();
  VkDescriptorSetAllocateInfo info{};
  info.sType = VK_STRUCTURE_TYPE_DESCRIPTOR_SET_ALLOCATE_INFO;
  info.descriptorSetCount = 1;
  info.pSetLayouts = &layout;
  VkDescriptorSet set = VK_NULL_HANDLE;
  VkResult result = VK_ERROR_OUT_OF_POOL_MEMORY;
  // A second attempt, in a new pool, when the last one is full.
  for (int attempt = 0; attempt < 2 && result < 0; ++attempt) {
    if (pools_.empty() || attempt > 0) KVRUN_RETURN_IF_ERROR(AddPool());
    info.descriptorPool = pools_.back().get();
    result = device_->vk().vkAllocateDescriptorSets(device_->handle(), &info, &set);
  }
  KVRUN_RETURN_IF_VK_ERROR(result, "cannot allocate a descriptor set");
  Write(set, pipeline, bindings);
  return set;
}

void DescriptorSets::Write(VkDescriptorSet set, const ComputePipeline& pipeline,
                           std::span<const BufferBinding> bindings) {
  std::vector<VkDescriptorBufferInfo> buffers(bindings.size());
  std::vector<VkWriteDescriptorSet> writes(bindings.size());
  for (uint32_t i = 0; i < bindings.size(); ++i) {
    buffers[i] = {bindings[i].buffer, bindings[i].offset, bindings[i].length_bytes};
    writes[i].sType = VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET;
    writes[i].dstSet = set;
    writes[i].dstBinding = i;
    writes[i].descriptorCount = 1;
    writes[i].descriptorType = TypeOf(i, pipeline.storage_buffers(), pipeline.texel_buffers_mask(),
                                      pipeline.dynamic_uniform_buffers());
    writes[i].pBufferInfo = &buffers[i];
    writes[i].pTexelBufferView = &bindings[i].texels;
  }
  device_->vk().vkUpdateDescriptorSets(device_->handle(), static_cast<uint32_t>(writes.size()), writes.data(),
                                       0, nullptr);
}

}  // namespace kvrun
