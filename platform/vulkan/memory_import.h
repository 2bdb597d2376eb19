// Host memory that the device reads and writes in place (VK_EXT_external_memory_host).
#pragma once

#include <cstddef>
#include <span>

#include "platform/base/status.h"
#include "platform/vulkan/device.h"

namespace kvrun {

// Does not own the host memory, which must outlive it.
class ImportedBuffer {
 public:
  // Address and size are multiples of plan.host_import_alignment_bytes. Only coherent memory is taken, so no
  // flushing is needed. Fails with kUnsupported where plan.use_external_memory_host is false.
  static Result<ImportedBuffer> Import(const VulkanDevice& device, std::span<std::byte> host);

  VkBuffer handle() const { return buffer_.get(); }
  uint64_t size_bytes() const { return size_bytes_; }

 private:
  ImportedBuffer() = default;

  UniqueMemory memory_;  // after the buffer in destruction
  UniqueBuffer buffer_;
  uint64_t size_bytes_ = 0;
};

}  // namespace kvrun
