#include "platform/io/named_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <memory>
#include <string_view>
#include <thread>
#include <utility>

#include "platform/io/back_ends.h"
#include "platform/io/backing_file.h"
#include "platform/io/own_file.h"

namespace kvrun {
namespace {

struct NamedFd {
  UniqueFd fd;
  FileLock lock;
  struct stat facts {};
};

Status NotAKvFile(const std::string& path, std::string_view what) {
  return {StatusCode::kInvalidArgument,
          fmt::format("{} cannot be a KV cache's file: it is {}: name another", path, what)};
}

Status KvFileIsInUse(const std::string& path, pid_t holder) {
  return {StatusCode::kInvalidArgument,
          fmt::format("the KV cache's file {} is in use: {} has it open to write to it: end that, or name "
                      "another file",
                      path, ProcessInWords(holder))};
}

// What has the name says more than that it cannot be opened.
Status CannotOpenKvFile(int error_number, const std::string& path, NamedFileUse use) {
  struct stat facts {};
  if (lstat(path.c_str(), &facts) == 0) {
    const std::string_view other = OtherThanOwnFile(facts);
    if (!other.empty()) return NotAKvFile(path, other);
    if (use == NamedFileUse::kCreate) return NotAKvFile(path, "there already");
  }
  const bool creates = use == NamedFileUse::kCreate;
  const Status status = StatusFromErrno(
      error_number, fmt::format("cannot {} the KV cache's file {}", creates ? "make" : "open", path));
  return {status.code(), status.message() + ": check the folder and who may use it, or name another file"};
}

// Of a process that was killed, io_uring may have it until its last requests have ended: for milliseconds, or
// a second where the disk is busy.
int LockSoon(int fd) {
  constexpr int kMostTries = 300;
  for (int i = 0; flock(fd, LOCK_EX | LOCK_NB) != 0; ++i) {
    if (errno == EINTR) continue;
    if (errno != EWOULDBLOCK || i >= kMostTries) return errno;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return 0;
}

Status LockKvFile(const std::string& path, NamedFd* file) {
  const int error = LockSoon(file->fd.get());
  if (error == EWOULDBLOCK) return KvFileIsInUse(path, LockHolder(file->facts));
  if (error != 0 && !CannotLock(error)) return CannotOpenKvFile(error, path, NamedFileUse::kWrite);
  if (error == 0) file->lock = FileLock(file->fd.get());
  // It has the name still: else another process has replaced it in between.
  struct stat named {};
  const bool is_named = lstat(path.c_str(), &named) == 0 && named.st_dev == file->facts.st_dev &&
                        named.st_ino == file->facts.st_ino;
  return is_named ? Status::Ok() : KvFileIsInUse(path, 0);
}

Result<NamedFd> OpenNamed(const std::string& path, NamedFileUse use) {
  const bool reads = use == NamedFileUse::kRead;
  const bool creates = use == NamedFileUse::kCreate;
  const int flags = (reads ? O_RDONLY : O_RDWR) | (creates ? O_CREAT | O_EXCL : 0) | kOwnFileFlags;
  NamedFd file;
  do {
    file.fd = UniqueFd(open(path.c_str(), flags, 0600));
  } while (!file.fd.valid() && errno == EINTR);
  if (!file.fd.valid()) return CannotOpenKvFile(errno, path, use);
  if (fstat(file.fd.get(), &file.facts) != 0) return CannotOpenKvFile(errno, path, use);
  const std::string_view other = OtherThanOwnFile(file.facts);
  if (!other.empty()) {
    // Some file systems say that whatever is made is another's: it could not be opened again.
    if (creates) unlink(path.c_str());
    return NotAKvFile(path, other);
  }
  // That was for what is no file: io_uring would take it at its word.
  const int status_flags = fcntl(file.fd.get(), F_GETFL);
  if (status_flags < 0 || fcntl(file.fd.get(), F_SETFL, status_flags & ~O_NONBLOCK) != 0) {
    return CannotOpenKvFile(errno, path, use);
  }
  if (!reads) KVRUN_RETURN_IF_ERROR(LockKvFile(path, &file));
  return file;
}

// A nameless file beside it, by which to learn what works there.
Result<std::unique_ptr<BlockFile>> TryFolder(const std::string& path, const BlockFileOptions& options) {
  BlockFileOptions tried = options;
  tried.folder = FolderOf(path);
  struct stat facts {};
  if (stat(tried.folder.c_str(), &facts) != 0) {
    const Status status =
        StatusFromErrno(errno, fmt::format("cannot use the folder of the KV cache's file {}", path));
    return Status(status.code(), status.message() + ": make it, or name a file in another");
  }
  tried.only_tries = tried.makes_parents = false;
  return CreateBlockFile(tried);
}

Status SetUpAs(const IoMode& mode, const BlockFileOptions& options, BackingFile* file) {
  file->notes = mode.notes;
  if (!mode.direct) return Status::Ok();
  const int flags = fcntl(file->fd.get(), F_GETFL);
  file->direct = flags >= 0 && fcntl(file->fd.get(), F_SETFL, flags | O_DIRECT) == 0;
  if (file->direct) {
    file->alignment_bytes = mode.alignment_bytes;
    return Status::Ok();
  }
  const Status failure = CannotInFolder(errno, file->folder, "use direct I/O in");
  if (options.direct == DirectIo::kOn) return failure;
  file->notes.push_back(failure.message());
  return Status::Ok();
}

Result<std::unique_ptr<BlockFile>> OpenByReading(BackingFile file, const BlockFileOptions& options) {
  KVRUN_RETURN_IF_ERROR(SetUpDirect(options, DirectTrial::kRead, &file));
  return MakeBestFile(options, std::make_shared<BackingFile>(std::move(file)), BackendTrial::kRead);
}

// `tried`: what works in its folder.
Result<std::unique_ptr<BlockFile>> OpenAs(const IoMode& tried, BackingFile file,
                                          const BlockFileOptions& options) {
  KVRUN_RETURN_IF_ERROR(SetUpAs(tried, options, &file));
  return MakeBackendFile(tried.backend, std::make_shared<BackingFile>(std::move(file)), options.queue_depth,
                         BackendTrial::kNone);
}

// Not where another file system's file is mounted, say.
bool IsOnFolder(const std::string& folder, const struct stat& file) {
  struct stat facts {};
  return stat(folder.c_str(), &facts) == 0 && facts.st_dev == file.st_dev;
}

BackingFile BackingOf(const std::string& path, NamedFileUse use, NamedFd opened) {
  BackingFile file;
  file.fd = std::move(opened.fd);
  file.lock = std::move(opened.lock);
  file.folder = FolderOf(path);
  file.is_read_only = use == NamedFileUse::kRead;
  return file;
}

Result<std::unique_ptr<BlockFile>> CreateNamed(const std::string& path, const BlockFileOptions& options) {
  KVRUN_ASSIGN_OR_RETURN(const std::unique_ptr<BlockFile> tried, TryFolder(path, options));
  KVRUN_ASSIGN_OR_RETURN(NamedFd opened, OpenNamed(path, NamedFileUse::kCreate));
  auto made = OpenAs(tried->mode(), BackingOf(path, NamedFileUse::kCreate, std::move(opened)), options);
  const int error = made.ok() ? SyncFolder(FolderOf(path)) : 0;
  if (error != 0) made = CannotOpenKvFile(error, path, NamedFileUse::kCreate);
  if (!made.ok()) unlink(path.c_str());
  return made;
}

}  // namespace

Result<std::unique_ptr<BlockFile>> OpenNamedBlockFile(const std::string& path, NamedFileUse use,
                                                      const BlockFileOptions& options) {
  KVRUN_RETURN_IF_ERROR(CheckQueueDepth(options.queue_depth));
  if (path.empty() || path.back() == '/') return NotAKvFile(path, "no name of a file");
  if (use == NamedFileUse::kCreate) return CreateNamed(path, options);
  KVRUN_ASSIGN_OR_RETURN(NamedFd opened, OpenNamed(path, use));
  const bool is_tried_in_folder = use == NamedFileUse::kWrite && IsOnFolder(FolderOf(path), opened.facts);
  BackingFile file = BackingOf(path, use, std::move(opened));
  if (!is_tried_in_folder) return OpenByReading(std::move(file), options);
  KVRUN_ASSIGN_OR_RETURN(const std::unique_ptr<BlockFile> tried, TryFolder(path, options));
  return OpenAs(tried->mode(), std::move(file), options);
}

}  // namespace kvrun
