// A file without a name: made, probed for direct I/O, and given its size.
#pragma once

#include "platform/base/status.h"
#include "platform/io/backing_file.h"
#include "platform/io/block_file.h"

namespace kvrun {

// Uses what the options say of the folder, and `direct`. Messages say to name another folder (--kv-dir).
Result<BackingFile> OpenNamelessFile(const BlockFileOptions& options);

// The same file past its first user's direct I/O: through the page cache.
Result<BackingFile> OpenBuffered(const BackingFile& file);

}  // namespace kvrun
