// What the processor is, and how much of it this process may use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace kvrun::host {

// The numbers of the cores that this process may use, at least one. Fast are those with half of the capacity
// of the fastest of them, where the system tells capacities (on Arm), else those with about its highest
// clock; all, where it tells neither. root: where /proc and /sys are found; for tests.
struct Cores {
  std::vector<uint32_t> allowed;
  std::vector<uint32_t> fast;
};
Cores FindCores(const std::string& root = "");

// What the groups of processes that this one is in (a container's, a service's) may use together: so many
// cores' time. The least of what the files say.
struct CpuQuota {
  double cores = 0.0;
  std::string file;  // that says so
};
std::optional<CpuQuota> FindCpuQuota(const std::string& root = "");

struct ThreadChoice {
  uint32_t n_threads = 1;
  std::string reason;               // where a quota decides, that; else empty
  std::vector<uint32_t> stay_on{};  // cores that the threads are kept on; empty: any
};
// wanted: 0: one for each fast core, but no more than the quota, rounded up. More threads than there are fast
// cores are on slow ones, too: these take fewer pieces of an operation.
ThreadChoice ChooseThreads(uint32_t wanted, const Cores& cores, const std::optional<CpuQuota>& quota);
// On this machine.
ThreadChoice ChooseThreads(uint32_t wanted);

// Of one core; 0 where the system does not say.
size_t SecondLevelCacheBytes();

}  // namespace kvrun::host
