#include "runtime/device/host/host_cores.h"

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>
#include <string_view>

namespace kvrun::host {
namespace {

// A number of a file; 0 where there is none.
uint64_t ReadNumber(const std::string& name) {
  std::ifstream file(name);
  uint64_t number = 0;
  file >> number;
  return file ? number : 0;
}

// Where a hierarchy of groups of processes is mounted that may have quotas.
struct GroupMount {
  std::string root;  // of the hierarchy: what of it is mounted; empty: all
  std::string folder;
  bool is_v2 = false;
};

bool HasWord(std::string_view words, std::string_view word) {
  for (size_t begin = 0; begin <= words.size();) {
    const size_t end = std::min(words.find(',', begin), words.size());
    if (words.substr(begin, end - begin) == word) return true;
    begin = end + 1;
  }
  return false;
}

// A line of /proc/self/mountinfo: number, parent, device, root, folder, options ... - type source options.
std::optional<GroupMount> ParseMount(const std::string& line) {
  std::istringstream words(line);
  std::string skipped, type, options;
  GroupMount mount;
  words >> skipped >> skipped >> skipped >> mount.root >> mount.folder;
  while (words >> skipped && skipped != "-") {
  }
  if (!(words >> type >> skipped >> options)) return std::nullopt;
  mount.is_v2 = type == "cgroup2";
  if (!mount.is_v2 && (type != "cgroup" || !HasWord(options, "cpu"))) return std::nullopt;
  if (mount.root == "/") mount.root.clear();
  return mount;
}

// A line of /proc/self/cgroup: number:controllers:group; those of version 2 are 0 and empty.
std::optional<std::string> GroupOf(const std::string& root, bool is_v2) {
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string_view controllers = std::string_view(line).substr(first + 1, second - first - 1);
    if (is_v2 ? line.starts_with("0::") : HasWord(controllers, "cpu")) return line.substr(second + 1);
  }
  return std::nullopt;
}

// Empty where the group is the mounted one, or is not below it (it is seen from another namespace).
std::string RelativeTo(const std::string& group, const std::string& mounted) {
  const bool is_below = group.starts_with(mounted) && group.substr(mounted.size()).starts_with('/');
  std::string below = is_below ? group.substr(mounted.size()) : std::string();
  if (below == "/" || below.find("/..") != std::string::npos) below.clear();
  return below;
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
  std::ifstream mounts(root + "/proc/self/mountinfo");
  for (std::string line; std::getline(mounts, line);) {
    const std::optional<GroupMount> mount = ParseMount(line);
    if (!mount) continue;
    const std::optional<std::string> group = GroupOf(root, mount->is_v2);
    if (!group) continue;
    // From the process's own group up to what is mounted.
    std::string below = RelativeTo(*group, mount->root);
    while (true) {
      const std::optional<CpuQuota> quota = ReadQuota(root, mount->folder + below, mount->is_v2);
      if (quota && (!least || quota->cores < least->cores)) least = quota;
      if (below.empty()) break;
      below.resize(below.rfind('/'));
    }
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
