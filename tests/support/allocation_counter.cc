#include "tests/support/allocation_counter.h"

#include <cstdlib>
#include <new>

namespace {
thread_local uint64_t n_allocations = 0;
}  // namespace

// new[] and the forms that do not throw come here too. They lie in a file of their own, so that no compiler
// sees both sides and takes them for mismatched.
void* operator new(size_t size) {
  ++n_allocations;
  if (void* memory = std::malloc(size == 0 ? 1 : size)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t /*size*/) noexcept { std::free(memory); }

namespace kvrun::testing {

uint64_t AllocationsOfThisThread() { return n_allocations; }

}  // namespace kvrun::testing
