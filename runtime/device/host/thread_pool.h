// A fixed set of threads that carry out one operation at a time together.
//
// Work is divided before it starts, and nobody takes another's share. What is divided must not depend on how
// many threads there are where sums are cut: then every rounding is the same for any number of them. A thread
// that waits spins for a little while, then sleeps.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <utility>
#include <vector>

namespace kvrun::host {

// A reference to a callable `void(uint32_t worker)`, which must outlive the call: no allocation.
class WorkerFunction {
 public:
  template <typename F>
  WorkerFunction(const F& function)  // NOLINT(google-explicit-constructor): as a parameter only
      : object_(&function),
        call_([](const void* object, uint32_t worker) { (*static_cast<const F*>(object))(worker); }) {}
  void operator()(uint32_t worker) const { call_(object_, worker); }

 private:
  const void* object_;
  void (*call_)(const void*, uint32_t);
};

class ThreadPool {
 public:
  // The caller of Run is worker 0; n_threads - 1 threads are started (fewer, if the system has no more).
  // `cores`: worker i is pinned to cores[i % size] where this is not empty, the caller by PinCaller.
  // Unpinned, two share a core that others leave free for them, half as fast as on a core each beside one
  // busy program.
  explicit ThreadPool(uint32_t n_threads, std::span<const uint32_t> cores = {});
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  uint32_t size() const { return n_workers_; }
  // Pins the calling thread, which will call Run, to the first of the cores.
  void PinCaller() const;

  // function(worker) on every worker, 0 .. size() - 1, at once; returns when all have returned. Not to be
  // called by two threads at a time, nor by a worker.
  void Run(const WorkerFunction& function);

  // function(begin, end, worker) on consecutive, nearly equal parts of [0, n); a part's begin is a multiple
  // of `grain`. Workers whose part is empty are not called.
  template <typename F>
  void ParallelFor(size_t n, size_t grain, const F& function) {
    const size_t n_grains = (n + grain - 1) / grain;
    if (n_workers_ == 1 || n_grains <= 1) {
      if (n > 0) function(size_t{0}, n, uint32_t{0});
      return;
    }
    Run([&](uint32_t worker) {
      const auto [begin, end] = Part(n, grain, worker);
      if (begin < end) function(begin, end, worker);
    });
  }
  std::pair<size_t, size_t> Part(size_t n, size_t grain, uint32_t worker) const;

  // At least so many bytes for each worker, 64-byte aligned, valid until the next call that asks for more.
  // Allocates only when it grows: operations ask for the same every time.
  std::byte* Scratch(uint32_t worker, size_t bytes_per_worker);
  // The same for all of them together: [size(), bytes_per_worker rounded up to 64]. Before Run.
  void ReserveScratch(size_t bytes_per_worker);

 private:
  void Work(uint32_t worker);

  struct FreeAligned {
    void operator()(std::byte* bytes) const;
  };
  struct alignas(64) Progress {
    std::atomic<uint64_t> done{0};
  };

  uint32_t n_workers_ = 1;
  std::optional<uint32_t> callers_core_;
  std::atomic<uint64_t> generation_{0};  // of calls of Run
  std::atomic<bool> stopping_{false};
  const WorkerFunction* function_ = nullptr;
  std::unique_ptr<Progress[]> progress_;  // of each worker: the generation that it has finished
  std::vector<std::thread> threads_;
  std::unique_ptr<std::byte, FreeAligned> scratch_;
  size_t scratch_bytes_ = 0;  // of each worker
};

}  // namespace kvrun::host
