#include "platform/io/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <utility>

namespace kvrun {

Result<MappedFile> MappedFile::Open(const std::string& path) {
  // A pipe without a writer would block open() before it can be refused.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return StatusFromErrno(errno, "cannot open " + path);
  struct stat info {};
  if (fstat(fd, &info) != 0) {
    const int error = errno;
    close(fd);
    return StatusFromErrno(error, "cannot read the size of " + path);
  }
  if (!S_ISREG(info.st_mode)) {
    close(fd);
    return Status(StatusCode::kInvalidArgument, path + " is not a regular file");
  }
  MappedFile file;
  file.size_bytes_ = static_cast<size_t>(info.st_size);
  if (file.size_bytes_ > 0) {
    void* data = mmap(nullptr, file.size_bytes_, PROT_READ, MAP_PRIVATE, fd, 0);
    if (data == MAP_FAILED) {
      const int error = errno;
      file.size_bytes_ = 0;
      close(fd);
      return StatusFromErrno(error, "cannot map " + path + " into memory");
    }
    file.data_ = static_cast<const std::byte*>(data);
  }
  close(fd);
  return file;
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_bytes_(std::exchange(other.size_bytes_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_bytes_, other.size_bytes_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(const_cast<std::byte*>(data_), size_bytes_);
}

void MappedFile::DropResidentPages(std::span<const std::byte> part) const {
  const auto page_bytes = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t begin =
      (reinterpret_cast<uintptr_t>(part.data()) + page_bytes - 1) / page_bytes * page_bytes;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(part.data()) + part.size()) / page_bytes * page_bytes;
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

}  // namespace kvrun
