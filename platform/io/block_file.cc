#include "platform/io/block_file.h"

#include <fmt/format.h>
#include <linux/aio_abi.h>

#include <bit>
#include <utility>

#include "platform/base/units.h"
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
        return Status(StatusCode::kUnsupported,
                      "not tried on this processor, as a filter could end the process");
      }
      const SigsysGuard guard;
      return MakeAndProbe(MakeIoUringFile, file, queue_depth);
    }
    case IoBackend::kAio: return MakeAndProbe(MakeAioFile, file, queue_depth);
    case IoBackend::kThreads: return MakeAndProbe(MakeThreadPoolFile, file, queue_depth);
  }
  return Status(StatusCode::kInvalidArgument, "no such back end");
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
  if (options.queue_depth == 0 || options.queue_depth > kMaxQueueDepth) {
    return Status(StatusCode::kInvalidArgument, fmt::format("a queue depth of {}: 1 to {} are possible",
                                                            options.queue_depth, kMaxQueueDepth));
  }
  KVRUN_ASSIGN_OR_RETURN(NamelessFile opened, OpenNamelessFile(options));
  const auto file = std::make_shared<NamelessFile>(std::move(opened));
  Status failure;
  for (const IoBackend backend : {IoBackend::kIoUring, IoBackend::kAio, IoBackend::kThreads}) {
    if (!options.auto_backend && backend != options.backend) continue;
    auto made = MakeFile(backend, file, options.queue_depth);
    if (made.ok()) return made;
    const Status& status = made.status();
    failure = {status.code(), fmt::format("{} cannot be used: {}", IoBackendName(backend), status.message())};
    file->notes.push_back(failure.message());
  }
  return failure.WithContext("file for the KV cache in " + options.folder);
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
