#include "runtime/store/staged_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "platform/base/saturating.h"
#include "platform/base/units.h"

namespace kvrun {

uint64_t StagedFile::UsableStagingBytes(uint64_t staging_bytes, const IoMode& mode) {
  return staging_bytes / mode.alignment_bytes * mode.alignment_bytes;
}

uint64_t StagedFile::MemoryBytes(uint64_t staging_bytes, const IoMode& mode) {
  const uint64_t request_bytes = sizeof(Request) + sizeof(IoRequest) + sizeof(IoCompletion);
  return SaturatingSum({sizeof(StagedFile), UsableStagingBytes(staging_bytes, mode),
                        mode.queue_depth * request_bytes, StagingRing::MemoryBytes(2 * mode.queue_depth),
                        BlockFileMemoryBytes(mode)});
}

Result<StagedFile> StagedFile::Create(std::unique_ptr<BlockFile> file, uint64_t file_bytes,
                                      uint64_t staging_bytes) {
  KVRUN_RETURN_IF_ERROR(file->Reserve(file_bytes));
  StagedFile staged(std::move(file), staging_bytes);
  staged.staging_.reset(new (kStagingAlignment, std::nothrow) std::byte[staging_bytes]);
  if (staged.staging_ == nullptr) {
    return Status(StatusCode::kOutOfMemory,
                  fmt::format("there is not enough memory for the KV store's staging, which needs {}",
                              FormatBytes(staging_bytes)));
  }
  const iovec region{staged.staging_.get(), staging_bytes};
  staged.file_->RegisterMemory({&region, 1});
  return staged;
}

StagedFile::StagedFile(std::unique_ptr<BlockFile> file, uint64_t staging_bytes)
    : ring_(staging_bytes, 2 * file->mode().queue_depth),
      requests_(file->mode().queue_depth),
      queued_(file->mode().queue_depth),
      completions_(file->mode().queue_depth),
      file_(std::move(file)) {
  for (size_t i = 0; i < requests_.size(); ++i) requests_[i].index = static_cast<uint32_t>(i);
}

StagedFile::Request* StagedFile::Take(IoKind kind, uint64_t staged_bytes) {
  const auto found = std::find_if(requests_.begin(), requests_.end(),
                                  [](const Request& request) { return !request.in_flight; });
  if (found == requests_.end()) return nullptr;
  if (staged_bytes > 0) {
    const auto part = ring_.Allocate(staged_bytes);
    if (!part) return nullptr;
    found->part = *part;
  }
  found->in_flight = true;
  found->kind = kind;
  found->staged = staged_bytes > 0;
  ++(kind == IoKind::kRead ? n_reads_ : n_writes_);
  return &*found;
}

void StagedFile::Queue(const Request& request, uint64_t offset, StoreStats& stats) {
  IoRequest& queued = queued_[n_queued_++];
  queued.kind = request.kind;
  queued.offset = offset;
  queued.segments = std::span(request.segments, request.n_segments);
  queued.tag = request.index;
  uint64_t bytes = 0;
  for (const iovec& segment : queued.segments) bytes += segment.iov_len;
  const bool reads = request.kind == IoKind::kRead;
  (reads ? stats.reads : stats.writes) += 1;
  (reads ? stats.read_bytes : stats.written_bytes) += bytes;
}

Result<std::span<const IoCompletion>> StagedFile::Poll(uint32_t wait_for) {
  KVRUN_RETURN_IF_ERROR(error_);
  auto taken = file_->Submit(std::span(queued_).first(n_queued_));
  if (taken.ok() && *taken != n_queued_) {
    taken = Status(StatusCode::kInternal, "the KV store's file takes fewer requests than it says");
  }
  if (!taken.ok()) return error_ = taken.status();
  n_queued_ = 0;
  const auto n_done = file_->Complete(completions_, wait_for);
  if (!n_done.ok()) return error_ = n_done.status();
  return std::span<const IoCompletion>(completions_).first(*n_done);
}

void StagedFile::Release(Request& request) {
  if (request.staged) ring_.Release(request.part.id);
  request.in_flight = false;
  --(request.kind == IoKind::kRead ? n_reads_ : n_writes_);
}

}  // namespace kvrun
