#include "platform/io/replace_file.h"

#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

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

}  // namespace

Status ReplaceFile(const std::string& path, std::span<const std::byte> bytes) {
  std::string temporary = path + ".XXXXXX";
  const int fd = mkstemp(temporary.data());  // mode 0600
  if (fd < 0) return StatusFromErrno(errno, "cannot create " + temporary);
  Status status = WriteAll(fd, bytes, temporary);
  if (close(fd) != 0 && status.ok()) status = StatusFromErrno(errno, "cannot write " + temporary);
  if (status.ok() && std::rename(temporary.c_str(), path.c_str()) != 0) {
    status = StatusFromErrno(errno, "cannot rename " + temporary);
  }
  if (!status.ok()) unlink(temporary.c_str());
  return status;
}

}  // namespace kvrun
