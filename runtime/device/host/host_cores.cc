#include "runtime/device/host/host_cores.h"

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>

#include "platform/io/control_groups.h"

namespace kvrun::host {
namespace {

// A number of a file; 0 where there is none.
uint64_t ReadNumber(const std::string& name) {
  std::ifstream file(name);
  uint64_t number = 0;
  file >> number;
  return file ? number : 0;
}

std::optional<CpuQuota> ReadQuota(const std::string& root, const std::string& folder, bool is_v2) {
  const std::string name = folder + (is_v2 ? "/cpu.max" : "/cpu.cfs_quota_us");
  std::ifstream file(root + name);
  std::ifstream period_file(root + folder + "/cpu.cfs_period_us");
  double quota_us = 0.0;
  double period_us = 0.0;
  // Without a limit version 2 says "max", version 1 says -1.
  if (!(file >> quota_us) || !((is_v2 ? file : period_file) >> period_us)) return std::nullopt;
  if (quota_us <= 0.0 || period_us <= 0.0) return std::nullopt;
  return CpuQuota{.cores = quota_us / period_us, .file = name};
}

// Those that have at least `share` of the largest number; none where a core's file says none.
std::vector<uint32_t> FastestOf(const std::vector<uint32_t>& cores, const std::string& root, const char* file,
                                double share) {
  std::vector<uint64_t> speeds;
  for (const uint32_t core : cores) {
    speeds.push_back(ReadNumber(fmt::format("{}/sys/devices/system/cpu/cpu{}/{}", root, core, file)));
    if (speeds.back() == 0) return {};
  }
  const auto least =
      static_cast<uint64_t>(static_cast<double>(*std::max_element(speeds.begin(), speeds.end())) * share);
  std::vector<uint32_t> fastest;
  for (size_t i = 0; i < cores.size(); ++i) {
    if (speeds[i] >= least) fastest.push_back(cores[i]);
  }
  return fastest;
}

}  // namespace

Cores FindCores(const std::string& root) {
  cpu_set_t set;
  CPU_ZERO(&set);
  Cores cores;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) {
    for (uint32_t core = 0; core < CPU_SETSIZE; ++core) {
      if (CPU_ISSET(core, &set)) cores.allowed.push_back(core);
    }
  }
  if (cores.allowed.empty()) cores.allowed.push_back(0);
  // A capacity tells how fast a core is with all that it is made of. A clock compares cores of one kind only,
  // and these may differ by a few percent.
  cores.fast = FastestOf(cores.allowed, root, "cpu_capacity", 0.5);
  if (cores.fast.empty()) cores.fast = FastestOf(cores.allowed, root, "cpufreq/cpuinfo_max_freq", 0.9);
  if (cores.fast.empty()) cores.fast = cores.allowed;
  return cores;
}

std::optional<CpuQuota> FindCpuQuota(const std::string& root) {
  std::optional<CpuQuota> least;
  for (const ControlGroup& group : FindControlGroups("cpu", root)) {
    const std::optional<CpuQuota> quota = ReadQuota(root, group.folder, group.is_v2);
    if (quota && (!least || quota->cores < least->cores)) least = quota;
  }
  return least;
}

ThreadChoice ChooseThreads(uint32_t wanted, const Cores& cores, const std::optional<CpuQuota>& quota) {
  const auto n_fast = static_cast<uint32_t>(cores.fast.size());
  ThreadChoice choice{.n_threads = wanted, .reason = {}};
  if (wanted == 0) {
    choice.n_threads = n_fast;
    if (quota && std::ceil(quota->cores) < n_fast) {
      choice.n_threads = std::max(1U, static_cast<uint32_t>(std::ceil(quota->cores)));
      choice.reason =
          fmt::format("{} allows the time of {:.4g} of {} cores", quota->file, quota->cores, n_fast);
    }
  }
  if (choice.n_threads <= n_fast && n_fast < cores.allowed.size()) choice.stay_on = cores.fast;
  return choice;
}

ThreadChoice ChooseThreads(uint32_t wanted) { return ChooseThreads(wanted, FindCores(), FindCpuQuota()); }

size_t SecondLevelCacheBytes() {
#if defined(_SC_LEVEL2_CACHE_SIZE)
  return static_cast<size_t>(std::max(sysconf(_SC_LEVEL2_CACHE_SIZE), 0L));
#else
  return 0;
#endif
}

}  // namespace kvrun::host
