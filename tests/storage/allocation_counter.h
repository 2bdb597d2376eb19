// Counts what operator new gives out in this program, on all threads; what is given out holds 0xcd.
#pragma once

#include <cstdint>

namespace kvrun::testing {

struct HeapUse {
  uint64_t n_allocations = 0;  // so far
  uint64_t live_bytes = 0;     // as asked for
};

HeapUse CurrentHeapUse();

}  // namespace kvrun::testing
