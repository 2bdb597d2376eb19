// A fixed set of threads that carry out one operation at a time together.
//
// Work is claimed in pieces, by the thread that calls and by those that wait for work, from a counter of what
// is left. So fast and slow cores share it by their speed, a thread that comes late finds less to do, and one
// that does not come (the system has given its core to another program) is not waited for: only whoever holds
// a piece is. Nothing may depend on who computes what: sums are cut by the operation, not by the pieces.
//
// Threads are not bound to a core each: other programs, and other pools, would be on the same ones. A thread
// that waits spins for a little while, then sleeps. The caller soon does, too: its core is then free for the
// one that it waits for, which the system moves there.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "runtime/device/host/attendance.h"

namespace kvrun::host {

// A reference to a callable `void(size_t begin, size_t end, uint32_t worker)`, which must outlive the call:
// no allocation.
class PieceFunction {
 public:
  template <typename F>
  PieceFunction(const F& function)  // NOLINT(google-explicit-constructor): as a parameter only
      : object_(&function), call_([](const void* object, size_t begin, size_t end, uint32_t worker) {
          (*static_cast<const F*>(object))(begin, end, worker);
        }) {}
  void operator()(size_t begin, size_t end, uint32_t worker) const { call_(object_, begin, end, worker); }

 private:
  const void* object_;
  void (*call_)(const void*, size_t, size_t, uint32_t);
};

enum class Pieces : uint8_t {
  kShrinking,  // half of a fair share of what is left: few claims, and small pieces in the end
  kOneByOne,   // a grain each, where grains are large and differ
};

class ThreadPool {
 public:
  // The caller of ParallelFor is worker 0; n_threads - 1 threads are started (fewer, if the system has no
  // more). `cores`: all of them stay on these, the caller by PlaceCaller; empty: wherever the process may be.
  explicit ThreadPool(uint32_t n_threads, std::span<const uint32_t> cores = {});
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  uint32_t size() const { return n_workers_; }
  // Keeps the calling thread, which will call ParallelFor, on the cores.
  void PlaceCaller() const;

  // function(begin, end, worker) on consecutive pieces of [0, n), which begin with a multiple of `grain`: any
  // number of them on any worker, 0 .. size() - 1, a worker's one after another. Returns when all have
  // returned. Not to be called by two threads at a time, nor by a worker.
  template <typename F>
  void ParallelFor(size_t n, size_t grain, const F& function, Pieces pieces = Pieces::kShrinking) {
    if (n == 0) return;
    if (n_workers_ == 1 || n <= grain) {
      function(size_t{0}, n, uint32_t{0});
      return;
    }
    Share(n, grain, pieces, function);
  }

  // At least so many bytes for each worker, 64-byte aligned, valid until the next call that asks for more.
  // Allocates only when it grows: operations ask for the same every time.
  std::byte* Scratch(uint32_t worker, size_t bytes_per_worker);
  // The same for all of them together: [size(), bytes_per_worker rounded up to 64]. Before ParallelFor.
  void ReserveScratch(size_t bytes_per_worker);

  // Notifies one thread that waits for `condition`, which must outlive the pool: by a worker that spins,
  // where there is one, as the caller has something to compute and a system call that wakes a thread takes as
  // long as a small operation. Where that worker's core is the woken thread's last one, none is interrupted
  // for it. For the caller.
  void Notify(std::condition_variable& condition);
  // What no worker has come to, as its core has gone to another program: by the caller, after an operation.
  void NotifyLeft();

  // How many workers are left out at present, as Attendance has it. For the caller.
  uint32_t n_left_out() const { return attendance_.n_out(); }

 private:
  struct FreeAligned {
    void operator()(std::byte* bytes) const;
  };
  // Written while nothing of it can be claimed, read by those that have claimed a piece.
  struct Operation {
    const PieceFunction* function = nullptr;
    size_t n = 0;
    size_t grain = 1;
    uint32_t n_grains = 0;
  };
  struct alignas(64) Worker {
    std::atomic<uint32_t> is_asleep{0};
    std::atomic<bool> takes_part{true};
    std::atomic<bool> holds_piece{false};
  };

  void Share(size_t n, size_t grain, Pieces pieces, const PieceFunction& function);
  // Returns how many grains were done.
  uint32_t TakePieces(uint32_t worker);
  void Work(uint32_t worker);
  void AwaitWork(Worker& worker);
  bool HasAwakeWorker() const;
  void WakeWorkers(uint32_t n_most);
  void AwaitOthers();
  void DecideAttendance(int64_t now_ns);

  uint32_t n_workers_ = 1;
  std::vector<uint32_t> cores_;
  Operation operation_;
  Attendance attendance_;
  int64_t slept_ns_ = 0;  // of the caller
  // Grains of the operation that nobody has claimed, and a bit for Pieces::kOneByOne. Whoever changes it from
  // what it is to less owns the difference, of whichever operation that is by then; so what is taken may
  // depend on nothing else.
  alignas(64) std::atomic<uint32_t> unclaimed_{0};
  std::atomic<bool> stopping_{false};
  std::atomic<std::condition_variable*> to_notify_{nullptr};  // whoever takes it notifies it
  alignas(64) std::atomic<uint32_t> unfinished_{0};
  std::atomic<uint32_t> caller_sleeps_{0};
  std::unique_ptr<Worker[]> workers_;
  std::vector<std::thread> threads_;
  std::unique_ptr<std::byte, FreeAligned> scratch_;
  size_t scratch_bytes_ = 0;  // of each worker
};

}  // namespace kvrun::host
