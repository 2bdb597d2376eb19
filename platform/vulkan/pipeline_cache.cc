#include "platform/vulkan/pipeline_cache.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <cstring>

#include "platform/base/units.h"
#include "platform/io/folder.h"
#include "platform/io/input_file.h"
#include "platform/io/replace_file.h"
#include "platform/vulkan/vk_status.h"

namespace kvrun {
namespace {

constexpr char kMagic[8] = {'K', 'V', 'R', 'U', 'N', 'P', 'C', '\n'};
constexpr uint32_t kFormatVersion = 1;
constexpr size_t kUuidLength = 32;
constexpr uint64_t kMaxPayloadBytes = 256 * kMiB;

// As it lies in the file, in the machine's byte order: a cache never leaves its machine.
struct FileHeader {
  char magic[8];
  uint32_t format_version;
  uint32_t vendor_id;
  uint32_t device_id;
  uint32_t driver_version;
  char device_uuid[kUuidLength];
  uint64_t shaders_hash;
  uint64_t payload_bytes;
  uint64_t payload_hash;
};
static_assert(sizeof(FileHeader) == 80);

FileHeader MakeHeader(const PipelineCacheKey& key, std::span<const std::byte> payload) {
  FileHeader header{};
  std::memcpy(header.magic, kMagic, sizeof(kMagic));
  header.format_version = kFormatVersion;
  header.vendor_id = key.vendor_id;
  header.device_id = key.device_id;
  header.driver_version = key.driver_version;
  key.device_uuid.copy(header.device_uuid, kUuidLength);
  header.shaders_hash = key.shaders_hash;
  header.payload_bytes = payload.size();
  header.payload_hash = XXH64(payload.data(), payload.size(), 0);
  return header;
}

Status Reject(std::string_view why) {
  return {StatusCode::kCorrupt, fmt::format("the pipeline cache is not used: {}", why)};
}

}  // namespace

PipelineCacheKey MakePipelineCacheKey(const DeviceFacts& facts, uint64_t shaders_hash) {
  return {facts.vendor_id, facts.device_id, facts.driver_version, facts.device_uuid, shaders_hash};
}

std::vector<std::byte> EncodePipelineCache(const PipelineCacheKey& key, std::span<const std::byte> payload) {
  const FileHeader header = MakeHeader(key, payload);
  std::vector<std::byte> file(sizeof(header) + payload.size());
  std::memcpy(file.data(), &header, sizeof(header));
  if (!payload.empty()) std::memcpy(file.data() + sizeof(header), payload.data(), payload.size());
  return file;
}

Result<std::span<const std::byte>> DecodePipelineCache(const PipelineCacheKey& key,
                                                       std::span<const std::byte> file) {
  FileHeader header{};
  if (file.size() < sizeof(header)) return Reject("it is cut short");
  std::memcpy(&header, file.data(), sizeof(header));
  if (std::memcmp(header.magic, kMagic, sizeof(kMagic)) != 0) return Reject("it is another kind of file");
  if (header.format_version != kFormatVersion) return Reject("it was written by another version of kvrun");
  const std::span<const std::byte> payload = file.subspan(sizeof(header));
  if (header.payload_bytes != payload.size() || payload.size() > kMaxPayloadBytes) {
    return Reject("its length is wrong");
  }
  const FileHeader expected = MakeHeader(key, payload);
  if (header.payload_hash != expected.payload_hash) return Reject("it is damaged");
  if (std::memcmp(&header, &expected, sizeof(header)) != 0) {
    return Reject("it belongs to another device, driver or set of shaders");
  }
  return payload;
}

std::string PipelineCachePath(const std::string& folder, const PipelineCacheKey& key) {
  return fmt::format("{}/pipelines-{:04x}-{:04x}-{}.bin", folder, key.vendor_id, key.device_id,
                     key.device_uuid);
}

namespace {

Result<std::vector<std::byte>> ReadCacheFile(const std::string& path) {
  KVRUN_ASSIGN_OR_RETURN(const InputFile file, InputFile::Open(path));
  if (file.size_bytes() > sizeof(FileHeader) + kMaxPayloadBytes) return Reject("its length is wrong");
  return file.ReadAll();
}

}  // namespace

Result<PipelineCache> PipelineCache::Create(const VulkanDevice& device, uint64_t shaders_hash,
                                            std::optional<std::string> folder) {
  PipelineCache result;
  result.device_ = &device;
  result.key_ = MakePipelineCacheKey(device.facts(), shaders_hash);
  result.folder_ = std::move(folder);
  std::vector<std::byte> file;
  VkPipelineCacheCreateInfo info{};
  info.sType = VK_STRUCTURE_TYPE_PIPELINE_CACHE_CREATE_INFO;
  if (result.folder_) {
    Result<std::vector<std::byte>> read = ReadCacheFile(PipelineCachePath(*result.folder_, result.key_));
    if (read.ok()) file = std::move(read).value();
    const auto payload = read.ok() ? DecodePipelineCache(result.key_, file)
                                   : Result<std::span<const std::byte>>(read.status());
    if (payload.ok()) {
      info.pInitialData = payload->data();
      info.initialDataSize = payload->size();
      result.stored_hash_ = XXH64(payload->data(), payload->size(), 0);
    } else {
      result.load_note_ = payload.status().message();
    }
  }
  VkPipelineCache cache = VK_NULL_HANDLE;
  KVRUN_RETURN_IF_VK_ERROR(device.vk().vkCreatePipelineCache(device.handle(), &info, nullptr, &cache),
                           "cannot create a pipeline cache");
  result.cache_ = UniquePipelineCache(device, cache);
  return result;
}

Status PipelineCache::Save() {
  if (!folder_) return Status::Ok();
  size_t size = 0;
  const auto get = device_->vk().vkGetPipelineCacheData;
  KVRUN_RETURN_IF_VK_ERROR(get(device_->handle(), cache_.get(), &size, nullptr),
                           "cannot read the pipeline cache");
  if (size == 0 || size > kMaxPayloadBytes) return Status::Ok();
  std::vector<std::byte> payload(size);
  const VkResult result = get(device_->handle(), cache_.get(), &size, payload.data());
  KVRUN_RETURN_IF_VK_ERROR(result, "cannot read the pipeline cache");
  payload.resize(size);
  const uint64_t hash = XXH64(payload.data(), payload.size(), 0);
  if (result == VK_INCOMPLETE || hash == stored_hash_) return Status::Ok();
  KVRUN_RETURN_IF_ERROR(MakeFolder(*folder_, MissingParents::kAreMade));
  KVRUN_RETURN_IF_ERROR(ReplaceFile(PipelineCachePath(*folder_, key_), EncodePipelineCache(key_, payload)));
  stored_hash_ = hash;
  return Status::Ok();
}

}  // namespace kvrun
