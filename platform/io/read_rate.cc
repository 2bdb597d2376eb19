#include "platform/io/read_rate.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <vector>

#include "platform/base/random.h"
#include "platform/base/units.h"

namespace kvrun {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kHandful = 5;  // reads of a run, at least
constexpr size_t kWriteDepth = 4;
constexpr std::align_val_t kMemoryAlignment{64 * 1024};

double SystemSeconds() { return std::chrono::duration<double>(Clock::now().time_since_epoch()).count(); }

class AlignedMemory {
 public:
  explicit AlignedMemory(size_t bytes) : data_(new (kMemoryAlignment) std::byte[bytes]()) {}
  std::byte* data() const { return data_.get(); }

 private:
  struct Delete {
    void operator()(std::byte* memory) const { operator delete[](memory, kMemoryAlignment); }
  };
  std::unique_ptr<std::byte[], Delete> data_;
};

// Sorts the values.
double Quantile(std::vector<double>* values, double share) {
  std::sort(values->begin(), values->end());
  const auto last = static_cast<double>(values->size() - 1);
  return (*values)[static_cast<size_t>(last * share + 0.5)];
}

// Requests of one length to one file, so many in flight.
class Stream {
 public:
  Stream(BlockFile& file, IoKind kind, size_t block_bytes, size_t depth, std::function<double()> now_s)
      : file_(file),
        now_s_(std::move(now_s)),
        kind_(kind),
        block_bytes_(block_bytes),
        memory_(block_bytes * depth),
        slots_(depth) {
    completions_.resize(depth);
    for (size_t i = depth; i > 0; --i) free_.push_back(i - 1);
    for (size_t i = 0; i < depth; ++i) slots_[i].segment = {memory_.data() + i * block_bytes, block_bytes};
  }

  bool full() const { return free_.empty(); }
  size_t n_in_flight() const { return slots_.size() - free_.size(); }
  // Of the slot that the next Add takes.
  std::byte* memory() const { return memory_.data() + free_.back() * block_bytes_; }

  // Not full. Reaches the file with the next Kick.
  void Add(uint64_t offset) {
    const size_t slot = free_.back();
    free_.pop_back();
    requests_.push_back({kind_, offset, {&slots_[slot].segment, 1}, slot});
  }

  Status Kick() {
    const double now_s = now_s_();
    for (const IoRequest& request : requests_) slots_[request.tag].submitted_s = now_s;
    size_t n_taken = 0;
    while (n_taken < requests_.size()) {
      KVRUN_ASSIGN_OR_RETURN(const size_t n, file_.Submit(std::span(requests_).subspan(n_taken)));
      if (n == 0) return {StatusCode::kInternal, "a file takes fewer requests than its depth"};
      n_taken += n;
    }
    requests_.clear();
    return Status::Ok();
  }

  // Waits for at least one. Appends each one's time from submission on, in microseconds.
  Status Take(std::vector<double>* latencies_us) {
    KVRUN_ASSIGN_OR_RETURN(const size_t n_done, file_.Complete(completions_, 1));
    const double now_s = now_s_();
    for (size_t i = 0; i < n_done; ++i) {
      const IoCompletion& completion = completions_[i];
      free_.push_back(completion.tag);
      if (completion.error_number != 0) {
        return StatusFromErrno(completion.error_number, kind_ == IoKind::kRead
                                                            ? "cannot read what was just written"
                                                            : "cannot write a file to measure");
      }
      latencies_us->push_back(1e6 * (now_s - slots_[completion.tag].submitted_s));
    }
    return Status::Ok();
  }

  // Nothing may use the memory any more when this ends, whatever has failed.
  ~Stream() {
    while (n_in_flight() > 0) {
      const Result<size_t> n_done = file_.Complete(completions_, 1);
      if (!n_done.ok() || *n_done == 0) return;
      for (size_t i = 0; i < *n_done; ++i) free_.push_back(completions_[i].tag);
    }
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

 private:
  struct Slot {
    iovec segment = {};
    double submitted_s = 0.0;
  };

  BlockFile& file_;
  std::function<double()> now_s_;
  IoKind kind_;
  size_t block_bytes_;
  AlignedMemory memory_;
  std::vector<Slot> slots_;
  std::vector<size_t> free_;
  std::vector<IoRequest> requests_;
  std::vector<IoCompletion> completions_;
};

Status CheckPoint(const BlockFile& file, const RatePoint& point, const RateLimits& limits) {
  const IoMode& mode = file.mode();
  const bool fits = point.block_bytes > 0 && point.block_bytes % mode.alignment_bytes == 0 &&
                    point.depth > 0 && point.depth <= mode.queue_depth &&
                    limits.file_bytes >= point.block_bytes;
  if (fits) return Status::Ok();
  return {StatusCode::kInvalidArgument,
          fmt::format(
              "reads of {} bytes, {} at once, cannot be measured in a file of {} (alignment {}, depth {})",
              point.block_bytes, point.depth, FormatBytes(limits.file_bytes), mode.alignment_bytes,
              mode.queue_depth)};
}

}  // namespace

Result<ReadRate> MeasureReadRate(BlockFile& file, const RatePoint& point, const RateLimits& limits) {
  KVRUN_RETURN_IF_ERROR(CheckPoint(file, point, limits));
  const uint64_t n_blocks = std::min<uint64_t>(limits.file_bytes / point.block_bytes, UINT32_MAX);
  const uint64_t run_bytes = limits.max_bytes / kRateRuns;
  Random random(n_blocks + point.depth);
  const std::function<double()> now_s = limits.now_s ? limits.now_s : SystemSeconds;
  Stream stream(file, IoKind::kRead, point.block_bytes, point.depth, now_s);
  std::vector<double> latencies_us;
  std::vector<double> rates;
  const auto add = [&] {
    while (!stream.full()) {
      stream.Add(uint64_t{random.Below(static_cast<uint32_t>(n_blocks))} * point.block_bytes);
    }
    return stream.Kick();
  };
  KVRUN_RETURN_IF_ERROR(add());
  std::vector<double> first_us;
  KVRUN_RETURN_IF_ERROR(stream.Take(&first_us));
  double begin_s = now_s();
  for (uint32_t run = 0; run < kRateRuns; ++run) {
    const size_t n_before = latencies_us.size();
    while (true) {
      KVRUN_RETURN_IF_ERROR(add());
      KVRUN_RETURN_IF_ERROR(stream.Take(&latencies_us));
      const double end_s = now_s();
      const double seconds = end_s - begin_s;
      const uint64_t n_reads = latencies_us.size() - n_before;
      const uint64_t bytes = n_reads * point.block_bytes;
      if (n_reads < kHandful || (seconds < limits.seconds / kRateRuns && bytes < run_bytes)) continue;
      rates.push_back(static_cast<double>(bytes) / std::max(seconds, 1e-9));
      begin_s = end_s;
      break;
    }
  }
  // Those that were submitted together at first did not wait for a full queue each.
  const size_t n_first = point.depth - std::min<size_t>(point.depth, first_us.size());
  if (latencies_us.size() >= n_first + kHandful) {
    latencies_us.erase(latencies_us.begin(), latencies_us.begin() + static_cast<ptrdiff_t>(n_first));
  }
  return ReadRate{.bytes_per_s = Quantile(&rates, 0.5),
                  .latency_us = std::max(Quantile(&latencies_us, 0.5), 1e-3),
                  .latency_p99_us = std::max(Quantile(&latencies_us, 0.99), 1e-3)};
}

Result<double> BestReadsPerSecond(BlockFile& file, const RatePoint& point, const RateLimits& limits) {
  KVRUN_RETURN_IF_ERROR(CheckPoint(file, point, limits));
  const uint64_t n_blocks = std::min<uint64_t>(limits.file_bytes / point.block_bytes, UINT32_MAX);
  const uint64_t window_reads = limits.max_bytes / point.block_bytes / kRateWindows;
  Random random(n_blocks + point.depth);
  const std::function<double()> now_s = limits.now_s ? limits.now_s : SystemSeconds;
  Stream stream(file, IoKind::kRead, point.block_bytes, point.depth, now_s);
  std::vector<double> latencies_us;
  uint64_t n_reads = 0;
  double best = 0.0;
  const double first_begin_s = now_s();
  for (uint32_t window = 0;; ++window) {
    const double elapsed = now_s() - first_begin_s;
    const bool is_enough = elapsed >= limits.seconds || n_reads * point.block_bytes >= limits.max_bytes;
    if (window >= kLeastWindows && is_enough) return best;
    uint64_t n_added = 0;
    latencies_us.clear();
    const double begin_s = now_s();
    const auto is_open = [&] {
      if (n_added < point.depth) return true;
      return n_added < window_reads && now_s() - begin_s < limits.seconds / kRateWindows;
    };
    do {
      for (; !stream.full() && is_open(); ++n_added) {
        stream.Add(uint64_t{random.Below(static_cast<uint32_t>(n_blocks))} * point.block_bytes);
      }
      KVRUN_RETURN_IF_ERROR(stream.Kick());
      KVRUN_RETURN_IF_ERROR(stream.Take(&latencies_us));
    } while (stream.n_in_flight() > 0);
    const double seconds = now_s() - begin_s;
    best = std::max(best, static_cast<double>(n_added) / std::max(seconds, 1e-9));
    n_reads += n_added;
  }
}

Result<uint64_t> FillWithNoise(BlockFile& file, const FillLimits& limits,
                               const std::function<bool(uint64_t, uint64_t)>& progress) {
  KVRUN_RETURN_IF_ERROR(file.Reserve(limits.file_bytes));
  Random random(limits.file_bytes);
  Stream stream(file, IoKind::kWrite, kFillBytes, std::min<size_t>(kWriteDepth, file.mode().queue_depth),
                SystemSeconds);
  std::vector<double> latencies_us;
  const double begin_s = SystemSeconds();
  uint64_t added_bytes = 0;
  while (true) {
    const bool in_time = SystemSeconds() - begin_s < limits.seconds;
    while (!stream.full() && added_bytes < limits.file_bytes &&
           (in_time || added_bytes < limits.least_bytes)) {
      for (size_t i = 0; i < kFillBytes; i += sizeof(uint64_t)) {
        const uint64_t value = random.Next();
        std::memcpy(stream.memory() + i, &value, sizeof value);
      }
      stream.Add(added_bytes);
      added_bytes += kFillBytes;
    }
    KVRUN_RETURN_IF_ERROR(stream.Kick());
    if (stream.n_in_flight() == 0) return added_bytes;
    KVRUN_RETURN_IF_ERROR(stream.Take(&latencies_us));
    if (progress && progress(latencies_us.size() * kFillBytes, limits.file_bytes)) {
      return Status(StatusCode::kCancelled, "the measurement of storage was cancelled");
    }
  }
}

}  // namespace kvrun
