#include "runtime/store/state_file_io.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <random>
#include <string_view>

namespace kvrun {
namespace {

// Of one call; Linux moves no more than 2 GiB.
constexpr size_t kMostCallBytes = size_t{1} << 30;

template <typename Call>
auto Uninterrupted(const Call& call) {
  auto answer = call();
  while (answer < 0 && errno == EINTR) answer = call();
  return answer;
}

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

Status NotAStateFile(const std::string& path, std::string_view what) {
  return {StatusCode::kInvalidArgument,
          fmt::format("{} cannot be a session's file: it is {}: name another", path, what)};
}

Status CheckFacts(const std::string& path, const struct stat& facts) {
  if (S_ISLNK(facts.st_mode)) return NotAStateFile(path, "a symbolic link");
  if (S_ISDIR(facts.st_mode)) return NotAStateFile(path, "a folder");
  if (S_ISFIFO(facts.st_mode)) return NotAStateFile(path, "a pipe");
  if (!S_ISREG(facts.st_mode)) return NotAStateFile(path, "a device or a socket");
  if (facts.st_uid != geteuid()) return NotAStateFile(path, "another user's");
  return Status::Ok();
}

std::string FolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

}  // namespace

int StateFileIo::Open(const char* path, int flags, mode_t mode) { return ::open(path, flags, mode); }
int StateFileIo::Close(int fd) { return ::close(fd); }
int StateFileIo::Stat(int fd, struct stat* facts) { return ::fstat(fd, facts); }
int StateFileIo::StatName(const char* path, struct stat* facts) { return ::lstat(path, facts); }
ssize_t StateFileIo::ReadAt(int fd, void* to, size_t n_bytes, off_t offset_bytes) {
  return ::pread(fd, to, n_bytes, offset_bytes);
}
ssize_t StateFileIo::WriteAt(int fd, const void* from, size_t n_bytes, off_t offset_bytes) {
  return ::pwrite(fd, from, n_bytes, offset_bytes);
}
int StateFileIo::Truncate(int fd, off_t size_bytes) { return ::ftruncate(fd, size_bytes); }
int StateFileIo::SyncData(int fd) { return ::fdatasync(fd); }
int StateFileIo::Sync(int fd) { return ::fsync(fd); }
int StateFileIo::Rename(const char* from, const char* to) { return std::rename(from, to); }
int StateFileIo::Remove(const char* path) { return ::unlink(path); }
uint64_t StateFileIo::NewFileId() {
  std::random_device random;
  return uint64_t{random()} << 32 | random();
}

StateFileIo& SystemStateFileIo() {
  static StateFileIo system;
  return system;
}

std::string StateFileBeside(const std::string& path) { return path + ".kvrun-new"; }

Result<StateHandle> StateHandle::Open(StateFileIo& io, const std::string& path, Access access) {
  // A pipe without a writer would block open() before it can be refused.
  const int flags =
      (access == Access::kRead ? O_RDONLY : O_RDWR) | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
  StateHandle file(io, path, Uninterrupted([&] { return io.Open(path.c_str(), flags, 0); }));
  if (!file.valid()) {
    const int error_number = errno;
    // What it is says more than that it cannot be opened.
    KVRUN_RETURN_IF_ERROR(CheckStateFileName(io, path));
    if (error_number != ENOENT) return CannotReadState(error_number, path);
    return Status(StatusCode::kNotFound,
                  fmt::format("there is no session's file {}: name one that was saved", path));
  }
  struct stat facts {};
  if (Uninterrupted([&] { return io.Stat(file.fd_, &facts); }) != 0) return CannotReadState(errno, path);
  KVRUN_RETURN_IF_ERROR(CheckFacts(path, facts));
  return file;
}

Result<StateHandle> StateHandle::MakeBeside(StateFileIo& io, const std::string& path) {
  const std::string beside = StateFileBeside(path);
  const int flags = O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
  const auto make = [&] { return io.Open(beside.c_str(), flags, 0600); };
  int fd = Uninterrupted(make);
  if (fd < 0 && errno == EEXIST && Uninterrupted([&] { return io.Remove(beside.c_str()); }) == 0)
    fd = Uninterrupted(make);
  if (fd < 0) return CannotSaveState(errno, path);
  return StateHandle(io, path, fd);
}

Result<StateHandle> StateHandle::OpenFolder(StateFileIo& io, const std::string& path) {
  const std::string folder = FolderOf(path);
  const int fd =
      Uninterrupted([&] { return io.Open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0); });
  if (fd < 0) {
    const Status status =
        StatusFromErrno(errno, fmt::format("cannot open the folder of the session's file {}", path));
    return Status(status.code(), status.message() + ": make it, or name a file in another");
  }
  return StateHandle(io, path, fd);
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

Status StateHandle::SyncFolder() {
  if (Uninterrupted([&] { return io_->Sync(fd_); }) == 0) return Status::Ok();
  return errno == EINVAL || errno == EOPNOTSUPP ? Status::Ok() : CannotSaveState(errno, path_);
}

Result<uint64_t> StateHandle::SizeBytes() const {
  struct stat facts {};
  if (Uninterrupted([&] { return io_->Stat(fd_, &facts); }) != 0) return CannotReadState(errno, path_);
  return static_cast<uint64_t>(facts.st_size);
}

bool StateHandle::HasItsName() const {
  struct stat named {};
  struct stat own {};
  return Uninterrupted([&] { return io_->StatName(path_.c_str(), &named); }) == 0 &&
         Uninterrupted([&] { return io_->Stat(fd_, &own); }) == 0 && named.st_dev == own.st_dev &&
         named.st_ino == own.st_ino;
}

Status CheckStateFileName(StateFileIo& io, const std::string& path) {
  if (path.empty() || path.back() == '/') return NotAStateFile(path, "no name of a file");
  struct stat facts {};
  // Whatever else is wrong is said when it is opened or written.
  if (Uninterrupted([&] { return io.StatName(path.c_str(), &facts); }) != 0) return Status::Ok();
  return CheckFacts(path, facts);
}

Status RenameStateFile(StateFileIo& io, const std::string& path) {
  const std::string beside = StateFileBeside(path);
  if (Uninterrupted([&] { return io.Rename(beside.c_str(), path.c_str()); }) == 0) return Status::Ok();
  return CannotSaveState(errno, path);
}

void RemoveStateFileBeside(StateFileIo& io, const std::string& path) {
  const std::string beside = StateFileBeside(path);
  (void)Uninterrupted([&] { return io.Remove(beside.c_str()); });
}

}  // namespace kvrun
