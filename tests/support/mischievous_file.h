// A file whose requests fail when a test says so: from one on, until it takes that back. (FaultyBlockFile is
// told when it is made.)
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "platform/io/block_file.h"
#include "platform/io/wrapping_file.h"

namespace kvrun::testing {

// Of all files that have it; they are used by one thread at a time.
struct Mischief {
  std::optional<IoKind> fails = std::nullopt;  // requests of this kind,
  uint32_t n_good = 0;                         // but for so many that come first
  uint32_t n_failed = 0;

  bool Fail(IoKind kind) {
    if (fails != kind) return false;
    if (n_good > 0) {
      --n_good;
      return false;
    }
    ++n_failed;
    return true;
  }
};

class MischievousFile final : public WrappingFile {
 public:
  // `mischief` must outlive it.
  MischievousFile(std::unique_ptr<BlockFile> file, Mischief& mischief)
      : WrappingFile(std::move(file)), mischief_(mischief) {}

  Result<size_t> Submit(std::span<const IoRequest> requests) override {
    size_t n_taken = 0;
    for (const IoRequest& request : requests) {
      if (n_in_flight_ + failed_.size() >= mode().queue_depth) break;
      if (mischief_.Fail(request.kind)) {
        failed_.push_back({request.tag, request.kind == IoKind::kRead ? EIO : ENOSPC});
      } else {
        KVRUN_ASSIGN_OR_RETURN(const size_t n, file_->Submit({&request, 1}));
        if (n == 0) break;
        ++n_in_flight_;
      }
      ++n_taken;
    }
    return n_taken;
  }
  Result<size_t> Complete(std::span<IoCompletion> completions, size_t at_least) override {
    size_t n = 0;
    for (; n < completions.size() && !failed_.empty(); ++n) {
      completions[n] = failed_.back();
      failed_.pop_back();
    }
    if (n == completions.size() || n_in_flight_ == 0) return n;
    KVRUN_ASSIGN_OR_RETURN(const size_t more,
                           file_->Complete(completions.subspan(n), at_least > n ? at_least - n : 0));
    n_in_flight_ -= more;
    return n + more;
  }

 private:
  Mischief& mischief_;
  std::vector<IoCompletion> failed_;
  size_t n_in_flight_ = 0;
};

}  // namespace kvrun::testing
