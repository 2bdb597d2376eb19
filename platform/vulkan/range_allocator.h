// First-fit allocation of ranges out of one contiguous block; pure bookkeeping.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

namespace kvrun {

class RangeAllocator {
 public:
  explicit RangeAllocator(uint64_t size_bytes);

  // The offset of `size_bytes` free bytes: a multiple of `alignment` (any positive number) plus `phase`,
  // which is less than `alignment`.
  std::optional<uint64_t> Allocate(uint64_t size_bytes, uint64_t alignment, uint64_t phase = 0);
  // Gives back exactly what Allocate returned for `size_bytes`.
  void Free(uint64_t offset, uint64_t size_bytes);

  bool empty() const { return free_bytes_ == size_bytes_; }
  uint64_t size_bytes() const { return size_bytes_; }
  uint64_t free_bytes() const { return free_bytes_; }

 private:
  uint64_t size_bytes_;
  uint64_t free_bytes_;
  std::map<uint64_t, uint64_t> free_;  // offset → size, never adjacent, never empty
};

}  // namespace kvrun
