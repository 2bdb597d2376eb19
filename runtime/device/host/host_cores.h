// What the processor is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvrun::host {

// The numbers of the cores that this process may use and that are as fast as the fastest of them, by the
// highest clock that the system reports; all, where it reports none. At least one.
std::vector<uint32_t> PerformanceCores();
// Of one core; 0 where the system does not say.
size_t SecondLevelCacheBytes();

}  // namespace kvrun::host
