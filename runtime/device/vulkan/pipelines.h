// Pipelines by variant and constants, created at first use and kept.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "platform/base/status.h"
#include "platform/vulkan/device.h"
#include "platform/vulkan/pipeline.h"
#include "platform/vulkan/pipeline_cache.h"

namespace kvrun {

struct PipelineShape {
  std::string_view variant;
  std::span<const uint32_t> constants;
  uint32_t storage_buffers = 0;
  uint32_t texel_buffers_mask = 0;
  uint32_t uniform_buffers = 0;
  uint32_t push_constants_bytes = 0;
};

// Thread-safe. Pipelines live as long as the library, or until they are dropped.
class PipelineLibrary {
 public:
  static Result<std::unique_ptr<PipelineLibrary>> Create(const VulkanDevice& device);

  Result<std::shared_ptr<const ComputePipeline>> Get(const PipelineShape& shape);
  // Those that nobody else holds; Get makes them again.
  void DropUnused();
  // Writes the cache file if pipelines were created since the last time.
  void SaveCache();

  // The variants that pipelines were made of, so far.
  std::set<std::string> UsedVariants();

  // For tests of the self-tests: from now on `variant` is compiled from this code.
  void OverrideShader(std::string variant, std::vector<uint32_t> spirv);

 private:
  PipelineLibrary(const VulkanDevice& device, PipelineCache cache)
      : device_(device), cache_(std::move(cache)) {}

  using Key = std::pair<std::string, std::vector<uint32_t>>;

  const VulkanDevice& device_;
  std::mutex mutex_;
  PipelineCache cache_;
  bool is_cache_stale_ = false;
  std::map<Key, std::shared_ptr<const ComputePipeline>> pipelines_;
  std::map<std::string, std::vector<uint32_t>> overrides_;
};

}  // namespace kvrun
