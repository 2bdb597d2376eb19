// What a state file asks of the system: one call each, so that tests can let any of them fail, or lose what
// was not synced. And an open file over it, which does what was asked whole, and says what could not be done.
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

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

  virtual int Open(const char* path, int flags, mode_t mode);
  virtual int Close(int fd);
  virtual int Stat(int fd, struct stat* facts);
  virtual int StatName(const char* path, struct stat* facts);  // of a link itself
  virtual ssize_t ReadAt(int fd, void* to, size_t n_bytes, off_t offset_bytes);
  virtual ssize_t WriteAt(int fd, const void* from, size_t n_bytes, off_t offset_bytes);
  virtual int Truncate(int fd, off_t size_bytes);
  virtual int SyncData(int fd);
  virtual int Sync(int fd);  // also of a folder: the names in it
  virtual int Rename(const char* from, const char* to);
  virtual int Remove(const char* path);
  // Another for each file.
  virtual uint64_t NewFileId();
};

StateFileIo& SystemStateFileIo();

// What a whole new file is called before it takes the name.
std::string StateFileBeside(const std::string& path);

// Move-only. A call that was interrupted is made again, and a short one gone on with.
class StateHandle {
 public:
  enum class Access : uint8_t { kRead, kReadAndWrite };

  // kInvalidArgument where it is no regular file of this user.
  static Result<StateHandle> Open(StateFileIo& io, const std::string& path, Access access);
  // The empty file beside `path`, in place of one that is there already. What it says is of `path`.
  static Result<StateHandle> MakeBeside(StateFileIo& io, const std::string& path);
  // That of `path`.
  static Result<StateHandle> OpenFolder(StateFileIo& io, const std::string& path);

  StateHandle() = default;
  StateHandle(StateHandle&& other) noexcept { *this = std::move(other); }
  StateHandle& operator=(StateHandle&& other) noexcept;
  ~StateHandle();

  bool valid() const { return fd_ >= 0; }
  const std::string& path() const { return path_; }
  uint64_t read_bytes() const { return read_bytes_; }
  uint64_t written_bytes() const { return written_bytes_; }

  // kCorrupt where the file ends before.
  Status Read(uint64_t offset_bytes, std::span<std::byte> to) const;
  Status Write(uint64_t offset_bytes, std::span<const std::byte> bytes);
  Status Truncate(uint64_t size_bytes);
  Status SyncData();
  Status Sync();
  // File systems that cannot sync a folder do not need it.
  Status SyncFolder();
  Result<uint64_t> SizeBytes() const;
  // Whether `path` is this file's name, and nobody has removed it or put another there.
  bool HasItsName() const;

 private:
  StateHandle(StateFileIo& io, std::string path, int fd) : io_(&io), path_(std::move(path)), fd_(fd) {}

  StateFileIo* io_ = nullptr;
  std::string path_;
  int fd_ = -1;
  mutable uint64_t read_bytes_ = 0;
  uint64_t written_bytes_ = 0;
};

// Ok: it is a regular file of this user, or there is nothing yet.
Status CheckStateFileName(StateFileIo& io, const std::string& path);
// The file beside takes the name.
Status RenameStateFile(StateFileIo& io, const std::string& path);
// What a save that was killed may have left. Nothing where there is none, or it cannot be removed.
void RemoveStateFileBeside(StateFileIo& io, const std::string& path);

}  // namespace kvrun
