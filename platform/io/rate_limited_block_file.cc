#include "platform/io/rate_limited_block_file.h"

#include <algorithm>
#include <thread>
#include <utility>

namespace kvrun {

RateLimitedBlockFile::RateLimitedBlockFile(std::unique_ptr<BlockFile> file, const RateLimit& limit)
    : WrappingFile(std::move(file)),
      limit_(limit),
      requests_(file_->mode().queue_depth),
      answers_(file_->mode().queue_depth) {}

RateLimitedBlockFile::Clock::time_point RateLimitedBlockFile::DueTime(const IoRequest& request,
                                                                      Clock::time_point now) {
  uint64_t bytes = 0;
  for (const iovec& segment : request.segments) bytes += segment.iov_len;
  busy_until_ = std::max(busy_until_, now);
  if (limit_.bytes_per_s > 0) {
    const double seconds = static_cast<double>(bytes) / static_cast<double>(limit_.bytes_per_s);
    busy_until_ += std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  }
  return busy_until_ + std::chrono::microseconds(limit_.latency_us);
}

Result<size_t> RateLimitedBlockFile::Submit(std::span<const IoRequest> requests) {
  size_t n_taken = 0;
  size_t place = 0;
  for (IoRequest request : requests) {
    while (place < requests_.size() && requests_[place].used) ++place;
    if (place == requests_.size()) break;
    const uint64_t tag = request.tag;
    request.tag = place;
    KVRUN_ASSIGN_OR_RETURN(const size_t taken, file_->Submit({&request, 1}));
    if (taken == 0) break;
    requests_[place] = {true, false, DueTime(request, Clock::now()), {tag, 0}};
    ++n_in_flight_;
    ++n_taken;
  }
  return n_taken;
}

Status RateLimitedBlockFile::TakeAnswers(size_t at_least) {
  KVRUN_ASSIGN_OR_RETURN(const size_t n_answers, file_->Complete(answers_, at_least));
  for (size_t i = 0; i < n_answers; ++i) {
    Request& request = requests_[answers_[i].tag];
    request.done = true;
    request.completion.error_number = answers_[i].error_number;
  }
  n_done_ += n_answers;
  return Status::Ok();
}

Result<size_t> RateLimitedBlockFile::Complete(std::span<IoCompletion> completions, size_t at_least) {
  const size_t wanted = std::min({at_least, completions.size(), n_in_flight_});
  size_t n_out = 0;
  while (true) {
    KVRUN_RETURN_IF_ERROR(TakeAnswers(0));
    const Clock::time_point now = Clock::now();
    Clock::time_point next = Clock::time_point::max();
    for (Request& request : requests_) {
      if (!request.used || !request.done) continue;
      if (request.due > now || n_out == completions.size()) {
        next = std::min(next, request.due);
        continue;
      }
      completions[n_out++] = request.completion;
      request.used = false;
      --n_in_flight_;
      --n_done_;
    }
    if (n_out >= wanted) return n_out;
    if (n_done_ > 0) {
      std::this_thread::sleep_until(next);
    } else {
      KVRUN_RETURN_IF_ERROR(TakeAnswers(1));
    }
  }
}

}  // namespace kvrun
