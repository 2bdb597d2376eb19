// Bytes of a device's buffers as items of a session's state (StateVisitor), through a piece of memory.
//
// Threads: one at a time, and nothing else uses the buffers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "platform/base/status.h"
#include "runtime/device/device.h"
#include "runtime/store/state_visitor.h"

namespace kvrun {

class BufferItems {
 public:
  static constexpr size_t kPieceBytes = 64 * kStateChunkBytes;

  // Both must outlive it.
  BufferItems(Device& device, StateVisitor& visitor)
      : device_(device), visitor_(visitor), piece_(kPieceBytes) {}

  // Bytes of the buffer from offset_bytes on, whatever its use.
  Status Visit(const StateKey& key, Buffer* buffer, uint64_t offset_bytes, uint64_t size_bytes) {
    const auto move = [&](uint64_t at, std::span<std::byte> piece) {
      return visitor_.is_loading() ? device_.Upload(piece, buffer, offset_bytes + at)
                                   : device_.Download(*buffer, offset_bytes + at, piece);
    };
    return visitor_.Pieces(key, size_bytes, piece_, move);
  }

 private:
  Device& device_;
  StateVisitor& visitor_;
  std::vector<std::byte> piece_;
};

}  // namespace kvrun
