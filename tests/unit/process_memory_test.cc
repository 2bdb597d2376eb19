// What the system says of this process's memory.
#include "platform/io/process_memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>

namespace kvrun {
namespace {

TEST(ProcessMemory, IsReadFromTheSystemsLines) {
  const auto memory =
      ProcessMemoryFrom("Name:\tkvrun\nVmPeak:\t  900 kB\nVmHWM:\t     321 kB\nVmRSS:\t     123 kB\n");
  ASSERT_TRUE(memory);
  EXPECT_EQ(memory->resident_bytes, 123U * 1024);
  EXPECT_EQ(memory->peak_bytes, 321U * 1024);
  EXPECT_FALSE(ProcessMemoryFrom(""));
  EXPECT_FALSE(ProcessMemoryFrom("VmHWM:\t 1 kB\n"));
  EXPECT_FALSE(ProcessMemoryFrom("\nVmHWM:\t none\nVmRSS:\t 1 kB\n"));
}

TEST(ProcessMemory, GrowsWithWhatTheProcessTakes) {
  const auto before = ReadProcessMemory();
  if (!before) GTEST_SKIP() << "this system does not say";
  constexpr size_t kBytes = 64 << 20;
  // Fresh memory: what the heap gives may have been the process's before.
  void* taken = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(taken, MAP_FAILED);
  std::memset(taken, 1, kBytes);
  const auto after = ReadProcessMemory();
  munmap(taken, kBytes);
  ASSERT_TRUE(after);
  EXPECT_GE(after->resident_bytes, before->resident_bytes + kBytes / 2);
  EXPECT_GE(after->peak_bytes, after->resident_bytes);
}

}  // namespace
}  // namespace kvrun
