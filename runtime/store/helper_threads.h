// Threads that do parts of some work beside the one that waits for all of it.
//
// Threads: Run by one at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "platform/base/status.h"

namespace kvrun {

class HelperThreads {
 public:
  static constexpr uint32_t kMostJobs = 2047;
  // `thread`: 0 is the caller of Run, the others count from 1: what belongs to a thread is found by it.
  using Work = std::function<void(uint32_t job, uint32_t thread)>;

  // kUnsupported: the system starts no more threads.
  static Result<std::unique_ptr<HelperThreads>> Create(uint32_t n_threads, Work work);
  ~HelperThreads();

  // Does jobs 0 to n_jobs - 1 (at most kMostJobs), here and on the threads, and ends when all are done: what
  // they have written is seen here, and what was written here before is seen by them. Allocates nothing.
  void Run(uint32_t n_jobs);

 private:
  explicit HelperThreads(Work work) : work_(std::move(work)) {}
  void Main(uint32_t thread);
  bool TakeJob(uint32_t* job);
  void Do(uint32_t job, uint32_t thread);

  const Work work_;
  // How often Run began (10 bits, only to tell), its jobs (11) and the next of them (11): who takes a job has
  // seen all that was written before Run.
  std::atomic<uint32_t> state_{0};
  std::atomic<uint32_t> n_left_{0};
  std::atomic<bool> ends_{false};
  std::vector<std::thread> threads_;
};

}  // namespace kvrun
