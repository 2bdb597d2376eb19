// The CPU device's threads.
#include <gtest/gtest.h>
#include <sched.h>

#include <thread>
#include <vector>

#include "runtime/device/host/host_cores.h"
#include "runtime/device/host/thread_pool.h"

namespace kvrun::host {
namespace {

// -1: more than one, or none.
int OnlyCore() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0 || CPU_COUNT(&set) != 1) return -1;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &set)) return core;
  }
  return -1;
}

TEST(HostThreadPool, EachWorkerHasACoreOfItsOwn) {
  const std::vector<uint32_t> cores = PerformanceCores();
  if (cores.size() < 2) GTEST_SKIP() << "one core";
  std::vector<int> of_worker(2, -2);
  // Not on the test's own thread, which others use afterwards.
  std::thread([&] {
    ThreadPool pool(2, cores);
    pool.PinCaller();
    pool.Run([&](uint32_t worker) { of_worker[worker] = OnlyCore(); });
  }).join();
  EXPECT_EQ(of_worker, (std::vector<int>{static_cast<int>(cores[0]), static_cast<int>(cores[1])}));
}

TEST(HostThreadPool, WithoutCoresTheSystemChooses) {
  if (PerformanceCores().size() < 2) GTEST_SKIP() << "one core";
  std::vector<int> of_worker(2, -2);
  std::thread([&] {
    ThreadPool pool(2);
    pool.PinCaller();
    pool.Run([&](uint32_t worker) { of_worker[worker] = OnlyCore(); });
  }).join();
  EXPECT_EQ(of_worker, (std::vector<int>{-1, -1}));
}

}  // namespace
}  // namespace kvrun::host
