// Counts what operator new hands out, in test programs that use this header.
#pragma once

#include <cstdint>

namespace kvrun::testing {

// Calls of operator new by this thread since it started.
uint64_t AllocationsOfThisThread();

}  // namespace kvrun::testing
