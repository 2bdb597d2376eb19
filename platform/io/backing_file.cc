#include "platform/io/backing_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <system_error>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>

#include "platform/base/units.h"

namespace kvrun {
namespace {

constexpr uint32_t kUsualAlignmentBytes = 4096;
constexpr uint32_t kMaxAlignmentBytes = 64 * 1024;

// What the system says that direct I/O needs; 0: none can be had; nothing where it does not say.
std::optional<uint32_t> ToldAlignment([[maybe_unused]] int fd) {
#ifdef STATX_DIOALIGN
  struct statx info {};
  if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &info) != 0) return std::nullopt;
  if ((info.stx_mask & STATX_DIOALIGN) == 0) return std::nullopt;
  return std::max(info.stx_dio_mem_align, info.stx_dio_offset_align);
#else
  return std::nullopt;
#endif
}

using AlignedBlocks = std::unique_ptr<void, decltype(&free)>;

// Begins at a multiple of twice the alignment; null where there is no memory.
AlignedBlocks AllocateBlocks(uint32_t alignment_bytes, size_t n) {
  void* memory = nullptr;
  if (posix_memalign(&memory, size_t{2} * alignment_bytes, n * alignment_bytes) != 0) memory = nullptr;
  return {memory, &free};
}

// Writes a block and reads it again with preadv and pwritev. Answers an errno, or 0; EBADMSG where other
// bytes came back.
int TryBlock(int fd, uint32_t alignment_bytes) {
  // Memory and offset are multiples of the alignment, but not of twice as much.
  const AlignedBlocks memory = AllocateBlocks(alignment_bytes, 4);
  if (memory == nullptr) return ENOMEM;
  char* const written = static_cast<char*>(memory.get()) + alignment_bytes;
  char* const read = written + size_t{2} * alignment_bytes;
  std::memset(written, 0x5a, alignment_bytes);
  std::memset(read, 0, alignment_bytes);
  for (const bool writes : {true, false}) {
    const iovec segment{writes ? written : read, alignment_bytes};
    ssize_t bytes = -1;
    do {
      bytes = writes ? pwritev(fd, &segment, 1, alignment_bytes) : preadv(fd, &segment, 1, alignment_bytes);
    } while (bytes < 0 && errno == EINTR);
    if (bytes < 0) return errno;
    if (bytes != static_cast<ssize_t>(alignment_bytes)) return EIO;
  }
  return std::memcmp(written, read, alignment_bytes) == 0 ? 0 : EBADMSG;
}

// Reads the first block, or what there is of it. Answers an errno, or 0.
int TryRead(int fd, uint32_t alignment_bytes) {
  const AlignedBlocks memory = AllocateBlocks(alignment_bytes, 2);
  if (memory == nullptr) return ENOMEM;
  const iovec segment{static_cast<char*>(memory.get()) + alignment_bytes, alignment_bytes};
  ssize_t bytes = -1;
  do {
    bytes = preadv(fd, &segment, 1, 0);
  } while (bytes < 0 && errno == EINTR);
  return bytes < 0 ? errno : 0;
}

// The alignment with which direct I/O works, after it was really done; else an errno.
struct DirectProbe {
  uint32_t alignment_bytes = 0;
  int error_number = 0;
};

DirectProbe ProbeDirect(int fd, DirectTrial trial) {
  const std::optional<uint32_t> told = ToldAlignment(fd);
  if (told == 0U) return {0, EOPNOTSUPP};
  const int flags = fcntl(fd, F_GETFL);
  if (flags < 0 || fcntl(fd, F_SETFL, flags | O_DIRECT) != 0) return {0, errno};
  const uint32_t usual = std::max(kUsualAlignmentBytes, static_cast<uint32_t>(sysconf(_SC_PAGESIZE)));
  int error = EINVAL;
  for (const uint32_t alignment : {told.value_or(usual), usual}) {
    if (alignment > kMaxAlignmentBytes || (alignment & (alignment - 1)) != 0) continue;
    error = trial == DirectTrial::kRead ? TryRead(fd, alignment) : TryBlock(fd, alignment);
    if (error == 0) return {alignment, 0};
    if (error != EINVAL) break;  // nothing that another alignment would better
  }
  fcntl(fd, F_SETFL, flags);
  return {0, error};
}

uint64_t FreeBytes(int fd) {
  struct statvfs info {};
  if (fstatvfs(fd, &info) != 0) return UINT64_MAX;
  return static_cast<uint64_t>(info.f_bavail) * info.f_frsize;
}

Status NoSpace(const BackingFile& file, uint64_t needed_bytes) {
  return {StatusCode::kIo,
          fmt::format("the KV cache needs {} of space in {}, where {} are free: make room, ask for a shorter "
                      "context (--ctx), or name another folder with --kv-dir",
                      FormatBytes(needed_bytes), file.folder, FormatBytes(FreeBytes(file.fd.get())))};
}

}  // namespace

Status CannotInFolder(int error_number, const std::string& folder, std::string_view what) {
  return {StatusCode::kIo, fmt::format("cannot {} {}: {}; name another folder for the KV cache with --kv-dir",
                                       what, folder, std::generic_category().message(error_number))};
}

bool IsInMemory(int fd) {
  struct statfs info {};
  if (fstatfs(fd, &info) != 0) return false;
  const auto type = static_cast<uint32_t>(info.f_type);
  return type == TMPFS_MAGIC || type == RAMFS_MAGIC;
}

Status SetUpDirect(const BlockFileOptions& options, DirectTrial trial, BackingFile* file) {
  if (options.direct == DirectIo::kOff) return Status::Ok();
  // tmpfs takes O_DIRECT without doing it.
  const int fd = file->fd.get();
  const DirectProbe probe = IsInMemory(fd) ? DirectProbe{0, EOPNOTSUPP} : ProbeDirect(fd, trial);
  file->direct = probe.alignment_bytes != 0;
  if (file->direct) {
    file->alignment_bytes = probe.alignment_bytes;
    return Status::Ok();
  }
  if (probe.error_number == ENOSPC || probe.error_number == EDQUOT) {
    return NoSpace(*file, kUsualAlignmentBytes);
  }
  if (options.direct == DirectIo::kOn) {
    return CannotInFolder(probe.error_number, file->folder, "use direct I/O in");
  }
  file->notes.push_back(fmt::format("direct I/O cannot be used in {}: {}", file->folder,
                                    std::generic_category().message(probe.error_number)));
  return Status::Ok();
}

Result<std::string> ReserveFile(const BackingFile& file, uint64_t size_bytes) {
  struct stat info {};
  if (fstat(file.fd.get(), &info) != 0)
    return CannotInFolder(errno, file.folder, "get the size of a file in");
  const auto old_bytes = static_cast<uint64_t>(info.st_size);
  const uint64_t held_bytes = static_cast<uint64_t>(info.st_blocks) * 512;  // st_blocks' unit, everywhere
  if (size_bytes == 0) return std::string();
  // Asked first: fallocate on a disk that is too small would fill it up before it fails.
  const uint64_t missing_bytes = size_bytes > held_bytes ? size_bytes - held_bytes : 0;
  if (missing_bytes > FreeBytes(file.fd.get())) return NoSpace(file, missing_bytes);
  const auto size = static_cast<off_t>(size_bytes);
  int error = 0;
  do {
    error = fallocate(file.fd.get(), 0, 0, size) == 0 ? 0 : errno;
  } while (error == EINTR);
  if (error == 0) return std::string();
  if (error == ENOSPC || error == EDQUOT) {
    if (ftruncate(file.fd.get(), static_cast<off_t>(old_bytes)) != 0) error = errno;
    return NoSpace(file, missing_bytes);
  }
  if (error != EOPNOTSUPP && error != ENOSYS) {
    return CannotInFolder(error, file.folder, fmt::format("reserve {} in", FormatBytes(size_bytes)));
  }
  if (size_bytes > old_bytes && ftruncate(file.fd.get(), size) != 0) {
    return CannotInFolder(errno, file.folder, fmt::format("make a file of {} in", FormatBytes(size_bytes)));
  }
  return fmt::format("space in {} cannot be reserved: a full disk would show only while generating",
                     file.folder);
}

}  // namespace kvrun
