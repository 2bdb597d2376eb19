// Compiled pipelines kept on disk between runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "platform/base/status.h"
#include "platform/io/folder.h"
#include "platform/vulkan/device.h"

namespace kvrun {

// What a cache must match: drivers have been seen to accept caches of others and crash.
struct PipelineCacheKey {
  uint32_t vendor_id = 0;
  uint32_t device_id = 0;
  uint32_t driver_version = 0;
  std::string device_uuid;    // as in DeviceFacts
  uint64_t shaders_hash = 0;  // of the whole embedded shader set
};

PipelineCacheKey MakePipelineCacheKey(const DeviceFacts& facts, uint64_t shaders_hash);

// The file's bytes: a header that holds the key, and a hash of the payload.
std::vector<std::byte> EncodePipelineCache(const PipelineCacheKey& key, std::span<const std::byte> payload);
// The payload, a part of `file`; the reason in the status if it is damaged or of something else.
Result<std::span<const std::byte>> DecodePipelineCache(const PipelineCacheKey& key,
                                                       std::span<const std::byte> file);

std::string PipelineCachePath(const std::string& folder, const PipelineCacheKey& key);

// Neither a bad cache nor an unwritable folder is an error; load_note() says what happened.
class PipelineCache {
 public:
  // `folder`: nothing for a cache in memory only.
  static Result<PipelineCache> Create(const VulkanDevice& device, uint64_t shaders_hash,
                                      std::optional<std::string> folder = CacheFolder());

  VkPipelineCache handle() const { return cache_.get(); }
  const std::string& load_note() const { return load_note_; }

  // Writes the file if there is something new: under another name first, then renamed; mode 0600. Call it
  // early, after the pipelines were created. A failure to write is for the log only.
  Status Save();

 private:
  PipelineCache() = default;

  const VulkanDevice* device_ = nullptr;
  UniquePipelineCache cache_;
  PipelineCacheKey key_;
  std::optional<std::string> folder_;
  std::string load_note_;
  uint64_t stored_hash_ = 0;  // of the payload that is on disk
};

}  // namespace kvrun
