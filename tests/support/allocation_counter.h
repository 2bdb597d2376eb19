// Counts what operator new hands out, in test programs that use this header.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kvrun::testing {

// Calls of operator new by this thread since it started.
uint64_t AllocationsOfThisThread();

// While it lives: calls of operator new, on all threads, that were made by code of this program: no frame on
// the stack lies in a shared library but those of C and C++, fmt and GoogleTest. A Vulkan driver, its
// compiler and validation layers, which are C++ too, are shared libraries: what is got inside of them is left
// out. So is what is got by malloc alone: kvrun's own code has no such calls. One at a time.
class OwnAllocations {
 public:
  OwnAllocations();
  ~OwnAllocations();
  OwnAllocations(const OwnAllocations&) = delete;
  OwnAllocations& operator=(const OwnAllocations&) = delete;

  uint64_t count() const;
  uint64_t count_of_others() const;  // left out
  // Of the first ones: "kvrun_e2e_tests+0x1234 ...", for addr2line.
  std::vector<std::string> stacks() const;
};

}  // namespace kvrun::testing
