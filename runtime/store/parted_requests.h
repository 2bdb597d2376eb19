// Requests of a file that another one below carries out in parts, one part of each at a time: what
// SavePointFile, SealedFile and OverlayFile have in common. Each has a `Request` of its own, with a bool
// is_used and a uint64_t tag.
//
// Threads: one at a time. Nothing allocates, but for messages of errors.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "platform/base/check.h"
#include "platform/base/saturating.h"
#include "platform/base/status.h"
#include "platform/io/block_file.h"

namespace kvrun {

// How many units a file of this size has; 0: none, or more than can be.
inline uint32_t CountUnits(uint64_t size_bytes, uint32_t unit_bytes) {
  if (size_bytes == 0 || unit_bytes == 0) return 0;
  const uint64_t n_units = (size_bytes - 1) / unit_bytes + 1;
  return n_units < UINT32_MAX ? static_cast<uint32_t>(n_units) : 0;
}

// How many bytes are asked for; nothing where memory is not aligned, or in too many pieces.
inline std::optional<uint64_t> BytesOf(const IoRequest& given, uint32_t alignment_bytes) {
  if (given.segments.size() > kMaxIoSegments) return std::nullopt;
  uint64_t n_bytes = 0;
  for (const iovec& segment : given.segments) {
    const auto address = reinterpret_cast<uintptr_t>(segment.iov_base);
    if (segment.iov_len % alignment_bytes != 0) return std::nullopt;
    if (segment.iov_len != 0 && address % alignment_bytes != 0) return std::nullopt;
    n_bytes = SaturatingSum({n_bytes, segment.iov_len});
  }
  return n_bytes;
}

// Where something goes on, in segments.
struct SegmentCursor {
  std::span<const iovec> segments;
  uint64_t at = 0;  // in the first

  // visit(piece), of the next n_bytes.
  template <typename Visit>
  void Take(uint64_t n_bytes, const Visit& visit) {
    while (n_bytes > 0) {
      const iovec& segment = segments.front();
      const uint64_t n = std::min(n_bytes, segment.iov_len - at);
      if (n > 0) visit(std::span(static_cast<std::byte*>(segment.iov_base) + at, n));
      n_bytes -= n;
      at += n;
      if (at < segment.iov_len) continue;
      segments = segments.subspan(1);
      at = 0;
    }
  }
  // The next n_bytes, where they lie in one piece; they are not taken.
  std::span<std::byte> Next(uint64_t n_bytes) {
    while (at == segments.front().iov_len) {
      segments = segments.subspan(1);
      at = 0;
    }
    const iovec& segment = segments.front();
    if (segment.iov_len - at < n_bytes) return {};
    return {static_cast<std::byte*>(segment.iov_base) + at, n_bytes};
  }
};

// `below` is what carries them out: a BlockFile, or what has its Submit and Complete.
template <typename Request>
class PartedRequests {
 public:
  explicit PartedRequests(uint32_t queue_depth)
      : requests_(queue_depth), queued_(queue_depth), done_(queue_depth), completions_(queue_depth) {}

  static uint64_t MemoryBytes(uint32_t queue_depth) {
    return queue_depth * (sizeof(Request) + sizeof(IoRequest) + 2 * sizeof(IoCompletion));
  }

  // As BlockFile's. begin(request, given) queues a part of it or finishes it; on_part(request, error_number)
  // the same, when the part before is done; `end` may queue more when all that were done have been told of.
  template <typename Below, typename Begin>
  Result<size_t> Submit(Below& below, std::span<const IoRequest> requests, const Begin& begin) {
    KVRUN_RETURN_IF_ERROR(failure_);
    size_t n_taken = 0;
    for (const IoRequest& given : requests) {
      if (n_in_flight_ == requests_.size()) break;
      const auto free =
          std::find_if(requests_.begin(), requests_.end(), [](const Request& one) { return !one.is_used; });
      KVRUN_CHECK(free != requests_.end());
      free->is_used = true;
      free->tag = given.tag;
      ++n_in_flight_;
      ++n_taken;
      begin(*free, given);
    }
    KVRUN_RETURN_IF_ERROR(Send(below));
    return n_taken;
  }
  template <typename Below, typename OnPart, typename End>
  Result<size_t> Complete(Below& below, std::span<IoCompletion> completions, size_t at_least,
                          const OnPart& on_part, const End& end) {
    KVRUN_RETURN_IF_ERROR(failure_);
    const auto wanted = static_cast<uint32_t>(std::min<size_t>({at_least, completions.size(), n_in_flight_}));
    do {
      KVRUN_RETURN_IF_ERROR(Reap(below, wanted > n_done_ ? wanted - n_done_ : 0, on_part, end));
    } while (n_done_ < wanted);
    const auto n_out = static_cast<uint32_t>(std::min<size_t>(completions.size(), n_done_));
    for (uint32_t i = 0; i < n_out; ++i) completions[i] = done_[(done_begin_ + i) % done_.size()];
    done_begin_ = static_cast<uint32_t>((done_begin_ + n_out) % done_.size());
    n_done_ -= n_out;
    n_in_flight_ -= n_out;
    return size_t{n_out};
  }

  // The request's next part, to be filled in but for its tag.
  IoRequest& Queue(const Request& request) {
    IoRequest& part = queued_[n_queued_++];
    part.tag = IndexOf(request);
    return part;
  }
  void Finish(Request& request, int error_number) {
    done_[(done_begin_ + n_done_) % done_.size()] = {request.tag, error_number};
    ++n_done_;
    request.is_used = false;
  }
  uint32_t IndexOf(const Request& request) const {
    return static_cast<uint32_t>(&request - requests_.data());
  }
  Request& operator[](uint32_t index) { return requests_[index]; }
  // Nothing is in flight; completions may be left to hand out.
  bool are_done() const { return n_done_ == n_in_flight_; }
  // Of the file below, which is of no use any more.
  const Status& failure() const { return failure_; }

 private:
  template <typename Below>
  Status Send(Below& below) {
    if (n_queued_ == 0) return Status::Ok();
    const size_t n_queued = std::exchange(n_queued_, 0);
    auto taken = below.Submit(std::span(queued_).first(n_queued));
    if (taken.ok() && *taken != n_queued) {
      taken = Status(StatusCode::kInternal, "the KV cache's file takes fewer requests than it says");
    }
    return failure_ = taken.status();
  }
  template <typename Below, typename OnPart, typename End>
  Status Reap(Below& below, size_t at_least, const OnPart& on_part, const End& end) {
    const auto n_answers = below.Complete(completions_, at_least);
    if (!n_answers.ok()) return failure_ = n_answers.status();
    for (const IoCompletion& completion : std::span(completions_).first(*n_answers)) {
      on_part(requests_[completion.tag], completion.error_number);
    }
    end();
    return Send(below);
  }

  std::vector<Request> requests_;
  std::vector<IoRequest> queued_;  // for the file below
  uint32_t n_queued_ = 0;
  std::vector<IoCompletion> done_;  // a ring
  uint32_t done_begin_ = 0;
  uint32_t n_done_ = 0;
  uint32_t n_in_flight_ = 0;  // also done, and not handed out
  std::vector<IoCompletion> completions_;
  Status failure_;
};

}  // namespace kvrun
