// Threads that do parts of some work: each part once, and all of it seen.
#include "runtime/store/helper_threads.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <vector>

#include "platform/base/random.h"
#include "tests/storage/allocation_counter.h"
#include "tests/support/or_die.h"

namespace kvrun::testing {
namespace {

TEST(HelperThreads, DoEachJobOnce) {
  constexpr uint32_t kRounds = 3000;  // more than there are numbers of rounds
  constexpr uint32_t kThreads = 3;
  std::vector<uint32_t> done(
      HelperThreads::kMostJobs);  // not atomic: who runs and who waits see each other's
  std::vector<uint32_t> of_thread(1 + kThreads);
  const auto helpers = OrDie(HelperThreads::Create(kThreads, [&](uint32_t job, uint32_t thread) {
    ++done[job];
    ++of_thread[thread];
  }));
  Random random(3);
  uint64_t n_jobs = 0;
  const uint64_t n_before = CurrentHeapUse().n_allocations;
  for (uint32_t round = 0; round < kRounds; ++round) {
    const uint32_t n = round % 100 == 0 ? HelperThreads::kMostJobs : random.Below(40);
    for (uint32_t job = 0; job < n; ++job) done[job] = 0;
    helpers->Run(n);
    for (uint32_t job = 0; job < n; ++job) ASSERT_EQ(done[job], 1U) << round;
    n_jobs += n;
  }
  EXPECT_EQ(CurrentHeapUse().n_allocations, n_before);
  uint64_t n_of_threads = 0;
  for (const uint32_t n : of_thread) n_of_threads += n;
  EXPECT_EQ(n_of_threads, n_jobs);
}

TEST(HelperThreads, EndWithoutWork) {
  for (int i = 0; i < 20; ++i) OrDie(HelperThreads::Create(2, [](uint32_t, uint32_t) {}));
}

}  // namespace
}  // namespace kvrun::testing
