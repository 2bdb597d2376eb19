// What a prefill puts aside while it does not fit in memory: bytes at offsets, straight from and to the
// caller's memory where direct I/O takes it, else through one aligned buffer, some of it at a time while
// others are under way.
//
// A checksum of every piece of up to kOffsetAlignment (XXH3, its low 32 bits, seeded with the offset) is kept
// in memory: what comes back bad, old or from another place is found, and never handed out.
//
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <vector>

#include "platform/base/status.h"
#include "platform/io/block_file.h"
#include "runtime/store/checked_read.h"

namespace kvrun {

struct SpillStats {
  uint64_t read_bytes = 0;
  uint64_t written_bytes = 0;
};

class SpillFile {
 public:
  static constexpr uint64_t kBufferBytes = 128 * 1024;
  // Of a request through the buffer, where the file's alignment is no more: as many are under way as it
  // holds.
  static constexpr uint64_t kRequestBytes = 32 * 1024;

  // Reserves `size_bytes` of space: a full disk shows here.
  static Result<std::unique_ptr<SpillFile>> Create(std::unique_ptr<BlockFile> file, uint64_t size_bytes);

  // Offsets are multiples of kOffsetAlignment: a checksum for each.
  static constexpr uint64_t kOffsetAlignment = 64 * 1024;
  Status Write(uint64_t offset, std::span<const std::byte> bytes);
  // Of what one Write has written: from one of these offsets on to another or to its end. What differs from
  // what was written is read once more. After an error `bytes` holds anything, and the prompt has to be
  // computed again.
  Status Read(uint64_t offset, std::span<std::byte> bytes);

  SpillStats stats() const { return stats_; }

 private:
  static constexpr std::align_val_t kMemoryAlignment{64 * 1024};  // of any direct I/O

  struct AlignedDelete {
    void operator()(std::byte* bytes) const { ::operator delete(bytes, kMemoryAlignment); }
  };

  SpillFile(std::unique_ptr<BlockFile> file, uint64_t size_bytes);
  // Answers an errno, 0 where all was moved. `length` is rounded up to whole blocks.
  Result<int> Transfer(IoKind kind, uint64_t offset, std::byte* bytes, uint64_t length);
  // Through the buffer.
  Status TransferCopied(IoKind kind, uint64_t offset, std::span<std::byte> bytes);
  // All at once and without the buffer. False: direct I/O does not take this memory.
  Result<bool> TransferInPlace(IoKind kind, uint64_t offset, std::byte* bytes, uint64_t length);
  static Status StatusOf(int error_number, IoKind kind, uint64_t offset, uint64_t length);

  std::unique_ptr<BlockFile> file_;
  std::unique_ptr<std::byte, AlignedDelete> buffer_;
  std::vector<uint32_t> checksums_;  // by offset / kOffsetAlignment
  bool memory_refused_ = false;      // a caller's memory has met EFAULT, as a device's may
  SpillStats stats_;
};

}  // namespace kvrun
