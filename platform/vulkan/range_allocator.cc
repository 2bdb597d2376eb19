#include "platform/vulkan/range_allocator.h"

#include "platform/base/check.h"
#include "platform/base/units.h"

namespace kvrun {

RangeAllocator::RangeAllocator(uint64_t size_bytes) : size_bytes_(size_bytes), free_bytes_(size_bytes) {
  if (size_bytes > 0) free_[0] = size_bytes;
}

std::optional<uint64_t> RangeAllocator::Allocate(uint64_t size_bytes, uint64_t alignment, uint64_t phase) {
  KVRUN_CHECK(size_bytes > 0 && phase < alignment);
  for (const auto& [start, length] : free_) {
    const uint64_t offset = start <= phase ? phase : RoundUp(start - phase, alignment) + phase;
    const uint64_t skipped = offset - start;
    if (skipped > length || length - skipped < size_bytes) continue;
    const uint64_t end = start + length;
    const uint64_t begin = start;
    free_.erase(begin);
    if (skipped > 0) free_[begin] = skipped;
    if (offset + size_bytes < end) free_[offset + size_bytes] = end - offset - size_bytes;
    free_bytes_ -= size_bytes;
    return offset;
  }
  return std::nullopt;
}

void RangeAllocator::Free(uint64_t offset, uint64_t size_bytes) {
  KVRUN_CHECK(size_bytes > 0 && offset + size_bytes <= size_bytes_);
  auto next = free_.lower_bound(offset);
  KVRUN_CHECK(next == free_.end() || offset + size_bytes <= next->first);
  free_bytes_ += size_bytes;
  uint64_t end = offset + size_bytes;
  if (next != free_.end() && next->first == end) {
    end += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    const auto previous = std::prev(next);
    KVRUN_CHECK(previous->first + previous->second <= offset);
    if (previous->first + previous->second == offset) {
      previous->second = end - previous->first;
      return;
    }
  }
  free_[offset] = end - offset;
}

}  // namespace kvrun
