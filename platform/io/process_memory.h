// How much memory this process has, as its system counts it.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace kvrun {

struct ProcessMemory {
  uint64_t resident_bytes = 0;
  uint64_t peak_bytes = 0;  // the most that was resident so far
};

// Nothing where the system does not say (Linux does, in /proc).
std::optional<ProcessMemory> ReadProcessMemory();

// The same, given what /proc/self/status says.
std::optional<ProcessMemory> ProcessMemoryFrom(std::string_view status);

}  // namespace kvrun
