// A file without a name: made, probed for direct I/O, and given its size.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "platform/base/status.h"
#include "platform/io/block_file.h"
#include "platform/io/unique_fd.h"

namespace kvrun {

struct NamelessFile {
  UniqueFd fd;
  std::string folder;
  bool direct = false;
  uint32_t alignment_bytes = 1;
  std::vector<std::string> notes;
};

// Uses what the options say of the folder, and `direct`. Messages say to name another folder (--kv-dir).
Result<NamelessFile> OpenNamelessFile(const BlockFileOptions& options);

// The same file past its first user's direct I/O: through the page cache.
Result<NamelessFile> OpenBuffered(const NamelessFile& file);

// As BlockFile::Reserve. Answers a note if the space could not be reserved for want of a file system that
// can.
Result<std::string> ReserveFile(const NamelessFile& file, uint64_t size_bytes);

// Writes a block and reads it again with preadv and pwritev. Answers an errno, or 0; EBADMSG where other
// bytes came back. Leaves the file longer.
int TryBlock(int fd, uint32_t alignment_bytes);

}  // namespace kvrun
