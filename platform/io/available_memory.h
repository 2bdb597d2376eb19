// How much memory can still be had without pushing others out.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace kvrun {

// The least of what the system reckons (/proc/meminfo's MemAvailable) and of what each limit on this process
// leaves: of its control groups (version 1 or 2) and of those that they lie in, where what files hold in
// memory can be had, and of its address space (ulimit -v). Nothing where none of them says. `root` is put
// before all paths, for tests.
std::optional<uint64_t> AvailableMemoryBytes(const std::string& root = "");

}  // namespace kvrun
