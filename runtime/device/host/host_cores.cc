#include "runtime/device/host/host_cores.h"

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

namespace kvrun::host {
namespace {

// In kHz; 0 where the system does not say.
uint64_t HighestClock(uint32_t core) {
  std::ifstream file(fmt::format("/sys/devices/system/cpu/cpu{}/cpufreq/cpuinfo_max_freq", core));
  uint64_t khz = 0;
  file >> khz;
  return file ? khz : 0;
}

}  // namespace

std::vector<uint32_t> PerformanceCores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<uint32_t> cores;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) {
    for (uint32_t core = 0; core < CPU_SETSIZE; ++core) {
      if (CPU_ISSET(core, &set)) cores.push_back(core);
    }
  }
  if (cores.empty()) return {0};
  uint64_t fastest = 0;
  for (const uint32_t core : cores) fastest = std::max(fastest, HighestClock(core));
  // Cores of one kind may differ by a few percent.
  std::erase_if(cores, [fastest](uint32_t core) { return HighestClock(core) < fastest / 10 * 9; });
  return cores;
}

size_t SecondLevelCacheBytes() {
#if defined(_SC_LEVEL2_CACHE_SIZE)
  return static_cast<size_t>(std::max(sysconf(_SC_LEVEL2_CACHE_SIZE), 0L));
#else
  return 0;
#endif
}

}  // namespace kvrun::host
