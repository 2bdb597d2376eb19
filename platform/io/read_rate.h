// How fast random reads of one file are, over any BlockFile.
#pragma once

#include <cstdint>
#include <functional>

#include "platform/base/status.h"
#include "platform/io/block_file.h"

namespace kvrun {

struct RatePoint {
  uint32_t block_bytes = 0;  // a multiple of the file's alignment
  uint32_t depth = 0;        // reads in flight, at most the file's
};

// Bounds in time: on a disk of any rate a point is over after about `seconds`, but that each run has a
// handful of reads, and that those in flight are waited for.
struct RateLimits {
  uint64_t file_bytes = 0;          // written, at least a block; reads are anywhere in it
  double seconds = 0.1;             // all runs together
  uint64_t max_bytes = UINT64_MAX;  // read at most, but for the handful: a page cache must not learn the file
  std::function<double()> now_s = {};  // a clock that never goes back; empty: the system's
};

struct ReadRate {
  double bytes_per_s = 0.0;  // median of the runs
  double latency_us = 0.0;   // median of one read, from its submission on
  double latency_p99_us = 0.0;
};

inline constexpr uint32_t kRateRuns = 3;

// Random reads, `depth` of them in flight all the time. Runs follow each other without a pause; the first
// reads are not counted, nor are those that are only waited for at the end. Latencies are those of a full
// queue, but where a slow disk was through with less than its first queue in time.
Result<ReadRate> MeasureReadRate(BlockFile& file, const RatePoint& point, const RateLimits& limits);

// The most reads per second that one of several short windows found. Each begins and ends with nothing in
// flight, so that whatever disturbs one makes it slower, never faster. They follow each other until
// `seconds` are over, but there are at least kLeastWindows of `depth` reads.
inline constexpr uint32_t kRateWindows = 10;  // in `seconds`, about
inline constexpr uint32_t kLeastWindows = 3;
Result<double> BestReadsPerSecond(BlockFile& file, const RatePoint& point, const RateLimits& limits);

// Writes up to `file_bytes` that cannot be compressed, from the file's begin on; ends earlier where it takes
// longer than `seconds`, but not before `least_bytes`. All are multiples of kFillBytes. Answers what was
// written. progress(done, total), in bytes, answers true to cancel; it may be empty.
struct FillLimits {
  uint64_t file_bytes = 0;
  uint64_t least_bytes = 0;
  double seconds = 0.0;
};
inline constexpr uint64_t kFillBytes = 1024 * 1024;
Result<uint64_t> FillWithNoise(BlockFile& file, const FillLimits& limits,
                               const std::function<bool(uint64_t, uint64_t)>& progress);

}  // namespace kvrun
