// Not grouped: programs with an operator new of their own leave it out.
#include "tests/support/allocation_counter.h"

#include <dlfcn.h>
#include <unwind.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <new>
#include <string_view>

// Of the linker: where the program's own code begins and ends.
extern "C" const char __executable_start;
extern "C" const char etext;

namespace {

constexpr int kMaxFrames = 40;
constexpr uint64_t kMaxStacks = 8;

struct Stack {
  int n_frames = 0;
  void* frames[kMaxFrames] = {};
};

thread_local uint64_t n_allocations = 0;
thread_local bool is_looking = false;  // whoever looks at a stack may allocate

std::atomic<bool> g_watching{false};
std::atomic<uint64_t> g_own{0};
std::atomic<uint64_t> g_others{0};
Stack g_stacks[kMaxStacks];

_Unwind_Reason_Code AddFrame(_Unwind_Context* context, void* to) {
  auto* const stack = static_cast<Stack*>(to);
  auto* const at = reinterpret_cast<void*>(_Unwind_GetIP(context));
  // Above the program's first function some unwinders find another one at 0.
  if (at == nullptr || stack->n_frames == kMaxFrames) return _URC_END_OF_STACK;
  stack->frames[stack->n_frames++] = at;
  return _URC_NO_REASON;
}

// As backtrace() of glibc, which other C libraries do not have.
Stack StackHere() {
  Stack stack;
  (void)_Unwind_Backtrace(AddFrame, &stack);
  return stack;
}

bool IsOwnCode(const void* address) {
  const auto at = reinterpret_cast<uintptr_t>(address);
  return at >= reinterpret_cast<uintptr_t>(&__executable_start) && at < reinterpret_cast<uintptr_t>(&etext);
}

// Code in shared libraries that does what its caller asks for, or has called the program's.
bool IsTransparent(const void* address) {
  static constexpr std::string_view kNames[] = {"libstdc++", "libc++", "libfmt", "libc.", "libgtest", "ld-"};
  Dl_info info{};
  if (dladdr(address, &info) == 0 || info.dli_fname == nullptr) return false;
  const std::string_view name = info.dli_fname;
  return std::any_of(std::begin(kNames), std::end(kNames),
                     [name](std::string_view part) { return name.find(part) != name.npos; });
}

// `caller`: where operator new returns to.
void Watch(const void* caller) {
  if (is_looking) return;
  is_looking = true;
  Stack stack = StackHere();
  auto* const end = stack.frames + stack.n_frames;
  // Templates of the program may serve other libraries, too: the whole stack says who asked for it.
  bool is_own = false;
  for (auto* frame = std::find(stack.frames, end, caller); frame != end; ++frame) {
    if (IsOwnCode(*frame)) {
      is_own = true;
    } else if (!IsTransparent(*frame)) {
      is_own = false;
      break;
    }
  }
  if (is_own) {
    const uint64_t index = g_own.fetch_add(1);
    if (index < kMaxStacks) g_stacks[index] = stack;
  } else {
    g_others.fetch_add(1);
  }
  is_looking = false;
}

void* Allocate(size_t size, size_t alignment, const void* caller) {
  ++n_allocations;
  if (g_watching.load(std::memory_order_relaxed)) Watch(caller);
  size = std::max<size_t>(size, 1);
  void* const memory = alignment == 0
                           ? std::malloc(size)
                           : std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

void* AllocateOrNull(size_t size, size_t alignment, const void* caller) noexcept {
  try {
    return Allocate(size, alignment, caller);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

}  // namespace

// new[] comes here too, and the forms that do not throw, which a sanitizer's runtime else has of its own.
// They lie in a file of their own, so that no compiler sees both sides and takes them for mismatched.
void* operator new(size_t size) { return Allocate(size, 0, __builtin_return_address(0)); }
void* operator new(size_t size, std::align_val_t alignment) {
  return Allocate(size, static_cast<size_t>(alignment), __builtin_return_address(0));
}
void* operator new(size_t size, const std::nothrow_t& /*tag*/) noexcept {
  return AllocateOrNull(size, 0, __builtin_return_address(0));
}
void* operator new(size_t size, std::align_val_t alignment, const std::nothrow_t& /*tag*/) noexcept {
  return AllocateOrNull(size, static_cast<size_t>(alignment), __builtin_return_address(0));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t /*size*/) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t /*alignment*/) noexcept { std::free(memory); }
void operator delete(void* memory, size_t /*size*/, std::align_val_t /*alignment*/) noexcept {
  std::free(memory);
}

namespace kvrun::testing {

uint64_t AllocationsOfThisThread() { return n_allocations; }

OwnAllocations::OwnAllocations() {
  (void)StackHere();  // loads the unwinder
  g_own = 0;
  g_others = 0;
  g_watching = true;
}

OwnAllocations::~OwnAllocations() { g_watching = false; }

uint64_t OwnAllocations::count() const { return g_own; }

uint64_t OwnAllocations::count_of_others() const { return g_others; }

std::vector<std::string> OwnAllocations::stacks() const {
  std::vector<std::string> texts;
  const uint64_t n = std::min<uint64_t>(g_own, kMaxStacks);
  for (uint64_t i = 0; i < n; ++i) {
    std::string text;
    for (int frame = 0; frame < g_stacks[i].n_frames; ++frame) {
      char address[32];
      const auto at = reinterpret_cast<uintptr_t>(g_stacks[i].frames[frame]);
      const uintptr_t offset =
          IsOwnCode(g_stacks[i].frames[frame]) ? at - reinterpret_cast<uintptr_t>(&__executable_start) : 0;
      std::snprintf(address, sizeof(address), " 0x%zx", static_cast<size_t>(offset));
      text += address;  // 0x0: of a shared library
    }
    texts.push_back(text);
  }
  return texts;
}

}  // namespace kvrun::testing
