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
#include "platform/io/folder.h"
#include "platform/io/nameless_file.h"
#include "platform/io/queued_file.h"
#include "platform/io/sigsys_guard.h"

namespace kvrun {
namespace {

constexpr uint64_t kThreadStackBytes = 16 * kKiB;

using SharedFile = std::shared_ptr<NamelessFile>;

// Makes the back end's file and tries it.
Result<std::unique_ptr<BlockFile>> MakeAndProbe(Result<std::unique_ptr<QueuedFile>> (*make)(SharedFile,
                                                                                            uint32_t),
                                                const SharedFile& file, uint32_t queue_depth) {
  KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<QueuedFile> made, make(file, queue_depth));
  KVRUN_RETURN_IF_ERROR(made->Probe());
  return std::unique_ptr<BlockFile>(std::move(made));
}

Result<std::unique_ptr<BlockFile>> MakeFile(IoBackend backend, const SharedFile& file, uint32_t queue_depth) {
  switch (backend) {
    case IoBackend::kIoUring: {
      if (!SigsysGuard::Supported()) {
        return Status(
            StatusCode::kUnsupported,
            "kvrun does not try it on this processor, where a filter of system calls could end the process");
      }
      const SigsysGuard guard;
      return MakeAndProbe(MakeIoUringFile, file, queue_depth);
    }
    case IoBackend::kAio: return MakeAndProbe(MakeAioFile, file, queue_depth);
    case IoBackend::kThreads: return MakeAndProbe(MakeThreadPoolFile, file, queue_depth);
  }
  return Status(StatusCode::kInvalidArgument, "there is no such way to read files");
}

Status CheckQueueDepth(uint32_t queue_depth) {
  if (queue_depth != 0 && queue_depth <= kMaxQueueDepth) return Status::Ok();
  return {StatusCode::kInvalidArgument,
          fmt::format("a queue depth of {} was asked for; it can be 1 to {}", queue_depth, kMaxQueueDepth)};
}

Status CannotUse(IoBackend backend, const Status& why) {
  return {why.code(), fmt::format("{} cannot be used: {}", IoBackendName(backend), why.message())};
}

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
  KVRUN_ASSIGN_OR_RETURN(NamelessFile opened, OpenNamelessFile(options));
  const auto file = std::make_shared<NamelessFile>(std::move(opened));
  Status failure;
  for (const IoBackend backend : {IoBackend::kIoUring, IoBackend::kAio, IoBackend::kThreads}) {
    if (!options.auto_backend && backend != options.backend) continue;
    auto made = MakeFile(backend, file, options.queue_depth);
    if (made.ok()) return made;
    failure = CannotUse(backend, made.status());
    file->notes.push_back(failure.message());
  }
  return CannotMake(failure, options);
}

Result<std::vector<std::unique_ptr<BlockFile>>> CreateBlockFileModes(const BlockFileOptions& options) {
  KVRUN_RETURN_IF_ERROR(CheckQueueDepth(options.queue_depth));
  KVRUN_ASSIGN_OR_RETURN(NamelessFile opened, OpenNamelessFile(options));
  std::vector<SharedFile> ways = {std::make_shared<NamelessFile>(std::move(opened))};
  if (ways.front()->direct) {
    Result<NamelessFile> buffered =
        OpenBuffered(*ways.front());  // fails without /proc: direct I/O alone then
    if (buffered.ok()) ways.push_back(std::make_shared<NamelessFile>(std::move(buffered).value()));
  }
  std::vector<std::unique_ptr<BlockFile>> files;
  Status failure;
  for (const SharedFile& file : ways) {
    for (const IoBackend backend : InOrder(options)) {
      auto made = MakeFile(backend, file, options.queue_depth);
      if (made.ok()) {
        files.push_back(std::move(made).value());
        continue;
      }
      failure = CannotUse(backend, made.status());
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
