// How fast random reads of one file are: what ProbeStorage consists of, over any BlockFile.
#pragma once

#include <cstdint>
#include <functional>

#include "offline/device_profile.h"
#include "platform/base/status.h"
#include "platform/io/block_file.h"

namespace kvrun::offline {

struct RatePoint {
  uint32_t block_bytes = 0;  // a multiple of the file's alignment
  uint32_t depth = 0;        // at most the file's
};

// Bounds in time: on a disk of any rate a point is over after about `seconds`, but that each run has a
// handful of reads, and that those in flight are waited for.
struct RateLimits {
  uint64_t file_bytes = 0;          // written, at least a block; reads are anywhere in it
  double seconds = 0.1;             // all runs together
  uint64_t max_bytes = UINT64_MAX;  // read at most, but for the handful: a page cache must not learn the file
  std::function<double()> now_s = {};  // a clock that never goes back; empty: the system's
};

inline constexpr uint32_t kRateRuns = 3;

// Random reads, `depth` of them in flight all the time. Runs follow each other without a pause; the first
// reads are not counted, nor are those that are only waited for at the end. Latencies are those of a full
// queue, but where a slow disk was through with less than its first queue in time.
Result<StorageRate> MeasureRate(BlockFile& file, const RatePoint& point, const RateLimits& limits);

// Writes up to `file_bytes` that cannot be compressed, from the file's begin on; ends earlier where it takes
// longer than `seconds`, but not before `least_bytes`. Answers what was written. progress(done, total), in
// bytes, answers true to cancel.
struct FillLimits {
  uint64_t file_bytes = 0;
  uint64_t least_bytes = 0;
  double seconds = 0.0;
};
Result<uint64_t> FillRandomly(BlockFile& file, const FillLimits& limits,
                              const std::function<bool(uint64_t, uint64_t)>& progress);

}  // namespace kvrun::offline
