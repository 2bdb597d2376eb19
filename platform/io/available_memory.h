// How much memory can still be had without pushing others out.
#pragma once

#include <cstdint>
#include <optional>

namespace kvrun {

// What the system reckons (/proc/meminfo's MemAvailable); nothing where it does not say.
std::optional<uint64_t> AvailableMemoryBytes();

}  // namespace kvrun
