// Who takes part in the next operation of a ThreadPool, decided from how long its caller has waited for whom.
//
// A worker that the system puts off its core while it holds a piece of an operation holds up all of it: the
// caller waits for a slice of the scheduler. Of n workers one does an n-th of the work, so where the waits
// for one take more than an n-th of the time, the others are faster without it; where they take clearly more,
// it is left out for a while, and for twice as long each time that this happens again at once. Where the
// caller does not get its own core either, nobody is left out: among many busy programs two threads get more
// of the machine than one does.
#pragma once

#include <cstdint>
#include <vector>

namespace kvrun::host {

// Of the thread that calls ThreadPool::ParallelFor: differences count, not where they begin.
struct CallerTimes {
  int64_t now_ns = 0;
  int64_t ran_ns = 0;    // on a core
  int64_t slept_ns = 0;  // of its own accord
};

class Attendance {
 public:
  static constexpr int64_t kWindowNs = 16'000'000;  // several slices of a scheduler
  static constexpr int64_t kShortestAbsenceNs = 2 * kWindowNs;
  static constexpr int64_t kLongestAbsenceNs = 1'000'000'000;

  explicit Attendance(uint32_t n_workers) : workers_(n_workers) {}

  // Worker 0, the caller, always does.
  bool TakesPart(uint32_t worker) const { return !workers_[worker].is_out; }
  uint32_t n_out() const { return n_out_; }

  // The caller waits for these workers, then: it has waited so long.
  void BeginWait(uint32_t worker) { workers_[worker].is_awaited = true; }
  void EndWait(int64_t wait_ns);
  // Whether it is time to decide: to be asked after waits, and while somebody is left out.
  bool IsDue(int64_t now_ns) const { return now_ns - begin_.now_ns >= kWindowNs; }
  void Decide(const CallerTimes& times);

 private:
  struct Worker {
    int64_t waited_ns = 0;  // since the last decision
    int64_t since_ns = 0;   // when it was left out, or came back
    int64_t absence_ns = kShortestAbsenceNs;
    bool is_awaited = false;
    bool is_out = false;
  };
  void DecideOf(Worker& worker, uint32_t n_in, int64_t now_ns, bool is_caller_starved);

  std::vector<Worker> workers_;
  uint32_t n_out_ = 0;
  CallerTimes begin_;  // the last decision
};

}  // namespace kvrun::host
