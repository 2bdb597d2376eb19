// Linux AIO by system calls: asynchronous with direct I/O; with a buffered file io_submit does the work
// itself.
#include <linux/aio_abi.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "platform/io/queued_file.h"

namespace kvrun {
namespace {

class AioFile final : public QueuedFile {
 public:
  AioFile(std::shared_ptr<BackingFile> file, uint32_t queue_depth)
      : QueuedFile(std::move(file), IoBackend::kAio, queue_depth),
        blocks_(queue_depth),
        pending_(queue_depth),
        events_(queue_depth) {}

  ~AioFile() override {
    Drain();
    if (context_ != 0) syscall(SYS_io_destroy, context_);
  }

  Status Open() {
    if (syscall(SYS_io_setup, mode().queue_depth, &context_) != 0) return StatusFromErrno(errno, "setup");
    return Status::Ok();
  }

 protected:
  void Start(uint32_t index) override;
  Status Kick() override;
  Status Reap(uint32_t wait_for) override;

 private:
  aio_context_t context_ = 0;
  std::vector<iocb> blocks_;      // by transfer
  std::vector<iocb*> pending_;    // not sent yet, in order
  std::vector<io_event> events_;  // of one io_getevents
  uint32_t n_pending_ = 0;
  uint32_t n_sent_ = 0;
};

void AioFile::Start(uint32_t index) {
  const Transfer& work = transfer(index);
  iocb& block = blocks_[index];
  block = {};
  block.aio_data = index;
  block.aio_lio_opcode = work.kind == IoKind::kRead ? IOCB_CMD_PREADV : IOCB_CMD_PWRITEV;
  block.aio_fildes = static_cast<uint32_t>(fd());
  block.aio_buf = reinterpret_cast<uintptr_t>(work.left().data());
  block.aio_nbytes = work.left().size();
  block.aio_offset = static_cast<int64_t>(work.offset);
  pending_[n_pending_++] = &block;
}

Status AioFile::Kick() {
  while (n_pending_ > 0) {
    const long n_taken = syscall(SYS_io_submit, context_, static_cast<long>(n_pending_), pending_.data());
    if (n_taken < 0 && errno == EINTR) continue;
    if (n_taken < 0 && errno == ENOSYS) return StatusFromErrno(errno, "aio: requests cannot be submitted");
    if (n_taken < 0 && errno == EAGAIN && n_sent_ > 0) return Status::Ok();  // those that end make room
    const auto n_gone = static_cast<uint32_t>(std::max(n_taken, 1L));
    // A refusal is about the first; taken out before it is answered, since it may be started again.
    const auto first = static_cast<uint32_t>(pending_[0]->aio_data);
    const int64_t refusal = n_taken < 0 ? -errno : (n_taken == 0 ? -EAGAIN : 0);
    n_pending_ -= n_gone;
    std::copy_n(pending_.begin() + n_gone, n_pending_, pending_.begin());
    if (refusal == 0) n_sent_ += n_gone;
    if (refusal != 0) OnAnswer(first, refusal);
  }
  return Status::Ok();
}

Status AioFile::Reap(uint32_t wait_for) {
  KVRUN_RETURN_IF_ERROR(Kick());
  if (n_sent_ == 0) return Status::Ok();
  const long at_least = std::min(wait_for, n_sent_);
  long no_time[2] = {0, 0};  // the system call's timespec: two longs
  const long n_events = syscall(SYS_io_getevents, context_, at_least, static_cast<long>(events_.size()),
                                events_.data(), at_least == 0 ? no_time : nullptr);
  if (n_events < 0 && errno == EINTR) return Status::Ok();
  if (n_events < 0) return StatusFromErrno(errno, "aio: completions cannot be read");
  n_sent_ -= static_cast<uint32_t>(n_events);
  for (long i = 0; i < n_events; ++i) OnAnswer(static_cast<uint32_t>(events_[i].data), events_[i].res);
  return Kick();
}

}  // namespace

Result<std::unique_ptr<QueuedFile>> MakeAioFile(std::shared_ptr<BackingFile> file, uint32_t queue_depth) {
  auto made = std::make_unique<AioFile>(std::move(file), queue_depth);
  KVRUN_RETURN_IF_ERROR(made->Open());
  return std::unique_ptr<QueuedFile>(std::move(made));
}

}  // namespace kvrun
