#include "platform/io/input_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace kvrun {
namespace {

// Of one call; Linux reads no more than 2 GiB.
constexpr size_t kMostBytes = size_t{1} << 30;

Status Cut(const std::string& path, uint64_t size_bytes, uint64_t was_bytes) {
  return {StatusCode::kCorrupt,
          fmt::format("{}: it was cut to {} bytes while it was being read, and had {} when it was opened: "
                      "leave it alone while kvrun reads it, and copy or download it again",
                      path, size_bytes, was_bytes)};
}

Status Unreadable(const std::string& path, uint64_t offset_bytes, int error_number) {
  return {StatusCode::kIo,
          fmt::format("cannot read {} at byte {}: {}: check the disk that it is on, or copy it to another",
                      path, offset_bytes, std::generic_category().message(error_number))};
}

}  // namespace

Result<InputFile> InputFile::Open(const std::string& path) {
  InputFile file;
  file.path_ = path;
  // A pipe without a writer would block open() before it can be refused.
  file.fd_ = UniqueFd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!file.fd_.valid()) return StatusFromErrno(errno, "cannot open " + path);
  struct stat facts {};
  if (fstat(file.fd_.get(), &facts) != 0) return StatusFromErrno(errno, "cannot read the size of " + path);
  if (!S_ISREG(facts.st_mode)) {
    const char* what = S_ISDIR(facts.st_mode) ? "a folder" : S_ISFIFO(facts.st_mode) ? "a pipe" : "a device";
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("{} is not a regular file but {}: name a file", path, what));
  }
  file.size_bytes_ = static_cast<uint64_t>(facts.st_size);
  file.changed_s_ = facts.st_mtim.tv_sec;
  file.changed_ns_ = facts.st_mtim.tv_nsec;
  return file;
}

Status InputFile::Read(uint64_t offset_bytes, std::span<std::byte> to) const {
  while (!to.empty()) {
    const ssize_t n_read =
        pread(fd_.get(), to.data(), std::min(to.size(), kMostBytes), static_cast<off_t>(offset_bytes));
    if (n_read < 0 && errno == EINTR) continue;
    if (n_read < 0) return Unreadable(path_, offset_bytes, errno);
    if (n_read == 0) {
      struct stat facts {};
      const bool is_known = fstat(fd_.get(), &facts) == 0 && facts.st_size >= 0;
      return Cut(path_, is_known ? static_cast<uint64_t>(facts.st_size) : offset_bytes, size_bytes_);
    }
    to = to.subspan(static_cast<size_t>(n_read));
    offset_bytes += static_cast<uint64_t>(n_read);
  }
  return Status::Ok();
}

void InputFile::WillNeed(uint64_t offset_bytes, uint64_t size_bytes) const {
  if (offset_bytes >= size_bytes_) return;
  size_bytes = std::min(size_bytes, size_bytes_ - offset_bytes);
  posix_fadvise(fd_.get(), static_cast<off_t>(offset_bytes), static_cast<off_t>(size_bytes),
                POSIX_FADV_WILLNEED);
}

Result<std::vector<std::byte>> InputFile::ReadAll() const {
  std::vector<std::byte> bytes(size_bytes_);
  KVRUN_RETURN_IF_ERROR(Read(0, bytes));
  return bytes;
}

Status InputFile::CheckUnchanged() const {
  struct stat facts {};
  if (fstat(fd_.get(), &facts) != 0) return StatusFromErrno(errno, "cannot read the size of " + path_);
  if (static_cast<uint64_t>(facts.st_size) < size_bytes_) {
    return Cut(path_, static_cast<uint64_t>(facts.st_size), size_bytes_);
  }
  // A file without a name has no other writer, and over a network its time may settle late.
  if (facts.st_nlink == 0) return Status::Ok();
  if (static_cast<uint64_t>(facts.st_size) == size_bytes_ && facts.st_mtim.tv_sec == changed_s_ &&
      facts.st_mtim.tv_nsec == changed_ns_) {
    return Status::Ok();
  }
  return {StatusCode::kCorrupt,
          fmt::format("{}: it was written to after it was opened, and what was read may be of two versions: "
                      "leave it alone while kvrun reads it, and start again",
                      path_)};
}

bool InputFile::HasName(const std::string& path) const {
  struct stat named {};
  struct stat own {};
  return fd_.valid() && stat(path.c_str(), &named) == 0 && fstat(fd_.get(), &own) == 0 &&
         named.st_dev == own.st_dev && named.st_ino == own.st_ino;
}

}  // namespace kvrun
