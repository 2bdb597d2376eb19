// Kernels of the CPU device, with each instruction set that they are compiled for and that this processor
// has.
#pragma once

#include <cstdint>
#include <functional>

namespace kvrun::testing {

// Calls function(target) while that target (of hwy/targets.h) is chosen, as if the processor had no better
// one; afterwards the best is again.
void ForEachHostTarget(const std::function<void(int64_t target)>& function);

}  // namespace kvrun::testing
