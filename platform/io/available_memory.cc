#include "platform/io/available_memory.h"

#include <fstream>
#include <limits>
#include <string>

namespace kvrun {

std::optional<uint64_t> AvailableMemoryBytes() {
  std::ifstream file("/proc/meminfo");
  for (std::string name; file >> name;) {
    uint64_t kib = 0;
    if (name == "MemAvailable:" && file >> kib) return kib * 1024;
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return std::nullopt;
}

}  // namespace kvrun
