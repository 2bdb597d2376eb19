// Which back end a file gets.
#pragma once

#include <cstdint>
#include <memory>

#include "platform/base/status.h"
#include "platform/io/backing_file.h"
#include "platform/io/block_file.h"

namespace kvrun {

Status CheckQueueDepth(uint32_t queue_depth);

// "aio cannot be used: ...".
Status CannotUseBackend(IoBackend backend, const Status& why);

// What a back end has to do before it is used: a block that is written and read again, and leaves no trace in
// a file that was empty; or one that is read, where the file has one.
enum class BackendTrial : uint8_t { kNone, kRead, kWriteAndRead };

Result<std::unique_ptr<BlockFile>> MakeBackendFile(IoBackend backend,
                                                   const std::shared_ptr<BackingFile>& file,
                                                   uint32_t queue_depth, BackendTrial trial);

// The options' back end, or the best that works; the file's notes say why none before it does.
Result<std::unique_ptr<BlockFile>> MakeBestFile(const BlockFileOptions& options,
                                                const std::shared_ptr<BackingFile>& file, BackendTrial trial);

}  // namespace kvrun
