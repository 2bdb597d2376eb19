// A file of records in memory that one BlockFile after another stands for, as processes do for a file on
// disk; a copy of the bytes is what the file was at that moment.
#pragma once

#include <sys/uio.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "platform/io/block_file.h"

namespace kvrun::testing {

using SharedBytes = std::shared_ptr<std::vector<std::byte>>;

class SharedMemoryFile final : public BlockFile {
 public:
  explicit SharedMemoryFile(SharedBytes bytes, uint32_t alignment_bytes = 4096, uint32_t queue_depth = 32)
      : bytes_(std::move(bytes)) {
    mode_.alignment_bytes = alignment_bytes;
    mode_.queue_depth = queue_depth;
    done_.reserve(mode_.queue_depth);
  }

  const IoMode& mode() const override { return mode_; }
  Result<size_t> Submit(std::span<const IoRequest> requests) override {
    size_t n = 0;
    for (; n < requests.size() && done_.size() < mode_.queue_depth; ++n) {
      done_.push_back({requests[n].tag, Do(requests[n])});
    }
    return n;
  }
  Result<size_t> Complete(std::span<IoCompletion> completions, size_t /*at_least*/) override {
    size_t n = 0;
    for (; n < completions.size() && !done_.empty(); ++n) {
      completions[n] = done_.back();
      done_.pop_back();
    }
    return n;
  }
  Status Reserve(uint64_t size_bytes) override {
    if (bytes_->size() < size_bytes) bytes_->resize(size_bytes);
    return Status::Ok();
  }
  void RegisterMemory(std::span<const iovec>) override {}
  Status Sync() override { return Status::Ok(); }
  void DropCache() override {}
  IoCounters counters() const override { return counters_; }

 private:
  int Do(const IoRequest& request) {
    uint64_t at = request.offset;
    for (const iovec& segment : request.segments) {
      if (at > bytes_->size() || segment.iov_len > bytes_->size() - at) return ENODATA;
      std::byte* const of_file = bytes_->data() + at;
      if (request.kind == IoKind::kRead) {
        std::memcpy(segment.iov_base, of_file, segment.iov_len);
      } else {
        std::memcpy(of_file, segment.iov_base, segment.iov_len);
      }
      at += segment.iov_len;
    }
    (request.kind == IoKind::kRead ? counters_.reads : counters_.writes) += 1;
    (request.kind == IoKind::kRead ? counters_.read_bytes : counters_.written_bytes) += at - request.offset;
    return 0;
  }

  SharedBytes bytes_;
  IoMode mode_;
  IoCounters counters_;
  std::vector<IoCompletion> done_;
};

}  // namespace kvrun::testing
