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

QueuedFile::QueuedFile(std::shared_ptr<NamelessFile> file, IoBackend backend, uint32_t queue_depth)
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

Status QueuedFile::Probe() {
  const size_t bytes = std::max<size_t>(mode_.alignment_bytes, 512);
  void* memory = nullptr;
  if (posix_memalign(&memory, bytes, 2 * bytes) != 0) {
    return {StatusCode::kOutOfMemory, "there is not enough memory for a block of the KV cache's file"};
  }
  const std::unique_ptr<void, decltype(&free)> owner(memory, &free);
  char* const written = static_cast<char*>(memory);
  char* const read = written + bytes;
  std::memset(written, 0xa5, bytes);
  std::memset(read, 0, bytes);
  for (const IoKind kind : {IoKind::kWrite, IoKind::kRead}) {
    const iovec segment{kind == IoKind::kWrite ? written : read, bytes};
    const IoRequest request{kind, 0, {&segment, 1}, 0};
    IoCompletion completion;
    KVRUN_ASSIGN_OR_RETURN(const size_t n_taken, Submit({&request, 1}));
    KVRUN_CHECK(n_taken == 1);
    KVRUN_ASSIGN_OR_RETURN(const size_t n_done, Complete({&completion, 1}, 1));
    KVRUN_CHECK(n_done == 1);
    if (completion.error_number != 0) {
      return StatusFromErrno(completion.error_number,
                             kind == IoKind::kRead ? "a first read failed" : "a first write failed");
    }
  }
  if (std::memcmp(written, read, bytes) != 0) return {StatusCode::kIo, "a first block came back changed"};
  if (ftruncate(fd(), 0) != 0) return StatusFromErrno(errno, "cannot shorten the file");
  counters_ = {};
  return Status::Ok();
}

}  // namespace kvrun
