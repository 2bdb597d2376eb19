// What can be had of memory under each kind of limit, read of made-up files of the system.
#include "platform/io/available_memory.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "platform/base/units.h"
#include "tests/support/program_runner.h"

namespace kvrun {
namespace {

class AvailableMemory : public ::testing::Test {
 protected:
  void Write(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(folder_.Path(path)).parent_path());
    folder_.Write(path, text);
  }
  void WriteMemory() const {
    Write("proc/meminfo", "MemTotal: 9000 kB\nMemFree:   10 kB\nMemAvailable:    4096 kB\n");
  }
  // A group of version 2, of which so much is in use and so much of that is of files.
  void WriteGroup2(const std::string& folder, const std::string& max, uint64_t used, uint64_t files) const {
    Write(folder + "/memory.max", max + "\n");
    Write(folder + "/memory.high", "max\n");
    Write(folder + "/memory.current", std::to_string(used) + "\n");
    Write(folder + "/memory.stat", "anon 7\nfile 8\ninactive_file " + std::to_string(files - 1) +
                                       "\nactive_file 1\nslab_reclaimable 3\n");
  }
  std::optional<uint64_t> Available() const { return AvailableMemoryBytes(folder_.Path("")); }

  const TemporaryFolder folder_;
};

TEST_F(AvailableMemory, IsSaidByThisSystem) {
  const std::optional<uint64_t> bytes = AvailableMemoryBytes();
  ASSERT_TRUE(bytes.has_value());
  EXPECT_GT(*bytes, uint64_t{1} << 20);
  EXPECT_LT(*bytes, uint64_t{1} << 50);
}

TEST_F(AvailableMemory, IsTheSystemsWhereNothingLimitsIt) {
  EXPECT_EQ(Available(), std::nullopt);
  WriteMemory();
  EXPECT_EQ(Available(), 4 * kMiB);
  Write("proc/self/mountinfo", "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\nnonsense\n");
  Write("proc/self/cgroup", "nonsense\n0::/\n");
  EXPECT_EQ(Available(), 4 * kMiB);
}

TEST_F(AvailableMemory, IsWhatTheAddressSpaceLeaves) {
  WriteMemory();
  Write("proc/self/status", "Name:\tkvrun\nVmPeak:\t    9000 kB\nVmSize:\t    1000 kB\n");
  const std::string limits =
      "Limit                     Soft Limit           Hard Limit           Units     \n"
      "Max cpu time              1                    unlimited            seconds   \nMax address space     "
      "    ";
  Write("proc/self/limits", limits + "3000000              4000000              bytes     \n");
  EXPECT_EQ(Available(), 3'000'000U - 1'024'000U);
  Write("proc/self/limits", limits + "1000000              4000000              bytes     \n");
  EXPECT_EQ(Available(), 0U);
  Write("proc/self/limits", limits + "unlimited            unlimited            bytes     \n");
  EXPECT_EQ(Available(), 4 * kMiB);
}

TEST_F(AvailableMemory, IsTheLeastOfAGroupAndThoseAboveIt) {
  WriteMemory();
  Write("proc/self/mountinfo", "41 31 0:38 / /sys/fs/cgroup rw,relatime shared:9 - cgroup2 cgroup2 rw\n");
  Write("proc/self/cgroup", "0::/user.slice/some.scope\n");
  const std::string above = "sys/fs/cgroup/user.slice";
  WriteGroup2(above + "/some.scope", "max", 900'000, 1000);
  WriteGroup2(above, "max", 900'000, 1000);
  EXPECT_EQ(Available(), 4 * kMiB) << "no limit";
  WriteGroup2(above + "/some.scope", "3000000", 900'000, 500'000);
  EXPECT_EQ(Available(), 2'600'000U) << "what files hold can be had";
  WriteGroup2(above, "2000000", 1'900'000, 1000);
  EXPECT_EQ(Available(), 101'000U) << "the limit above is nearer";
  WriteGroup2(above, "2000000", 2'500'000, 1000);
  EXPECT_EQ(Available(), 0U);
  WriteGroup2(above, "max", 0, 1);
  Write(above + "/memory.high", "1000\n");
  EXPECT_EQ(Available(), 1000U) << "above this a process hardly goes on";
  WriteGroup2(above, "9000000000000", 0, 1);
  WriteGroup2(above + "/some.scope", "9000000000000", 0, 1);
  EXPECT_EQ(Available(), 4 * kMiB) << "there is no more than the system has";
}

TEST_F(AvailableMemory, IsWhatAGroupOfVersion1Leaves) {
  WriteMemory();
  Write("proc/self/mountinfo",
        "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
        "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
        "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
  Write("proc/self/cgroup", "4:cpu:/\n3:hugetlb,memory:/a/b\n0::/\n");
  const auto group = [&](const std::string& folder, const std::string& limit) {
    Write("sys/fs/cgroup/memory" + folder + "/memory.limit_in_bytes", limit);
    Write("sys/fs/cgroup/memory" + folder + "/memory.usage_in_bytes", "1000000");
    Write("sys/fs/cgroup/memory" + folder + "/memory.stat",
          "inactive_file 5\ntotal_inactive_file 100000\ntotal_active_file 200000\n");
  };
  for (const char* folder : {"", "/a", "/a/b"}) group(folder, "9223372036854771712");
  EXPECT_EQ(Available(), 4 * kMiB) << "no limit";
  group("/a/b", "1500000");
  EXPECT_EQ(Available(), 800'000U);
  group("/a", "1200000");
  EXPECT_EQ(Available(), 500'000U);
  group("", "1100000");
  EXPECT_EQ(Available(), 400'000U);
}

// In a container the group is mounted as the top, and /proc names it as the host does.
TEST_F(AvailableMemory, OfAContainerIsFound) {
  WriteMemory();
  for (const auto& [top, group] : {std::pair("/docker/12ab", "/docker/12ab"), std::pair("/", "/../34cd"),
                                   std::pair("/docker/12ab", "/docker/12ab/job")}) {
    SCOPED_TRACE(group);
    Write("proc/self/mountinfo",
          "41 31 0:38 " + std::string(top) + " /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
    Write("proc/self/cgroup", "0::" + std::string(group) + "\n");
    WriteGroup2("sys/fs/cgroup", "3000000", 1000, 1000);
    EXPECT_EQ(Available(), 3'000'000U);
  }
  WriteGroup2("sys/fs/cgroup/job", "2000000", 1000, 1000);
  EXPECT_EQ(Available(), 2'000'000U);
}

}  // namespace
}  // namespace kvrun
