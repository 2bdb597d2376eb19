// A slower disk than the machine has: completions of another file are held back. For tests and benchmarks.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "platform/io/block_file.h"
#include "platform/io/wrapping_file.h"

namespace kvrun {

struct RateLimit {
  uint64_t bytes_per_s = 0;  // of reads and writes together; 0: no limit
  uint32_t latency_us = 0;   // added to each request; requests in flight pass it together
};

// A request is complete when the file under it is done, and a disk of this rate, which carries out one
// request after another in the order given, would be too.
class RateLimitedBlockFile final : public WrappingFile {
 public:
  RateLimitedBlockFile(std::unique_ptr<BlockFile> file, const RateLimit& limit);

  Result<size_t> Submit(std::span<const IoRequest> requests) override;
  Result<size_t> Complete(std::span<IoCompletion> completions, size_t at_least) override;

 private:
  using Clock = std::chrono::steady_clock;

  struct Request {
    bool used = false;
    bool done = false;  // by the file
    Clock::time_point due;
    IoCompletion completion;  // with the caller's tag
  };

  Clock::time_point DueTime(const IoRequest& request, Clock::time_point now);
  // Takes answers of the file; waits for at least one if asked to.
  Status TakeAnswers(size_t at_least);

  RateLimit limit_;
  Clock::time_point busy_until_;
  std::vector<Request> requests_;
  std::vector<IoCompletion> answers_;  // of one call of the file
  size_t n_in_flight_ = 0;
  size_t n_done_ = 0;  // by the file, not handed out
};

}  // namespace kvrun
