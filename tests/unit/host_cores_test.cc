// How many threads the CPU device starts: cores, capacities, quotas.
#include "runtime/device/host/host_cores.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/support/program_runner.h"

namespace kvrun::host {
namespace {

class HostCores : public ::testing::Test {
 protected:
  void Write(const std::string& name, const std::string& content) {
    const std::filesystem::path path = root_.Path(name.substr(1));
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << content;
  }
  // As two of several mounts.
  void MountGroups(const std::string& root) {
    Write("/proc/self/mountinfo",
          "22 1 0:20 / /proc rw,nosuid - proc proc rw\n"
          "30 23 0:26 " +
              root +
              " /sys/fs/cgroup/unified rw shared:4 - cgroup2 cgroup2 rw\n"
              "31 23 0:27 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
              "32 23 0:28 " +
              root + " /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n");
  }
  void InGroup(const std::string& v1, const std::string& v2) {
    Write("/proc/self/cgroup", "5:cpuset:/other\n2:cpu,cpuacct:" + v1 + "\n0::" + v2 + "\n");
  }
  std::optional<CpuQuota> Find() { return FindCpuQuota(root_.Path("")); }

  TemporaryFolder root_;
};

TEST_F(HostCores, NoQuotaWhereNothingSaysSo) {
  EXPECT_FALSE(Find());
  MountGroups("/");
  InGroup("/", "/");
  EXPECT_FALSE(Find());
  Write("/sys/fs/cgroup/unified/cpu.max", "max 100000\n");
  Write("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  Write("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_FALSE(Find());
}

TEST_F(HostCores, TheLeastQuotaOfTheGroupAndThoseAboveCounts) {
  MountGroups("/");
  InGroup("/", "/user.slice/app.scope/inner");
  Write("/sys/fs/cgroup/unified/user.slice/app.scope/inner/cpu.max", "400000 100000\n");
  Write("/sys/fs/cgroup/unified/user.slice/app.scope/cpu.max", "75000 50000\n");
  Write("/sys/fs/cgroup/unified/user.slice/cpu.max", "max 100000\n");
  Write("/sys/fs/cgroup/unified/other/cpu.max", "1000 100000\n");
  ASSERT_TRUE(Find());
  EXPECT_DOUBLE_EQ(Find()->cores, 1.5);
  EXPECT_EQ(Find()->file, "/sys/fs/cgroup/unified/user.slice/app.scope/cpu.max");
}

TEST_F(HostCores, VersionOne) {
  MountGroups("/");
  InGroup("/jobs/7", "/");
  Write("/sys/fs/cgroup/cpu/jobs/7/cpu.cfs_quota_us", "-1\n");
  Write("/sys/fs/cgroup/cpu/jobs/7/cpu.cfs_period_us", "100000\n");
  Write("/sys/fs/cgroup/cpu/jobs/cpu.cfs_quota_us", "250000\n");
  Write("/sys/fs/cgroup/cpu/jobs/cpu.cfs_period_us", "100000\n");
  ASSERT_TRUE(Find());
  EXPECT_DOUBLE_EQ(Find()->cores, 2.5);
}

// In a container the group's folder is mounted, and may be named as from outside or as from inside.
TEST_F(HostCores, InAContainer) {
  MountGroups("/docker/abc");
  Write("/sys/fs/cgroup/unified/cpu.max", "200000 100000\n");
  for (const char* group : {"/docker/abc", "/", "/docker/abc/", "/../else"}) {
    InGroup("/", group);
    ASSERT_TRUE(Find()) << group;
    EXPECT_DOUBLE_EQ(Find()->cores, 2.0) << group;
  }
  InGroup("/", "/docker/abc/job");
  Write("/sys/fs/cgroup/unified/job/cpu.max", "100000 100000\n");
  EXPECT_DOUBLE_EQ(Find()->cores, 1.0);
}

TEST_F(HostCores, CapacitiesThenClocksTellFastCores) {
  const std::vector<uint32_t> allowed = FindCores(root_.Path("")).allowed;
  EXPECT_EQ(FindCores(root_.Path("")).fast, allowed);
  if (allowed.size() < 2) GTEST_SKIP() << "one core";
  const auto write = [&](const std::string& file, const std::string& first, const std::string& others) {
    for (size_t i = 0; i < allowed.size(); ++i) {
      Write("/sys/devices/system/cpu/cpu" + std::to_string(allowed[i]) + "/" + file, i == 0 ? first : others);
    }
  };
  const std::vector<uint32_t> others(allowed.begin() + 1, allowed.end());
  write("cpufreq/cpuinfo_max_freq", "1800000\n", "2400000\n");
  EXPECT_EQ(FindCores(root_.Path("")).fast, others);
  write("cpufreq/cpuinfo_max_freq", "2300000\n", "2400000\n");
  EXPECT_EQ(FindCores(root_.Path("")).fast, allowed);
  write("cpu_capacity", "250\n", "1024\n");
  EXPECT_EQ(FindCores(root_.Path("")).fast, others);
  write("cpu_capacity", "800\n", "1024\n");
  EXPECT_EQ(FindCores(root_.Path("")).fast, allowed);
}

TEST(HostThreads, OnePerFastCoreWithinTheQuota) {
  const Cores cores{.allowed = {0, 1, 2, 3, 4, 5}, .fast = {2, 3, 4, 5}};
  const auto choose = [&](double quota) {
    return ChooseThreads(0, cores, CpuQuota{quota, "/group/cpu.max"});
  };
  EXPECT_EQ(ChooseThreads(0, cores, {}).n_threads, 4U);
  EXPECT_EQ(ChooseThreads(0, cores, {}).reason, "");
  EXPECT_EQ(choose(8.0).n_threads, 4U);
  EXPECT_EQ(choose(3.5).reason, "");
  EXPECT_EQ(choose(2.0).n_threads, 2U);
  EXPECT_EQ(choose(1.2).n_threads, 2U);
  EXPECT_EQ(choose(0.1).n_threads, 1U);
  EXPECT_EQ(choose(1.2).reason, "/group/cpu.max allows the time of 1.2 of 4 cores");
  // What the user asks for is what there is.
  EXPECT_EQ(ChooseThreads(7, cores, CpuQuota{1.0, "/group/cpu.max"}).n_threads, 7U);
}

TEST(HostThreads, SlowCoresTakePartWhereThereAreMoreThreadsThanFastCores) {
  const Cores cores{.allowed = {0, 1, 2, 3}, .fast = {2, 3}};
  EXPECT_EQ(ChooseThreads(0, cores, {}).stay_on, cores.fast);
  EXPECT_EQ(ChooseThreads(2, cores, {}).stay_on, cores.fast);
  EXPECT_TRUE(ChooseThreads(3, cores, {}).stay_on.empty());
  EXPECT_TRUE(ChooseThreads(2, {.allowed = {0, 1}, .fast = {0, 1}}, {}).stay_on.empty());
}

}  // namespace
}  // namespace kvrun::host
