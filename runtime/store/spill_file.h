// What a prefill puts aside while it does not fit in memory: plain bytes at offsets, through one aligned
// buffer.
//
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>

#include "platform/base/status.h"
#include "platform/io/block_file.h"

namespace kvrun {

struct SpillStats {
  uint64_t read_bytes = 0;
  uint64_t written_bytes = 0;
};

class SpillFile {
 public:
  static constexpr uint64_t kBufferBytes = 128 * 1024;

  // Reserves `size_bytes` of space: a full disk shows here.
  static Result<std::unique_ptr<SpillFile>> Create(std::unique_ptr<BlockFile> file, uint64_t size_bytes);

  // Offsets are multiples of kOffsetAlignment.
  static constexpr uint64_t kOffsetAlignment = 16 * 1024;
  Status Write(uint64_t offset, std::span<const std::byte> bytes);
  Status Read(uint64_t offset, std::span<std::byte> bytes);

  SpillStats stats() const { return stats_; }

 private:
  struct AlignedDelete {
    void operator()(std::byte* bytes) const { ::operator delete (bytes, std::align_val_t{kOffsetAlignment}); }
  };

  explicit SpillFile(std::unique_ptr<BlockFile> file);
  Status Transfer(IoKind kind, uint64_t offset, uint64_t length);

  std::unique_ptr<BlockFile> file_;
  std::unique_ptr<std::byte, AlignedDelete> buffer_;
  SpillStats stats_;
};

}  // namespace kvrun
