#include "runtime/store/write_meter.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <span>
#include <thread>
#include <utility>

#include "platform/io/folder.h"
#include "platform/io/own_file.h"
#include "platform/io/replace_file.h"
#include "platform/io/unique_fd.h"
#include "platform/io/wrapping_file.h"

namespace kvrun {
namespace {

constexpr size_t kMostTallyBytes = 4096;

// Held for as long as a small file is read and written; a file system that cannot lock goes without.
Result<UniqueFd> LockTallyFolder(const std::string& folder) {
  constexpr int kMostTries = 200;
  UniqueFd fd(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) return StatusFromErrno(errno, "cannot open the folder " + folder);
  for (int i = 0; flock(fd.get(), LOCK_EX | LOCK_NB) != 0; ++i) {
    const int error_number = errno;
    if (CannotLock(error_number)) break;
    if (error_number != EWOULDBLOCK && error_number != EINTR)
      return StatusFromErrno(error_number, "cannot lock the folder " + folder);
    if (i == kMostTries) return Status(StatusCode::kIo, fmt::format("the folder {} stays locked", folder));
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return fd;
}

class MeteredFile final : public WrappingFile {
 public:
  MeteredFile(std::unique_ptr<BlockFile> file, std::shared_ptr<WriteMeter> meter)
      : WrappingFile(std::move(file)), meter_(std::move(meter)) {}

  Result<size_t> Submit(std::span<const IoRequest> requests) override {
    const Result<size_t> n_taken = file_->Submit(requests);
    uint64_t bytes = 0;
    for (size_t i = 0; n_taken.ok() && i < *n_taken; ++i) {
      if (requests[i].kind != IoKind::kWrite) continue;
      for (const iovec& segment : requests[i].segments) bytes += segment.iov_len;
    }
    meter_->Add(bytes);
    return n_taken;
  }

 private:
  std::shared_ptr<WriteMeter> meter_;
};

}  // namespace

Result<WrittenDays> ReadWritten(const std::string& path) {
  const UniqueFd file(open(path.c_str(), O_RDONLY | kOwnFileFlags));
  if (!file.valid() && errno == ENOENT) return WrittenDays();
  if (!file.valid()) return StatusFromErrno(errno, "cannot read " + path);
  std::array<char, kMostTallyBytes + 1> text{};
  size_t n = 0;
  while (n < text.size()) {
    const ssize_t n_read = read(file.get(), text.data() + n, text.size() - n);
    if (n_read < 0 && errno == EINTR) continue;
    if (n_read < 0) return StatusFromErrno(errno, "cannot read " + path);
    if (n_read == 0) break;
    n += static_cast<size_t>(n_read);
  }
  Result<WrittenDays> written = WrittenDays::Read({text.data(), n});
  if (written.ok()) return written;
  return Status(written.status().code(), fmt::format("{} does not say how much was written: {}: remove it",
                                                     path, written.status().message()));
}

Status AddWritten(const std::string& path, uint32_t day, uint64_t bytes) {
  const std::string folder = FolderOf(path);
  KVRUN_RETURN_IF_ERROR(MakeFolder(folder, MissingParents::kAreMade));
  KVRUN_RETURN_IF_ERROR(CheckOwnFolder(folder));
  KVRUN_ASSIGN_OR_RETURN(const UniqueFd lock, LockTallyFolder(folder));
  Result<WrittenDays> written = ReadWritten(path);
  if (written.status().code() == StatusCode::kCorrupt) written = WrittenDays();
  KVRUN_RETURN_IF_ERROR(written.status());
  written->Add(day, bytes);
  const std::string text = written->Text();
  return ReplaceFile(path, std::as_bytes(std::span(text)));
}

Status WriteMeter::Flush() {
  const std::lock_guard lock(mutex_);
  const uint64_t bytes = bytes_ - flushed_;
  if (bytes == 0 || path_.empty()) return Status::Ok();
  KVRUN_RETURN_IF_ERROR(AddWritten(path_, Today(), bytes));
  flushed_ += bytes;
  return Status::Ok();
}

std::unique_ptr<BlockFile> Metered(std::unique_ptr<BlockFile> file, std::shared_ptr<WriteMeter> meter) {
  if (meter == nullptr) return file;
  return std::make_unique<MeteredFile>(std::move(file), std::move(meter));
}

}  // namespace kvrun
