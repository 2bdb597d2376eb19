#include "runtime/device/vulkan/pipelines.h"

#include <fmt/format.h>

#include "runtime/device/vulkan/shader_library.h"

namespace kvrun {

Result<std::unique_ptr<PipelineLibrary>> PipelineLibrary::Create(const VulkanDevice& device) {
  KVRUN_ASSIGN_OR_RETURN(PipelineCache cache, PipelineCache::Create(device, ShaderSetHash()));
  return std::unique_ptr<PipelineLibrary>(new PipelineLibrary(device, std::move(cache)));
}

Result<std::shared_ptr<const ComputePipeline>> PipelineLibrary::Get(const PipelineShape& shape) {
  const std::lock_guard lock(mutex_);
  Key key{std::string(shape.variant), {shape.constants.begin(), shape.constants.end()}};
  if (const auto found = pipelines_.find(key); found != pipelines_.end()) return found->second;

  const ShaderCode* code = FindShader(shape.variant);
  if (code == nullptr) {
    return Status(StatusCode::kInternal, fmt::format("no shader variant is named {}", shape.variant));
  }
  const auto override = overrides_.find(key.first);
  const bool is_subgroup = shape.variant.find("_subgroup") != std::string_view::npos;
  const PipelineSpec spec{
      .name = shape.variant,
      .spirv = override != overrides_.end() ? std::span<const uint32_t>(override->second) : code->words,
      .constants = shape.constants,
      .storage_buffers = shape.storage_buffers,
      .texel_buffers_mask = shape.texel_buffers_mask,
      .uniform_buffers = shape.uniform_buffers,
      .dynamic_uniform_buffers = false,
      .push_constants_bytes = shape.push_constants_bytes,
      .required_subgroup_width = is_subgroup ? device_.plan().required_subgroup_width : 0,
      .require_full_subgroups = is_subgroup && device_.plan().use_full_subgroups,
  };
  KVRUN_ASSIGN_OR_RETURN(ComputePipeline pipeline, ComputePipeline::Create(device_, spec, cache_.handle()));
  is_cache_stale_ = true;
  return pipelines_.emplace(std::move(key), std::make_shared<const ComputePipeline>(std::move(pipeline)))
      .first->second;
}

void PipelineLibrary::DropUnused() {
  const std::lock_guard lock(mutex_);
  std::erase_if(pipelines_, [](const auto& entry) { return entry.second.use_count() == 1; });
}

void PipelineLibrary::SaveCache() {
  const std::lock_guard lock(mutex_);
  if (!is_cache_stale_) return;
  is_cache_stale_ = false;
  // Only a start that is slower: nothing to tell the user.
  (void)cache_.Save();
}

std::set<std::string> PipelineLibrary::UsedVariants() {
  const std::lock_guard lock(mutex_);
  std::set<std::string> names;
  for (const auto& [key, pipeline] : pipelines_) names.insert(key.first);
  return names;
}

void PipelineLibrary::OverrideShader(std::string variant, std::vector<uint32_t> spirv) {
  const std::lock_guard lock(mutex_);
  std::erase_if(pipelines_, [&](const auto& entry) { return entry.first.first == variant; });
  overrides_[std::move(variant)] = std::move(spirv);
}

}  // namespace kvrun
