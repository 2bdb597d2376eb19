#include "platform/io/block_file.h"

#include <fmt/format.h>
#include <linux/aio_abi.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <utility>

#include "platform/base/units.h"
#include "platform/io/back_ends.h"
#include "platform/io/folder.h"
#include "platform/io/nameless_file.h"
#include "platform/io/queued_file.h"

namespace kvrun {
namespace {

constexpr uint64_t kThreadStackBytes = 16 * kKiB;

// From the best on, or the one that was asked for and then the others.
std::array<IoBackend, 3> InOrder(const BlockFileOptions& options) {
  std::array<IoBackend, 3> order = {IoBackend::kIoUring, IoBackend::kAio, IoBackend::kThreads};
  if (!options.auto_backend)
    std::rotate(order.begin(), std::find(order.begin(), order.end(), options.backend), order.end());
  return order;
}

Status CannotMake(const Status& failure, const BlockFileOptions& options) {
  return {failure.code(), "cannot make a file for the KV cache in " + options.folder + ": " +
                              failure.message() + " (--kv-dir names another folder)"};
}

}  // namespace

std::string_view IoBackendName(IoBackend backend) {
  switch (backend) {
    case IoBackend::kIoUring: return "io_uring";
    case IoBackend::kAio: return "aio";
    case IoBackend::kThreads: return "threads";
  }
  return "unknown";
}

Result<std::unique_ptr<BlockFile>> CreateBlockFile(const BlockFileOptions& options) {
  KVRUN_RETURN_IF_ERROR(CheckQueueDepth(options.queue_depth));
  KVRUN_ASSIGN_OR_RETURN(BackingFile opened, OpenNamelessFile(options));
  auto made =
      MakeBestFile(options, std::make_shared<BackingFile>(std::move(opened)), BackendTrial::kWriteAndRead);
  if (made.ok()) return made;
  return CannotMake(made.status(), options);
}

Result<std::vector<std::unique_ptr<BlockFile>>> CreateBlockFileModes(const BlockFileOptions& options) {
  KVRUN_RETURN_IF_ERROR(CheckQueueDepth(options.queue_depth));
  KVRUN_ASSIGN_OR_RETURN(BackingFile opened, OpenNamelessFile(options));
  std::vector<std::shared_ptr<BackingFile>> ways = {std::make_shared<BackingFile>(std::move(opened))};
  if (ways.front()->direct) {
    Result<BackingFile> buffered = OpenBuffered(*ways.front());  // fails without /proc: direct I/O alone then
    if (buffered.ok()) ways.push_back(std::make_shared<BackingFile>(std::move(buffered).value()));
  }
  std::vector<std::unique_ptr<BlockFile>> files;
  Status failure;
  for (const std::shared_ptr<BackingFile>& file : ways) {
    for (const IoBackend backend : InOrder(options)) {
      auto made = MakeBackendFile(backend, file, options.queue_depth, BackendTrial::kWriteAndRead);
      if (made.ok()) {
        files.push_back(std::move(made).value());
        continue;
      }
      failure = CannotUseBackend(backend, made.status());
      if (!options.auto_backend && files.empty()) break;
      file->notes.push_back(failure.message());
    }
    if (files.empty()) return CannotMake(failure, options);
  }
  return files;
}

Result<uint64_t> FreeSpaceBytes(const std::string& folder) {
  KVRUN_ASSIGN_OR_RETURN(const std::string place, NearestFolder(folder, MissingParents::kAreMade));
  struct statvfs info {};
  if (statvfs(place.c_str(), &info) != 0) {
    return StatusFromErrno(errno, "cannot find out how much space is free in " + place);
  }
  return static_cast<uint64_t>(info.f_bavail) * info.f_frsize;
}

uint64_t BlockFileMemoryBytes(const IoMode& mode) {
  const uint64_t depth = mode.queue_depth;
  const uint64_t tables_bytes = depth * (sizeof(Transfer) + sizeof(IoCompletion) + sizeof(uint32_t));
  switch (mode.backend) {
    // Rings of a power of two: 64 bytes for a request, 4 for its index, 16 for each of twice as many answers.
    case IoBackend::kIoUring: return tables_bytes + std::bit_ceil(depth) * (64 + 4 + 2 * 16);
    // And the kernel's ring of answers.
    case IoBackend::kAio: return tables_bytes + depth * (sizeof(iocb) + sizeof(iocb*) + 2 * sizeof(io_event));
    case IoBackend::kThreads:
      return tables_bytes + depth * (2 * sizeof(uint32_t) + 16) +
             ThreadPoolSize(mode.queue_depth) * kThreadStackBytes;
  }
  return tables_bytes;
}

}  // namespace kvrun
