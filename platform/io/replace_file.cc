// Not grouped (cmake/KvrunCompile.cmake): its names are others', too.
#include "platform/io/replace_file.h"

#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <optional>
#include <random>
#include <utility>

namespace kvrun {
namespace {

constexpr int kNames = 100;  // tried before it is given up

// Of a file that a person named: by that name, not by the temporary one.
Status CannotWrite(int error_number, const std::string& path) {
  Status status = StatusFromErrno(error_number, "cannot write " + path);
  if (error_number != ENOSPC && error_number != EDQUOT && error_number != EFBIG) return status;
  return {status.code(), status.message() + ": free space there or name another file"};
}

// The answer is 0 or an errno value.
int WriteAll(int fd, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return written < 0 ? errno : EIO;
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
  return 0;
}

// Closes and renames what was written, or removes it.
Status Finish(Status status, int fd, const std::string& temporary, const std::string& path) {
  if (close(fd) != 0 && status.ok()) status = CannotWrite(errno, path);
  if (status.ok() && std::rename(temporary.c_str(), path.c_str()) != 0) {
    status = StatusFromErrno(errno, "cannot rename " + temporary + " to " + path);
  }
  if (!status.ok()) unlink(temporary.c_str());
  return status;
}

// What takes the place of `path`: the file that it leads to, and the mode that it has.
struct Target {
  std::string path;
  std::optional<mode_t> mode;  // none: there is no file yet
};

// A link is kept, and what is no file (/dev/null, a folder) is not replaced.
Result<Target> TargetOf(const std::string& path) {
  struct stat facts = {};
  if (stat(path.c_str(), &facts) != 0) return Target{path, std::nullopt};
  if (!S_ISREG(facts.st_mode)) {
    return Status(StatusCode::kInvalidArgument,
                  "cannot write " + path + ": it is there and not a file: name another");
  }
  char resolved[PATH_MAX];
  const bool is_resolved = realpath(path.c_str(), resolved) != nullptr;
  return Target{is_resolved ? std::string(resolved) : path, facts.st_mode & 07777};
}

struct TemporaryFile {
  std::string path;
  int fd;
};

// Not mkstemp, whose files are private: the kernel knows the umask, which no thread can ask for without
// changing it for all of them.
Result<TemporaryFile> CreateBeside(const Target& target, const std::string& path) {
  static constexpr char kDigits[] = "0123456789abcdefghijklmnopqrstuvwxyz";
  std::random_device random;
  for (int attempt = 0; attempt < kNames; ++attempt) {
    TemporaryFile file{target.path + ".", -1};
    for (int i = 0; i < 6; ++i) file.path += kDigits[random() % (sizeof kDigits - 1)];
    file.fd = open(file.path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, target.mode ? 0600 : 0666);
    if (file.fd < 0 && errno == EEXIST) continue;
    if (file.fd < 0) return CannotWrite(errno, path);
    // A file system without modes has none to keep.
    if (target.mode) (void)fchmod(file.fd, *target.mode);
    return file;
  }
  return StatusFromErrno(EEXIST, "cannot write " + path);
}

}  // namespace

Status ReplaceFile(const std::string& path, std::span<const std::byte> bytes) {
  std::string temporary = path + ".XXXXXX";
  const int fd = mkstemp(temporary.data());  // mode 0600
  if (fd < 0) return StatusFromErrno(errno, "cannot create " + temporary);
  const int error_number = WriteAll(fd, bytes);
  Status status = error_number == 0 ? Status::Ok() : StatusFromErrno(error_number, "cannot write " + path);
  return Finish(std::move(status), fd, temporary, path);
}

Status ReplaceResultFile(const std::string& path, std::span<const std::span<const std::byte>> parts) {
  KVRUN_ASSIGN_OR_RETURN(const Target target, TargetOf(path));
  KVRUN_ASSIGN_OR_RETURN(const TemporaryFile file, CreateBeside(target, path));
  Status status = Status::Ok();
  for (const std::span<const std::byte> part : parts) {
    if (!status.ok()) break;
    if (const int error_number = WriteAll(file.fd, part); error_number != 0)
      status = CannotWrite(error_number, path);
  }
  if (status.ok() && fsync(file.fd) != 0) status = CannotWrite(errno, path);
  return Finish(std::move(status), file.fd, file.path, target.path);
}

Status CheckResultFile(const std::string& path) {
  KVRUN_ASSIGN_OR_RETURN(const Target target, TargetOf(path));
  KVRUN_ASSIGN_OR_RETURN(const TemporaryFile file, CreateBeside(target, path));
  close(file.fd);
  unlink(file.path.c_str());
  return Status::Ok();
}

}  // namespace kvrun
