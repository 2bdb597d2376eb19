#include "platform/io/replace_file.h"

#include <limits.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <utility>

namespace kvrun {
namespace {

Status WriteAll(int fd, std::span<const std::byte> bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t written = write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return StatusFromErrno(written < 0 ? errno : EIO, "cannot write " + path);
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
  return Status::Ok();
}

// Closes and renames what was written, or removes it.
Status Finish(Status status, int fd, const std::string& temporary, const std::string& path) {
  if (close(fd) != 0 && status.ok()) status = StatusFromErrno(errno, "cannot write " + temporary);
  if (status.ok() && std::rename(temporary.c_str(), path.c_str()) != 0) {
    status = StatusFromErrno(errno, "cannot rename " + temporary);
  }
  if (!status.ok()) unlink(temporary.c_str());
  return status;
}

std::string BehindLinks(const std::string& path) {
  char resolved[PATH_MAX];
  return realpath(path.c_str(), resolved) == nullptr ? path : std::string(resolved);
}

}  // namespace

Status ReplaceFile(const std::string& path, std::span<const std::byte> bytes) {
  std::string temporary = path + ".XXXXXX";
  const int fd = mkstemp(temporary.data());  // mode 0600
  if (fd < 0) return StatusFromErrno(errno, "cannot create " + temporary);
  return Finish(WriteAll(fd, bytes, temporary), fd, temporary, path);
}

Status ReplaceResultFile(const std::string& path, std::span<const std::span<const std::byte>> parts) {
  const std::string target = BehindLinks(path);
  std::string temporary = target + ".XXXXXX";
  const int fd = mkstemp(temporary.data());
  if (fd < 0) return StatusFromErrno(errno, "cannot create " + temporary);
  Status status = Status::Ok();
  for (const std::span<const std::byte> part : parts) {
    if (status.ok()) status = WriteAll(fd, part, temporary);
  }
  if (status.ok() && fchmod(fd, 0644) != 0)
    status = StatusFromErrno(errno, "cannot set the mode of " + temporary);
  if (status.ok() && fsync(fd) != 0) status = StatusFromErrno(errno, "cannot write " + temporary);
  return Finish(std::move(status), fd, temporary, target);
}

}  // namespace kvrun
