#include "runtime/store/state_progress.h"

#include <algorithm>

namespace kvrun {
namespace {

constexpr uint64_t kMostCalls = 100;

}  // namespace

Status TellingVisitor::Bytes(const StateKey& key, std::span<std::byte> bytes) {
  KVRUN_RETURN_IF_ERROR(visitor_.Bytes(key, bytes));
  return Note(bytes.size());
}

Status TellingVisitor::Pieces(const StateKey& key, uint64_t size_bytes, std::span<std::byte> piece,
                              const MoveFn& move) {
  return visitor_.Pieces(key, size_bytes, piece,
                         [&](uint64_t offset_bytes, std::span<std::byte> moved) -> Status {
                           KVRUN_RETURN_IF_ERROR(move(offset_bytes, moved));
                           return Note(moved.size());
                         });
}

// The total is counted before, and may be a little less.
Status TellingVisitor::Note(uint64_t bytes) {
  done_bytes_ = std::min(done_bytes_ + bytes, total_bytes_);
  const bool is_step = (done_bytes_ - told_bytes_) * kMostCalls >= total_bytes_;
  return is_step && done_bytes_ < total_bytes_ ? Tell() : Status::Ok();
}

Status TellingVisitor::End() {
  done_bytes_ = total_bytes_;
  return Tell();
}

Status TellingVisitor::Tell() {
  told_bytes_ = done_bytes_;
  if (!progress_(done_bytes_, total_bytes_)) return Status::Ok();
  return {StatusCode::kCancelled, "cancelled while the session's state was read or saved"};
}

}  // namespace kvrun
