#include "runtime/device/host/memory_arena.h"

#include <sys/mman.h>

#include <utility>

#include "platform/base/units.h"

namespace kvrun::host {
namespace {

constexpr uint64_t kHugePageBytes = 2 * kMiB;
constexpr uint64_t kMappingBytes = 32 * kMiB;
constexpr uint64_t kAlignmentBytes = 4096;

}  // namespace

std::shared_ptr<std::byte> MapZeros(uint64_t size_bytes) {
  const uint64_t mapped_bytes = size_bytes + kHugePageBytes;  // so that it can begin with a huge page
  void* const mapped =
      mmap(nullptr, mapped_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  const uint64_t address = reinterpret_cast<uintptr_t>(mapped);
  auto* const begin = static_cast<std::byte*>(mapped) + (RoundUp(address, kHugePageBytes) - address);
  static_cast<void>(madvise(begin, size_bytes, MADV_HUGEPAGE));
  return {begin, [mapped, mapped_bytes](std::byte*) { munmap(mapped, mapped_bytes); }};
}

std::shared_ptr<std::byte> MemoryArena::Allocate(uint64_t size_bytes) {
  if (size_bytes > kMappingBytes / 2) return MapZeros(size_bytes);
  const std::lock_guard lock(mutex_);
  std::shared_ptr<std::byte> mapping = mapping_.lock();
  if (mapping == nullptr || used_bytes_ + size_bytes > kMappingBytes) {
    mapping = MapZeros(kMappingBytes);
    if (mapping == nullptr) return nullptr;
    mapping_ = mapping;
    used_bytes_ = 0;
  }
  std::byte* const at = mapping.get() + used_bytes_;
  used_bytes_ += RoundUp(size_bytes, kAlignmentBytes);
  return {std::move(mapping), at};
}

}  // namespace kvrun::host
