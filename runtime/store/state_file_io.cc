#include "runtime/store/state_file_io.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <random>

#include "platform/io/own_file.h"

namespace kvrun {
namespace {

// Of one call; Linux moves no more than 2 GiB.
constexpr size_t kMostCallBytes = size_t{1} << 30;

}  // namespace

Status CannotReadState(int error_number, const std::string& path) {
  const Status status = StatusFromErrno(error_number, "cannot read the session's file " + path);
  return {status.code(), status.message() + ": check the disk that it is on, and who may read and write it"};
}

Status CannotSaveState(int error_number, const std::string& path) {
  const Status status = StatusFromErrno(error_number, "cannot save the session to " + path);
  const bool is_full = error_number == ENOSPC || error_number == EDQUOT || error_number == EFBIG;
  const char* remedy = is_full ? ": free space there or name another file; what was saved before is kept"
                               : ": check the disk and the folder that it is on, or name another file; what "
                                 "was saved before is kept";
  return {status.code(), status.message() + remedy};
}

int StateFileIo::Open(int folder, const char* name, int flags, mode_t mode) {
  return ::openat(folder, name, flags, mode);
}
int StateFileIo::Close(int fd) { return ::close(fd); }
int StateFileIo::Stat(int fd, struct stat* facts) { return ::fstat(fd, facts); }
int StateFileIo::StatName(int folder, const char* name, struct stat* facts) {
  return ::fstatat(folder, name, facts, AT_SYMLINK_NOFOLLOW);
}
ssize_t StateFileIo::ReadAt(int fd, void* to, size_t n_bytes, off_t offset_bytes) {
  return ::pread(fd, to, n_bytes, offset_bytes);
}
ssize_t StateFileIo::WriteAt(int fd, const void* from, size_t n_bytes, off_t offset_bytes) {
  return ::pwrite(fd, from, n_bytes, offset_bytes);
}
int StateFileIo::Truncate(int fd, off_t size_bytes) { return ::ftruncate(fd, size_bytes); }
int StateFileIo::SyncData(int fd) { return ::fdatasync(fd); }
int StateFileIo::Sync(int fd) { return ::fsync(fd); }
int StateFileIo::Rename(int folder, const char* from, const char* to) {
  return ::renameat(folder, from, folder, to);
}
int StateFileIo::Remove(int folder, const char* name) { return ::unlinkat(folder, name, 0); }
int StateFileIo::Lock(int fd) { return ::flock(fd, LOCK_EX | LOCK_NB); }
int StateFileIo::LockShared(int fd) { return ::flock(fd, LOCK_SH | LOCK_NB); }
pid_t StateFileIo::LockSharer(const struct stat& facts) { return kvrun::LockSharer(facts); }
pid_t StateFileIo::LockHolder(const struct stat& facts) { return kvrun::LockHolder(facts); }
uint64_t StateFileIo::NewFileId() {
  std::random_device random;
  return uint64_t{random()} << 32 | random();
}

StateFileIo& SystemStateFileIo() {
  static StateFileIo system;
  return system;
}

StateHandle& StateHandle::operator=(StateHandle&& other) noexcept {
  std::swap(io_, other.io_);
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  std::swap(read_bytes_, other.read_bytes_);
  std::swap(written_bytes_, other.written_bytes_);
  return *this;
}

StateHandle::~StateHandle() {
  if (valid()) io_->Close(fd_);
}

Status StateHandle::Read(uint64_t offset_bytes, std::span<std::byte> to) const {
  while (!to.empty()) {
    const ssize_t n_read =
        io_->ReadAt(fd_, to.data(), std::min(to.size(), kMostCallBytes), static_cast<off_t>(offset_bytes));
    if (n_read < 0 && errno == EINTR) continue;
    if (n_read < 0) return CannotReadState(errno, path_);
    if (n_read == 0) {
      return {StatusCode::kCorrupt,
              fmt::format("the session's file {} was cut to {} bytes or less: the session has to be computed "
                          "again, or its file copied again",
                          path_, offset_bytes)};
    }
    to = to.subspan(static_cast<size_t>(n_read));
    offset_bytes += static_cast<uint64_t>(n_read);
    read_bytes_ += static_cast<uint64_t>(n_read);
  }
  return Status::Ok();
}

Status StateHandle::Write(uint64_t offset_bytes, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n_written = io_->WriteAt(fd_, bytes.data(), std::min(bytes.size(), kMostCallBytes),
                                           static_cast<off_t>(offset_bytes));
    if (n_written < 0 && errno == EINTR) continue;
    if (n_written <= 0) return CannotSaveState(n_written < 0 ? errno : EIO, path_);
    bytes = bytes.subspan(static_cast<size_t>(n_written));
    offset_bytes += static_cast<uint64_t>(n_written);
    written_bytes_ += static_cast<uint64_t>(n_written);
  }
  return Status::Ok();
}

Status StateHandle::Truncate(uint64_t size_bytes) {
  const auto size = static_cast<off_t>(size_bytes);
  if (Uninterrupted([&] { return io_->Truncate(fd_, size); }) == 0) return Status::Ok();
  return CannotSaveState(errno, path_);
}

Status StateHandle::SyncData() {
  if (Uninterrupted([&] { return io_->SyncData(fd_); }) == 0) return Status::Ok();
  return CannotSaveState(errno, path_);
}

Status StateHandle::Sync() {
  if (Uninterrupted([&] { return io_->Sync(fd_); }) == 0) return Status::Ok();
  return CannotSaveState(errno, path_);
}

Result<uint64_t> StateHandle::SizeBytes() const {
  struct stat facts {};
  if (Uninterrupted([&] { return io_->Stat(fd_, &facts); }) != 0) return CannotReadState(errno, path_);
  return static_cast<uint64_t>(facts.st_size);
}

}  // namespace kvrun
