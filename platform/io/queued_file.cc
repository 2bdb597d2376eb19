#include "platform/io/queued_file.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "platform/base/check.h"
#include "platform/base/units.h"

namespace kvrun {
namespace {

constexpr size_t kLeastProbeBytes = 512;

struct FreeProbeMemory {
  void operator()(std::byte* memory) const { free(memory); }
};
using ProbeMemory = std::unique_ptr<std::byte, FreeProbeMemory>;

ProbeMemory AllocateProbe(size_t n_bytes, size_t alignment_bytes) {
  void* memory = nullptr;
  if (posix_memalign(&memory, alignment_bytes, n_bytes) != 0) memory = nullptr;
  return ProbeMemory(static_cast<std::byte*>(memory));
}

Status NoProbeMemory() {
  return {StatusCode::kOutOfMemory, "there is not enough memory for a block of the KV cache's file"};
}

}  // namespace

QueuedFile::QueuedFile(std::shared_ptr<BackingFile> file, IoBackend backend, uint32_t queue_depth)
    : file_(std::move(file)), transfers_(queue_depth), done_(queue_depth) {
  mode_.backend = backend;
  mode_.direct = file_->direct;
  mode_.alignment_bytes = file_->alignment_bytes;
  mode_.queue_depth = queue_depth;
  mode_.notes = file_->notes;
  free_.reserve(queue_depth);
  for (uint32_t i = queue_depth; i > 0; --i) free_.push_back(i - 1);
}

Result<size_t> QueuedFile::Submit(std::span<const IoRequest> requests) {
  if (!failure_.ok()) return failure_;
  size_t n_taken = 0;
  for (const IoRequest& request : requests) {
    if (n_in_flight_ == mode_.queue_depth) break;
    const uint32_t index = free_.back();
    Count(request);
    ++n_in_flight_;
    ++n_taken;
    if (file_->is_read_only && request.kind == IoKind::kWrite) {
      Finish(request.tag, EBADF);
      continue;
    }
    if (const auto error = BeginTransfer(request, mode_.alignment_bytes, transfers_[index])) {
      Finish(request.tag, *error);
      continue;
    }
    free_.pop_back();
    Start(index);
  }
  KVRUN_RETURN_IF_ERROR(Keep(Kick()));
  return n_taken;
}

Result<size_t> QueuedFile::Complete(std::span<IoCompletion> completions, size_t at_least) {
  if (!failure_.ok()) return failure_;
  const auto wanted = static_cast<uint32_t>(std::min<size_t>({at_least, completions.size(), n_in_flight_}));
  do {
    KVRUN_RETURN_IF_ERROR(Keep(Reap(wanted > n_done_ ? wanted - n_done_ : 0)));
  } while (n_done_ < wanted);
  const auto n_out = static_cast<uint32_t>(std::min<size_t>(completions.size(), n_done_));
  for (uint32_t i = 0; i < n_out; ++i) {
    completions[i] = done_[done_begin_];
    done_begin_ = (done_begin_ + 1) % mode_.queue_depth;
  }
  n_done_ -= n_out;
  n_in_flight_ -= n_out;
  return size_t{n_out};
}

void QueuedFile::OnAnswer(uint32_t index, int64_t answer) {
  Transfer& transfer = transfers_[index];
  const auto error = AdvanceTransfer(transfer, answer, mode_.alignment_bytes);
  if (!error) {
    Start(index);
    return;
  }
  free_.push_back(index);
  Finish(transfer.tag, *error);
}

void QueuedFile::Finish(uint64_t tag, int error_number) {
  KVRUN_CHECK(n_done_ < mode_.queue_depth);
  done_[(done_begin_ + n_done_) % mode_.queue_depth] = {tag, error_number};
  ++n_done_;
}

void QueuedFile::Count(const IoRequest& request) {
  uint64_t bytes = 0;
  for (const iovec& segment : request.segments) bytes += segment.iov_len;
  (request.kind == IoKind::kRead ? counters_.reads : counters_.writes) += 1;
  (request.kind == IoKind::kRead ? counters_.read_bytes : counters_.written_bytes) += bytes;
}

Status QueuedFile::Keep(Status status) {
  if (failure_.ok()) failure_ = status;
  return status;
}

void QueuedFile::Drain() {
  while (failure_.ok() && n_done_ < n_in_flight_) {
    Status status = Keep(Reap(n_in_flight_ - n_done_));
    if (!status.ok()) return;
  }
}

Status QueuedFile::Reserve(uint64_t size_bytes) {
  KVRUN_ASSIGN_OR_RETURN(std::string note,
                         ReserveFile(*file_, RoundUp<uint64_t>(size_bytes, mode_.alignment_bytes)));
  if (!note.empty() && std::find(mode_.notes.begin(), mode_.notes.end(), note) == mode_.notes.end()) {
    AddNote(std::move(note));
  }
  return Status::Ok();
}

Status QueuedFile::Sync() {
  KVRUN_CHECK(n_done_ == n_in_flight_);
  if (fdatasync(fd()) == 0) return Status::Ok();
  // What the system had not written then, it may never write, and says so once.
  return Keep(
      StatusFromErrno(errno, "cannot write all of the KV cache's file in " + file_->folder + " to the disk"));
}

void QueuedFile::Discard(uint64_t offset_bytes, uint64_t size_bytes) {
  (void)fallocate(fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset_bytes),
                  static_cast<off_t>(size_bytes));
}

void QueuedFile::DropCache() {
  if (mode_.direct) return;
  // Pages that were not written out yet would stay. Both are hints: whoever measures sees whether it worked.
  if (fdatasync(fd()) == 0) posix_fadvise(fd(), 0, 0, POSIX_FADV_DONTNEED);
}

Result<int> QueuedFile::DoOne(IoKind kind, std::span<std::byte> bytes) {
  const iovec segment{bytes.data(), bytes.size()};
  const IoRequest request{kind, 0, {&segment, 1}, 0};
  IoCompletion completion;
  KVRUN_ASSIGN_OR_RETURN(const size_t n_taken, Submit({&request, 1}));
  KVRUN_CHECK(n_taken == 1);
  KVRUN_ASSIGN_OR_RETURN(const size_t n_done, Complete({&completion, 1}, 1));
  KVRUN_CHECK(n_done == 1);
  return completion.error_number;
}

Status QueuedFile::Probe() {
  const size_t n_bytes = std::max<size_t>(mode_.alignment_bytes, kLeastProbeBytes);
  const ProbeMemory memory = AllocateProbe(2 * n_bytes, n_bytes);
  if (memory == nullptr) return NoProbeMemory();
  const std::span<std::byte> written(memory.get(), n_bytes);
  const std::span<std::byte> read(memory.get() + n_bytes, n_bytes);
  std::memset(written.data(), 0xa5, n_bytes);
  std::memset(read.data(), 0, n_bytes);
  KVRUN_ASSIGN_OR_RETURN(const int write_error, DoOne(IoKind::kWrite, written));
  if (write_error != 0) return StatusFromErrno(write_error, "a first write failed");
  KVRUN_ASSIGN_OR_RETURN(const int read_error, DoOne(IoKind::kRead, read));
  if (read_error != 0) return StatusFromErrno(read_error, "a first read failed");
  if (std::memcmp(written.data(), read.data(), n_bytes) != 0) {
    return {StatusCode::kIo, "a first block came back changed"};
  }
  if (ftruncate(fd(), 0) != 0) return StatusFromErrno(errno, "cannot shorten the file");
  counters_ = {};
  return Status::Ok();
}

Status QueuedFile::ProbeRead() {
  const size_t n_bytes = std::max<size_t>(mode_.alignment_bytes, kLeastProbeBytes);
  const ProbeMemory memory = AllocateProbe(n_bytes, n_bytes);
  if (memory == nullptr) return NoProbeMemory();
  KVRUN_ASSIGN_OR_RETURN(const int error, DoOne(IoKind::kRead, {memory.get(), n_bytes}));
  if (error != 0 && error != ENODATA) return StatusFromErrno(error, "a first read failed");
  counters_ = {};
  return Status::Ok();
}

}  // namespace kvrun
