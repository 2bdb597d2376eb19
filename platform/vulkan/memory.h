// Device memory: buffers cut out of large allocations, with an account of every byte by name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "platform/base/status.h"
#include "platform/vulkan/device.h"

namespace kvrun {

// Which MemoryUse of the plan a buffer has.
enum class MemoryKind : uint8_t { kDeviceLocal, kUpload, kReadback, kShared };
inline constexpr size_t kMemoryKindCount = 4;

struct BufferRequest {
  uint64_t size_bytes = 0;
  MemoryKind kind = MemoryKind::kDeviceLocal;
  std::string_view name;  // for the account and messages: "weights", "kv"
  // A power of two: of mapped() where there is one, such as a page for direct reads.
  uint64_t alignment_bytes = 1;
};

struct MemoryUsage {
  std::string name;
  uint64_t bytes = 0;
  uint64_t buffers = 0;
};

struct ShadowDeleter {
  std::align_val_t alignment{};
  void operator()(std::byte* bytes) const { ::operator delete(bytes, alignment); }
};

struct MemoryChunk;  // one VkDeviceMemory
struct AllocatorState;

// A buffer and its part of a chunk; move-only. STORAGE, UNIFORM, INDIRECT and TRANSFER in both directions.
// mapped() stays valid for the buffer's life. Where memory is not coherent (and always in shadow mode) the
// CPU's writes reach the device by Flush, and the device's writes reach the CPU by Invalidate; both are
// no-ops on coherent memory, so callers always call them. Distinct buffers never share an atom.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  DeviceBuffer(DeviceBuffer&& other) noexcept;
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept;
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;
  ~DeviceBuffer();

  explicit operator bool() const { return static_cast<bool>(buffer_); }
  VkBuffer handle() const { return buffer_.get(); }
  uint64_t size_bytes() const { return size_bytes_; }
  // All of it as unsigned integers [size_bytes / 16, 4]; null where the plan has no texels, or not so many.
  VkBufferView texels() const { return texels_.get(); }
  // Null unless the memory is visible to the host.
  std::byte* mapped() const { return mapped_; }
  std::span<std::byte> bytes() const { return {mapped_, mapped_ == nullptr ? 0 : size_bytes_}; }

  Status Flush() const { return Flush(0, size_bytes_); }
  Status Flush(uint64_t offset, uint64_t length) const;
  Status Invalidate() const { return Invalidate(0, size_bytes_); }
  Status Invalidate(uint64_t offset, uint64_t length) const;

 private:
  friend class DeviceAllocator;
  Status Synchronise(uint64_t offset, uint64_t length, bool to_device) const;
  void UseShadow(uint64_t alignment_bytes);
  void Release();

  std::shared_ptr<AllocatorState> state_;
  std::shared_ptr<MemoryChunk> chunk_;
  UniqueBuffer buffer_;
  UniqueBufferView texels_;
  std::unique_ptr<std::byte, ShadowDeleter> shadow_;
  std::string name_;
  std::byte* mapped_ = nullptr;
  uint64_t size_bytes_ = 0;
  uint64_t offset_ = 0;          // in the chunk
  uint64_t reserved_bytes_ = 0;  // in the chunk
};

// Thread-safe. Buffers may outlive the allocator, but not the device.
class DeviceAllocator {
 public:
  struct Options {
    // Hands out copies in place of mapped memory, which only Flush and Invalidate bring together: stands in
    // for memory that is not coherent. Copies start with the byte 0xcd.
    bool shadow_copies = false;
    // Buffers of more than half of it get an allocation of their own, which goes back to the system with
    // them: what a phase gives up must not stay resident in the next.
    uint64_t chunk_bytes = 256 * 1024;

    static Options FromEnvironment();  // KVRUN_SHADOW_MEMORY=1
  };

  explicit DeviceAllocator(const VulkanDevice& device)
      : DeviceAllocator(device, Options::FromEnvironment()) {}
  DeviceAllocator(const VulkanDevice& device, const Options& options);

  Result<DeviceBuffer> Allocate(const BufferRequest& request);

  // Bytes of live buffers, by name, largest first.
  std::vector<MemoryUsage> Usage() const;
  uint64_t bytes_in_use() const;
  // Bytes allocated from the driver: at least bytes_in_use.
  uint64_t bytes_reserved() const;

 private:
  std::shared_ptr<AllocatorState> state_;
};

}  // namespace kvrun
