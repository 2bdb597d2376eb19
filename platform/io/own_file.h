// Files that only this user is to have written: what they must be before they are read or written, and which
// process has one locked.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/types.h>

#include <string>
#include <string_view>
#include <utility>

namespace kvrun {

// To open them, whatever has the name: no link is followed, and a pipe without a writer is not waited for.
inline constexpr int kOwnFileFlags = O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY;

// What it is instead of a regular file of this user: "a pipe", "another user's". Empty where it is one.
std::string_view OtherThanOwnFile(const struct stat& facts);

// Whether flock() answered this errno as the file system cannot lock: then files go without.
bool CannotLock(int error_number);

// Gives a lock of flock() back when it ends. Closing the file is not enough: io_uring may have it for a while
// after that.
class FileLock {
 public:
  FileLock() = default;
  // Of a descriptor that has the lock, and stays open.
  explicit FileLock(int fd) : fd_(fd) {}
  FileLock(FileLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileLock& operator=(FileLock&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~FileLock();

 private:
  int fd_ = -1;
};

// The process that has it locked by flock(); 0: who knows.
pid_t LockHolder(const struct stat& facts);
// The same of a lock that several may share: one of them.
pid_t LockSharer(const struct stat& facts);
// "process 812", or "another process".
std::string ProcessInWords(pid_t process);

// Where the file lies: of "a/b" "a", of "b" ".", of "/b" "/".
std::string FolderOf(const std::string& path);
// So that names that came or went in it are on disk. Answers 0, or an errno.
int SyncFolder(const std::string& folder);

}  // namespace kvrun
