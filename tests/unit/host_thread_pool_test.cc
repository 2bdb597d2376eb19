// The CPU device's threads: what they share, and how.
#include <gtest/gtest.h>
#include <time.h>

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "runtime/device/host/host_cores.h"
#include "runtime/device/host/thread_pool.h"

namespace kvrun::host {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

std::vector<uint32_t> AllowedCores() { return FindCores("/nowhere").allowed; }

TEST(HostThreadPool, EachGrainIsDoneOnceBeforeTheCallReturns) {
  std::mt19937 random(1);
  ThreadPool pool(4);
  for (int turn = 0; turn < 3000; ++turn) {
    const size_t n = 1 + random() % 200;
    const size_t grain = 1 + random() % 7;
    std::vector<int> done(n, 0);  // no atomics: a second worker, or a late one, would be a race
    std::array<std::atomic<int>, 4> of_worker{};
    pool.ParallelFor(
        n, grain,
        [&](size_t begin, size_t end, uint32_t worker) {
          EXPECT_EQ(++of_worker[worker], 1);
          EXPECT_EQ(begin % grain, 0U);
          EXPECT_LE(end, n);
          for (size_t i = begin; i < end; ++i) ++done[i];
          if ((begin ^ static_cast<size_t>(turn)) % 64 == 9) std::this_thread::sleep_for(milliseconds(1));
          --of_worker[worker];
        },
        turn % 2 == 0 ? Pieces::kShrinking : Pieces::kOneByOne);
    ASSERT_EQ(done, std::vector<int>(n, 1)) << n << " by " << grain << " in turn " << turn;
  }
}

// Workers that sleep as they work: whatever else runs on the cores, one is three times as fast.
TEST(HostThreadPool, ASlowWorkerGetsLess) {
  constexpr size_t kGrains = 160;
  ThreadPool pool(2);
  std::array<size_t, 2> done{};
  std::array<Clock::duration, 2> took{};
  const auto begin_time = Clock::now();
  pool.ParallelFor(kGrains, 1, [&](size_t begin, size_t end, uint32_t worker) {
    const auto piece_begin = Clock::now();
    for (size_t i = begin; i < end; ++i) std::this_thread::sleep_for(milliseconds(worker == 0 ? 1 : 3));
    took[worker] += Clock::now() - piece_begin;
    done[worker] += end - begin;
  });
  const std::chrono::duration<double> all = Clock::now() - begin_time;
  ASSERT_EQ(done[0] + done[1], kGrains);
  ASSERT_GT(done[1], 0U);
  double grains_per_second = 0.0;
  for (size_t i = 0; i < 2; ++i)
    grains_per_second += static_cast<double>(done[i]) / std::chrono::duration<double>(took[i]).count();
  EXPECT_LT(all.count(), 1.2 * kGrains / grains_per_second) << done[0] << " and " << done[1];
}

int64_t ReadNs(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

TEST(HostThreadPool, AWorkerThatHoldsTheOthersUpIsLeftOutAndComesBack) {
  ThreadPool pool(2);
  int64_t wanted_ns = 0;  // of the caller
  int64_t ran_ns = 0;
  const auto run = [&](milliseconds of_worker_1) {
    pool.ParallelFor(8, 1, [&](size_t, size_t, uint32_t worker) {
      if (worker == 1) {
        std::this_thread::sleep_for(of_worker_1);
        return;
      }
      // The caller works, as one that has its core does.
      const int64_t begin_ns = ReadNs(CLOCK_MONOTONIC);
      const int64_t begin_ran_ns = ReadNs(CLOCK_THREAD_CPUTIME_ID);
      while (ReadNs(CLOCK_MONOTONIC) - begin_ns < 1'000'000) {
      }
      wanted_ns += ReadNs(CLOCK_MONOTONIC) - begin_ns;
      ran_ns += ReadNs(CLOCK_THREAD_CPUTIME_ID) - begin_ran_ns;
    });
  };
  const auto until = [&](uint32_t n_left_out, milliseconds of_worker_1) {
    const auto end = Clock::now() + std::chrono::seconds(5);
    while (pool.n_left_out() != n_left_out && Clock::now() < end) run(of_worker_1);
    return pool.n_left_out() == n_left_out;
  };
  const bool is_left_out = until(1, milliseconds(40));
  if (!is_left_out && ran_ns < wanted_ns / 10 * 9) GTEST_SKIP() << "other programs have the caller's core";
  EXPECT_TRUE(is_left_out);
  EXPECT_TRUE(until(0, milliseconds(1)));
}

// As a device wakes who waits for its lists: by workers that spin, that sleep, that compute, and without any.
TEST(HostThreadPool, WhoeverIsNotifiedWakes) {
  for (const uint32_t n_threads : {1U, 2U, 4U}) {
    std::mutex mutex;
    std::condition_variable reached;
    int value = 0;
    std::atomic<int> seen{0};
    ThreadPool pool(n_threads);
    constexpr int kTurns = 1000;
    std::thread waiter([&] {
      for (int turn = 1; turn <= kTurns; ++turn) {
        std::unique_lock lock(mutex);
        reached.wait(lock, [&] { return value >= turn; });
        seen = turn;
      }
    });
    for (int turn = 1; turn <= kTurns; ++turn) {
      {
        const std::lock_guard lock(mutex);
        value = turn;
      }
      pool.Notify(reached);
      if (turn % 3 == 0) pool.ParallelFor(8, 1, [](size_t, size_t, uint32_t) {});
      if (turn % 100 == 0) std::this_thread::sleep_for(milliseconds(1));  // workers sleep
      pool.NotifyLeft();
      const auto end = Clock::now() + std::chrono::seconds(20);
      while (turn % 2 == 0 && seen < turn && Clock::now() < end) std::this_thread::yield();
      if (turn % 2 == 0) {
        EXPECT_EQ(seen, turn) << n_threads;
      }
      if (HasFailure()) break;
    }
    {
      const std::lock_guard lock(mutex);
      value = kTurns;
    }
    reached.notify_one();
    waiter.join();
  }
}

// The caller computes on while a worker makes the call.
TEST(HostThreadPool, ASpinningWorkerNotifies) {
  std::mutex mutex;
  std::condition_variable reached;
  bool is_reached = false;
  std::atomic<bool> is_seen{false};
  ThreadPool pool(2);
  std::thread waiter([&] {
    std::unique_lock lock(mutex);
    reached.wait(lock, [&] { return is_reached; });
    is_seen = true;
  });
  std::this_thread::sleep_for(milliseconds(5));
  pool.ParallelFor(64, 1, [](size_t, size_t, uint32_t) {});  // the worker is awake
  {
    const std::lock_guard lock(mutex);
    is_reached = true;
  }
  pool.Notify(reached);  // and nothing else of the caller: a worker, or the caller as all sleep
  const auto end = Clock::now() + std::chrono::seconds(20);
  while (!is_seen && Clock::now() < end) std::this_thread::yield();
  EXPECT_TRUE(is_seen);
  pool.NotifyLeft();
  waiter.join();
}

TEST(HostThreadPool, StaysOnTheCoresThatItIsGiven) {
  const std::vector<uint32_t> cores = AllowedCores();
  if (cores.size() < 2) GTEST_SKIP() << "one core";
  std::vector<std::vector<uint32_t>> of_worker(2);
  // Not on the test's own thread, which others use afterwards.
  std::thread([&] {
    ThreadPool pool(2, {{cores[1]}});
    pool.PlaceCaller();
    while (of_worker[0].empty() || of_worker[1].empty()) {
      pool.ParallelFor(64, 1, [&](size_t, size_t, uint32_t worker) {
        of_worker[worker] = AllowedCores();
        std::this_thread::sleep_for(milliseconds(1));
      });
    }
  }).join();
  EXPECT_EQ(of_worker[0], std::vector<uint32_t>{cores[1]});
  EXPECT_EQ(of_worker[1], std::vector<uint32_t>{cores[1]});
}

}  // namespace
}  // namespace kvrun::host
