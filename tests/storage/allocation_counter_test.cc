#include "tests/storage/allocation_counter.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

namespace {

std::atomic<uint64_t> g_allocations;
std::atomic<uint64_t> g_live_bytes;
std::atomic<uint64_t> g_peak_bytes;

// The size lies before what is handed out, where `delete` finds it.
void* Allocate(size_t bytes, size_t alignment) {
  alignment = std::max(alignment, alignof(std::max_align_t));
  void* memory = nullptr;
  if (posix_memalign(&memory, alignment, alignment + bytes) != 0) return nullptr;
  char* const out = static_cast<char*>(memory) + alignment;
  reinterpret_cast<size_t*>(out)[-1] = bytes;
  std::memset(out, 0xcd, bytes);  // so that it shows who uses what was not written
  ++g_allocations;
  const uint64_t live_bytes = g_live_bytes += bytes;
  uint64_t peak_bytes = g_peak_bytes;
  while (peak_bytes < live_bytes && !g_peak_bytes.compare_exchange_weak(peak_bytes, live_bytes)) continue;
  return out;
}

void* AllocateOrThrow(size_t bytes, size_t alignment) {
  void* const memory = Allocate(bytes, alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

void Free(void* memory, size_t alignment) {
  if (memory == nullptr) return;
  g_live_bytes -= static_cast<size_t*>(memory)[-1];
  free(static_cast<char*>(memory) - std::max(alignment, alignof(std::max_align_t)));
}

}  // namespace

void* operator new(size_t bytes) { return AllocateOrThrow(bytes, 0); }
void* operator new[](size_t bytes) { return AllocateOrThrow(bytes, 0); }
void* operator new(size_t bytes, const std::nothrow_t&) noexcept { return Allocate(bytes, 0); }
void* operator new[](size_t bytes, const std::nothrow_t&) noexcept { return Allocate(bytes, 0); }
void* operator new(size_t bytes, std::align_val_t a) {
  return AllocateOrThrow(bytes, static_cast<size_t>(a));
}
void* operator new[](size_t bytes, std::align_val_t a) {
  return AllocateOrThrow(bytes, static_cast<size_t>(a));
}
void* operator new(size_t bytes, std::align_val_t a, const std::nothrow_t&) noexcept {
  return Allocate(bytes, static_cast<size_t>(a));
}
void* operator new[](size_t bytes, std::align_val_t a, const std::nothrow_t&) noexcept {
  return Allocate(bytes, static_cast<size_t>(a));
}
void operator delete(void* memory) noexcept { Free(memory, 0); }
void operator delete[](void* memory) noexcept { Free(memory, 0); }
void operator delete(void* memory, size_t) noexcept { Free(memory, 0); }
void operator delete[](void* memory, size_t) noexcept { Free(memory, 0); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { Free(memory, 0); }
void operator delete[](void* memory, const std::nothrow_t&) noexcept { Free(memory, 0); }
void operator delete(void* memory, std::align_val_t a) noexcept { Free(memory, static_cast<size_t>(a)); }
void operator delete[](void* memory, std::align_val_t a) noexcept { Free(memory, static_cast<size_t>(a)); }
void operator delete(void* memory, size_t, std::align_val_t a) noexcept {
  Free(memory, static_cast<size_t>(a));
}
void operator delete[](void* memory, size_t, std::align_val_t a) noexcept {
  Free(memory, static_cast<size_t>(a));
}

namespace kvrun::testing {

HeapUse CurrentHeapUse() { return {g_allocations, g_live_bytes, g_peak_bytes}; }
void ResetHeapPeak() { g_peak_bytes = g_live_bytes.load(); }

namespace {

TEST(AllocationCounter, CountsWhatIsHeld) {
  const HeapUse before = CurrentHeapUse();
  {
    const std::vector<int> numbers(100);
    const auto aligned = std::unique_ptr<std::byte[], void (*)(std::byte*)>(
        new (std::align_val_t{4096}) std::byte[5000],
        [](std::byte* memory) { operator delete[](memory, std::align_val_t{4096}); });
    EXPECT_EQ(reinterpret_cast<uintptr_t>(aligned.get()) % 4096, 0U);
    EXPECT_EQ(CurrentHeapUse().live_bytes, before.live_bytes + 400 + 5000);
    EXPECT_EQ(CurrentHeapUse().n_allocations, before.n_allocations + 2);
  }
  EXPECT_EQ(CurrentHeapUse().live_bytes, before.live_bytes);
}

TEST(AllocationCounter, RemembersTheMostThatWasHeld) {
  ResetHeapPeak();
  const uint64_t before = CurrentHeapUse().live_bytes;
  EXPECT_EQ(CurrentHeapUse().peak_bytes, before);
  { const std::vector<std::byte> large(100'000); }
  { const std::vector<std::byte> small(10); }
  EXPECT_GE(CurrentHeapUse().peak_bytes, before + 100'000);
  ResetHeapPeak();
  EXPECT_EQ(CurrentHeapUse().peak_bytes, before);
}

}  // namespace
}  // namespace kvrun::testing
