#include "platform/io/back_ends.h"

#include <fmt/format.h>

#include <utility>

#include "platform/io/queued_file.h"
#include "platform/io/sigsys_guard.h"

namespace kvrun {
namespace {

using MakeQueued = Result<std::unique_ptr<QueuedFile>> (*)(std::shared_ptr<BackingFile>, uint32_t);

// Makes the back end's file and tries it.
Result<std::unique_ptr<BlockFile>> MakeAndTry(MakeQueued make, const std::shared_ptr<BackingFile>& file,
                                              uint32_t queue_depth, BackendTrial trial) {
  KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<QueuedFile> made, make(file, queue_depth));
  if (trial == BackendTrial::kWriteAndRead) KVRUN_RETURN_IF_ERROR(made->Probe());
  if (trial == BackendTrial::kRead) KVRUN_RETURN_IF_ERROR(made->ProbeRead());
  return std::unique_ptr<BlockFile>(std::move(made));
}

}  // namespace

Status CheckQueueDepth(uint32_t queue_depth) {
  if (queue_depth != 0 && queue_depth <= kMaxQueueDepth) return Status::Ok();
  return {StatusCode::kInvalidArgument,
          fmt::format("a queue depth of {} was asked for; it can be 1 to {}", queue_depth, kMaxQueueDepth)};
}

Status CannotUseBackend(IoBackend backend, const Status& why) {
  return {why.code(), fmt::format("{} cannot be used: {}", IoBackendName(backend), why.message())};
}

Result<std::unique_ptr<BlockFile>> MakeBackendFile(IoBackend backend,
                                                   const std::shared_ptr<BackingFile>& file,
                                                   uint32_t queue_depth, BackendTrial trial) {
  switch (backend) {
    case IoBackend::kIoUring: {
      if (!SigsysGuard::Supported()) {
        return Status(
            StatusCode::kUnsupported,
            "kvrun does not try it on this processor, where a filter of system calls could end the process");
      }
      const SigsysGuard guard;
      return MakeAndTry(MakeIoUringFile, file, queue_depth, trial);
    }
    case IoBackend::kAio: return MakeAndTry(MakeAioFile, file, queue_depth, trial);
    case IoBackend::kThreads: return MakeAndTry(MakeThreadPoolFile, file, queue_depth, trial);
  }
  return Status(StatusCode::kInvalidArgument, "there is no such way to read files");
}

Result<std::unique_ptr<BlockFile>> MakeBestFile(const BlockFileOptions& options,
                                                const std::shared_ptr<BackingFile>& file,
                                                BackendTrial trial) {
  Status failure;
  for (const IoBackend backend : {IoBackend::kIoUring, IoBackend::kAio, IoBackend::kThreads}) {
    if (!options.auto_backend && backend != options.backend) continue;
    auto made = MakeBackendFile(backend, file, options.queue_depth, trial);
    if (made.ok()) return made;
    failure = CannotUseBackend(backend, made.status());
    file->notes.push_back(failure.message());
  }
  return failure;
}

}  // namespace kvrun
