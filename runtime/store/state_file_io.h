// What a state file asks of the system: one call each, so that tests can let any of them fail, or lose what
// was not synced. And an open file over it, which does what was asked whole, and says what could not be done.
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "platform/base/status.h"

namespace kvrun {

// As the system's calls of these names: -1 and errno where they fail.
class StateFileIo {
 public:
  virtual ~StateFileIo() = default;

  // Names are of a folder that is open, or of AT_FDCWD.
  virtual int Open(int folder, const char* name, int flags, mode_t mode);
  virtual int Close(int fd);
  virtual int Stat(int fd, struct stat* facts);
  virtual int StatName(int folder, const char* name, struct stat* facts);  // of a link itself
  virtual ssize_t ReadAt(int fd, void* to, size_t n_bytes, off_t offset_bytes);
  virtual ssize_t WriteAt(int fd, const void* from, size_t n_bytes, off_t offset_bytes);
  virtual int Truncate(int fd, off_t size_bytes);
  virtual int SyncData(int fd);
  virtual int Sync(int fd);  // also of a folder: the names in it
  virtual int Rename(int folder, const char* from, const char* to);
  virtual int Remove(int folder, const char* name);
  // flock(): EWOULDBLOCK where another has it. It ends with the file's last descriptor.
  virtual int Lock(int fd);
  virtual int LockShared(int fd);  // with others that do
  // The process that has it locked; 0: who knows.
  virtual pid_t LockHolder(const struct stat& facts);
  virtual pid_t LockSharer(const struct stat& facts);  // one of those
  // Another for each file.
  virtual uint64_t NewFileId();
};

StateFileIo& SystemStateFileIo();

// A call that was interrupted is made again.
template <typename Call>
auto Uninterrupted(const Call& call) {
  auto answer = call();
  while (answer < 0 && errno == EINTR) answer = call();
  return answer;
}

// What a read, or a save, of the session's file `path` says where the system refused a part of it.
Status CannotReadState(int error_number, const std::string& path);
Status CannotSaveState(int error_number, const std::string& path);

// Move-only. A call that was interrupted is made again, and a short one gone on with.
class StateHandle {
 public:
  StateHandle() = default;
  // `path`: for messages.
  StateHandle(StateFileIo& io, std::string path, int fd) : io_(&io), path_(std::move(path)), fd_(fd) {}
  StateHandle(StateHandle&& other) noexcept { *this = std::move(other); }
  StateHandle& operator=(StateHandle&& other) noexcept;
  ~StateHandle();

  bool valid() const { return fd_ >= 0; }
  int fd() const { return fd_; }
  const std::string& path() const { return path_; }
  uint64_t read_bytes() const { return read_bytes_; }
  uint64_t written_bytes() const { return written_bytes_; }

  // kCorrupt where the file ends before.
  Status Read(uint64_t offset_bytes, std::span<std::byte> to) const;
  Status Write(uint64_t offset_bytes, std::span<const std::byte> bytes);
  Status Truncate(uint64_t size_bytes);
  Status SyncData();
  Status Sync();
  Result<uint64_t> SizeBytes() const;

 private:
  StateFileIo* io_ = nullptr;
  std::string path_;
  int fd_ = -1;
  mutable uint64_t read_bytes_ = 0;
  uint64_t written_bytes_ = 0;
};

}  // namespace kvrun
