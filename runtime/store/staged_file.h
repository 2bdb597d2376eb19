// The file of a store of records, the requests that it carries out, and the *staging*: memory, aligned for
// any direct I/O and registered with the file, that bytes go through where they do not lie as the file needs
// them. Knows offsets and bytes, not records.
//
// Threads: one at a time, and no other than the file's. Nothing is allocated after Create, but for messages
// of errors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <vector>

#include "platform/base/status.h"
#include "platform/io/block_file.h"
#include "runtime/store/staging_ring.h"

namespace kvrun {

struct StoreStats {
  uint64_t reads = 0;  // of the file; adjacent records are one
  uint64_t read_bytes = 0;
  uint64_t records_read = 0;
  uint64_t records_read_again = 0;  // as their checksum was wrong at first
  uint64_t writes = 0;
  uint64_t written_bytes = 0;
  double read_wait_ms = 0.0;  // spent in Fetch

  void Add(const StoreStats& other) {
    reads += other.reads;
    read_bytes += other.read_bytes;
    records_read += other.records_read;
    records_read_again += other.records_read_again;
    writes += other.writes;
    written_bytes += other.written_bytes;
    read_wait_ms += other.read_wait_ms;
  }
};

class StagedFile {
 public:
  // Of the file, while it carries it out.
  struct Request {
    uint32_t index = 0;  // among all: where its owner keeps what it is for
    bool in_flight = false;
    IoKind kind = IoKind::kRead;
    bool staged = false;  // it has a part of the staging
    StagingRing::Part part;
    uint32_t n_segments = 0;
    iovec segments[kMaxIoSegments];
  };

  // Reserves the file's space and registers the staging with it. `staging_bytes`: a multiple of the
  // alignment.
  static Result<StagedFile> Create(std::unique_ptr<BlockFile> file, uint64_t file_bytes,
                                   uint64_t staging_bytes);
  StagedFile(StagedFile&&) = default;
  StagedFile& operator=(StagedFile&&) = delete;
  ~StagedFile() = default;  // waits for what is in flight

  // What it holds in memory with so much staging, itself included.
  static uint64_t MemoryBytes(uint64_t staging_bytes, const IoMode& mode);
  // Of so much staging: a multiple of the alignment.
  static uint64_t UsableStagingBytes(uint64_t staging_bytes, const IoMode& mode);

  const IoMode& mode() const { return file_->mode(); }
  uint32_t queue_depth() const { return static_cast<uint32_t>(requests_.size()); }
  uint32_t n_reads() const { return n_reads_; }  // queued or in flight
  uint32_t n_writes() const { return n_writes_; }
  // Where it is not ok, the file is of no use any more, and Poll answers it.
  const Status& error() const { return error_; }

  // A request, with `staged_bytes` of the staging where that is not 0. Null where too much is in flight: when
  // some of that is complete, it may be tried again. Where nothing is in flight, there is room.
  Request* Take(IoKind kind, uint64_t staged_bytes);
  std::byte* Staged(const Request& request) const { return staging_.get() + request.part.offset; }
  // BlockFile::Discard.
  void Discard(uint64_t offset_bytes, uint64_t size_bytes) { file_->Discard(offset_bytes, size_bytes); }
  // The request's segments are read or written from `offset` on, after the next Poll. A request that is
  // complete may be queued again before it is released.
  void Queue(const Request& request, uint64_t offset, StoreStats& stats);
  // Sends what is queued, and waits for so many completions, no more than there are requests. Answers those
  // that are there, their tags being indices; valid until the next call.
  Result<std::span<const IoCompletion>> Poll(uint32_t wait_for);
  Request& request(uint64_t index) { return requests_[index]; }
  const Request& request(uint64_t index) const { return requests_[index]; }
  void Release(Request& request);

 private:
  static constexpr std::align_val_t kStagingAlignment{64 * 1024};  // of any direct I/O

  struct FreeStaging {
    void operator()(std::byte* memory) const { operator delete[](memory, kStagingAlignment); }
  };

  StagedFile(std::unique_ptr<BlockFile> file, uint64_t staging_bytes);

  std::unique_ptr<std::byte[], FreeStaging> staging_;
  StagingRing ring_;
  std::vector<Request> requests_;
  std::vector<IoRequest> queued_;
  std::vector<IoCompletion> completions_;
  uint32_t n_queued_ = 0;
  uint32_t n_reads_ = 0;
  uint32_t n_writes_ = 0;
  Status error_;
  std::unique_ptr<BlockFile> file_;  // the first to go: requests in flight use the members above
};

}  // namespace kvrun
