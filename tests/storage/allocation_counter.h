// Counts what operator new gives out in this program, on all threads; what is given out holds 0xcd.
#pragma once

#include <cstdint>

namespace kvrun::testing {

struct HeapUse {
  uint64_t n_allocations = 0;  // so far
  uint64_t live_bytes = 0;     // as asked for
  uint64_t peak_bytes = 0;     // most of these there have been, since the last ResetHeapPeak
};

HeapUse CurrentHeapUse();
void ResetHeapPeak();

}  // namespace kvrun::testing
