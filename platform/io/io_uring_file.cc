// io_uring, through liburing: one call of the system for a batch. Requests of one segment in registered
// memory spare the system the mapping of their pages.
#include "platform/io/queued_file.h"

#ifdef KVRUN_WITHOUT_IO_URING

namespace kvrun {

Result<std::unique_ptr<QueuedFile>> MakeIoUringFile(std::shared_ptr<BackingFile>, uint32_t) {
  return Status(StatusCode::kUnsupported, "this kvrun was built without it");
}

}  // namespace kvrun

#else

#include <fmt/format.h>
#include <liburing.h>
#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "platform/base/check.h"
#include "platform/base/units.h"

namespace kvrun {
namespace {

constexpr uint64_t kMaxRegionBytes = kGiB;    // of one registered buffer, by the kernel
constexpr size_t kMaxRegions = 1024;          // of one ring, by older kernels
constexpr uint64_t kMaxTransferBytes = kGiB;  // the kernel's own limit is just below 2 GiB
constexpr uint32_t kMaxAttempts = 1000;       // while the kernel has no room for requests

uintptr_t Begin(const iovec& region) { return reinterpret_cast<uintptr_t>(region.iov_base); }

class IoUringFile final : public QueuedFile {
 public:
  IoUringFile(std::shared_ptr<BackingFile> file, uint32_t queue_depth)
      : QueuedFile(std::move(file), IoBackend::kIoUring, queue_depth) {}

  ~IoUringFile() override {
    Drain();
    if (ready_) io_uring_queue_exit(&ring_);
  }

  Status Open() {
    const int error = io_uring_queue_init(mode().queue_depth, &ring_, 0);
    if (error != 0) return StatusFromErrno(-error, "setup");
    ready_ = true;
    const int descriptor = fd();
    fixed_file_ = io_uring_register_files(&ring_, &descriptor, 1) == 0;
    return Status::Ok();
  }

  void RegisterMemory(std::span<const iovec> regions) override;

 protected:
  void Start(uint32_t index) override;
  Status Kick() override { return Enter(0); }
  Status Reap(uint32_t wait_for) override;

 private:
  Status Enter(uint32_t wait_for);
  uint32_t TakeAnswers();
  // The registered region that holds the segment, or -1.
  int RegionOf(const iovec& segment) const;

  io_uring ring_{};
  bool ready_ = false;
  bool fixed_file_ = false;
  std::vector<iovec> regions_;  // by address
};

void IoUringFile::RegisterMemory(std::span<const iovec> regions) {
  // Where registering the file was refused, a filter may trap this call too, and nothing guards it here.
  if (!fixed_file_) {
    AddNote("io_uring: files and memory cannot be registered");
    return;
  }
  std::vector<iovec> all = regions_;
  for (const iovec& region : regions) {
    for (uint64_t begin = 0; begin < region.iov_len; begin += kMaxRegionBytes) {
      all.push_back({static_cast<char*>(region.iov_base) + begin,
                     static_cast<size_t>(std::min<uint64_t>(kMaxRegionBytes, region.iov_len - begin))});
    }
  }
  std::sort(all.begin(), all.end(), [](const iovec& a, const iovec& b) { return Begin(a) < Begin(b); });
  if (all.size() == regions_.size()) return;
  if (all.size() > kMaxRegions) {
    AddNote(fmt::format("io_uring: {} pieces of memory are too many to be registered", all.size()));
    return;
  }
  if (!regions_.empty()) io_uring_unregister_buffers(&ring_);
  const int error = io_uring_register_buffers(&ring_, all.data(), static_cast<unsigned>(all.size()));
  if (error == 0) {
    regions_ = std::move(all);
    return;
  }
  AddNote(
      StatusFromErrno(-error, "io_uring: memory cannot be registered (a limit is `ulimit -l`)").message());
  if (!regions_.empty() &&
      io_uring_register_buffers(&ring_, regions_.data(), static_cast<unsigned>(regions_.size())) != 0) {
    regions_.clear();
  }
}

int IoUringFile::RegionOf(const iovec& segment) const {
  const uintptr_t begin = Begin(segment);
  const auto after =
      std::upper_bound(regions_.begin(), regions_.end(), begin,
                       [](uintptr_t value, const iovec& region) { return value < Begin(region); });
  if (after == regions_.begin()) return -1;
  const iovec& region = *std::prev(after);
  if (begin - Begin(region) + segment.iov_len > region.iov_len) return -1;
  return static_cast<int>(std::prev(after) - regions_.begin());
}

void IoUringFile::Start(uint32_t index) {
  io_uring_sqe* const sqe = io_uring_get_sqe(&ring_);
  KVRUN_CHECK(sqe != nullptr);  // there are as many entries as transfers
  const Transfer& work = transfer(index);
  const std::span<const iovec> left = work.left();
  const bool reads = work.kind == IoKind::kRead;
  const int file = fixed_file_ ? 0 : fd();
  if (left.size() == 1) {
    const auto bytes = static_cast<unsigned>(std::min<uint64_t>(left[0].iov_len, kMaxTransferBytes));
    const int region = RegionOf(left[0]);
    void* const memory = left[0].iov_base;
    if (region >= 0 && reads) io_uring_prep_read_fixed(sqe, file, memory, bytes, work.offset, region);
    if (region >= 0 && !reads) io_uring_prep_write_fixed(sqe, file, memory, bytes, work.offset, region);
    if (region < 0 && reads) io_uring_prep_read(sqe, file, memory, bytes, work.offset);
    if (region < 0 && !reads) io_uring_prep_write(sqe, file, memory, bytes, work.offset);
  } else {
    const auto count = static_cast<unsigned>(left.size());
    if (reads) io_uring_prep_readv(sqe, file, left.data(), count, work.offset);
    if (!reads) io_uring_prep_writev(sqe, file, left.data(), count, work.offset);
  }
  if (fixed_file_) io_uring_sqe_set_flags(sqe, IOSQE_FIXED_FILE);
  io_uring_sqe_set_data64(sqe, index);
}

Status IoUringFile::Enter(uint32_t wait_for) {
  for (uint32_t attempt = 0;;) {
    int answer = 0;
    if (wait_for > 0) answer = io_uring_submit_and_wait(&ring_, wait_for);
    if (wait_for == 0 && io_uring_sq_ready(&ring_) > 0) answer = io_uring_submit(&ring_);
    if (answer >= 0) return Status::Ok();
    if (answer == -EINTR) continue;
    if ((answer != -EAGAIN && answer != -EBUSY) || ++attempt > kMaxAttempts) {
      return StatusFromErrno(-answer, "io_uring: the queue cannot be served");
    }
    // The kernel has no room. What is not sent stays in the queue; answers make room.
    if (wait_for == 0 || io_uring_cq_ready(&ring_) > 0) return Status::Ok();
    sched_yield();
  }
}

Status IoUringFile::Reap(uint32_t wait_for) {
  if (TakeAnswers() == 0) {
    KVRUN_RETURN_IF_ERROR(Enter(wait_for));
    TakeAnswers();
  }
  return Enter(0);  // what a short transfer has left
}

uint32_t IoUringFile::TakeAnswers() {
  uint32_t n_taken = 0;
  io_uring_cqe* cqe = nullptr;
  while (io_uring_peek_cqe(&ring_, &cqe) == 0 && cqe != nullptr) {
    const auto index = static_cast<uint32_t>(io_uring_cqe_get_data64(cqe));
    const int64_t answer = cqe->res;
    io_uring_cqe_seen(&ring_, cqe);
    ++n_taken;
    OnAnswer(index, answer);
  }
  return n_taken;
}

}  // namespace

Result<std::unique_ptr<QueuedFile>> MakeIoUringFile(std::shared_ptr<BackingFile> file, uint32_t queue_depth) {
  auto made = std::make_unique<IoUringFile>(std::move(file), queue_depth);
  KVRUN_RETURN_IF_ERROR(made->Open());
  return std::unique_ptr<QueuedFile>(std::move(made));
}

}  // namespace kvrun

#endif
