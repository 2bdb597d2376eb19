#include "runtime/device/host/attendance.h"

#include <algorithm>
#include <utility>

namespace kvrun::host {

void Attendance::EndWait(int64_t wait_ns) {
  for (Worker& worker : workers_) {
    if (std::exchange(worker.is_awaited, false)) worker.waited_ns += wait_ns;
  }
}

void Attendance::Decide(const CallerTimes& times) {
  const int64_t took_ns = times.now_ns - begin_.now_ns;
  const int64_t ran_ns = times.ran_ns - begin_.ran_ns;
  const int64_t slept_ns = times.slept_ns - begin_.slept_ns;
  const int64_t wanted_ns = took_ns - slept_ns;
  const bool is_caller_starved = wanted_ns - ran_ns > wanted_ns / 4;
  const auto n_in = static_cast<uint32_t>(workers_.size()) - n_out_;
  for (size_t i = 1; i < workers_.size(); ++i) DecideOf(workers_[i], n_in, times.now_ns, is_caller_starved);
  n_out_ = static_cast<uint32_t>(
      std::count_if(workers_.begin(), workers_.end(), [](const Worker& w) { return w.is_out; }));
  begin_ = times;
}

void Attendance::DecideOf(Worker& worker, uint32_t n_in, int64_t now_ns, bool is_caller_starved) {
  const int64_t waited_ns = std::exchange(worker.waited_ns, 0);
  if (worker.is_out) {
    if (!is_caller_starved && now_ns - worker.since_ns < worker.absence_ns) return;
    worker.is_out = false;
    worker.since_ns = now_ns;
    return;
  }
  if (!is_caller_starved && 2 * n_in * waited_ns > 3 * (now_ns - begin_.now_ns)) {
    const bool is_again = worker.since_ns != 0 && now_ns - worker.since_ns < 2 * worker.absence_ns;
    worker.absence_ns =
        is_again ? std::min(2 * worker.absence_ns, kLongestAbsenceNs) : int64_t{kShortestAbsenceNs};
    worker.is_out = true;
    worker.since_ns = now_ns;
  }
}

}  // namespace kvrun::host
