// A BlockFile that has a name, and outlives the process.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "platform/base/status.h"
#include "platform/io/block_file.h"

namespace kvrun {

enum class NamedFileUse : uint8_t {
  kCreate,  // for this user only (0600); nothing has the name yet
  kWrite,   // it is there
  kRead,    // the same; writes are complete with EBADF, and others may have it
};

// Of a folder that is there; the options' `folder` and what follows from it do not count. One process at a
// time has it to create or to write it, which keeps others from that by a lock, where the file system has
// any. A file that was made has its name on the disk.
//
// What the file holds is not changed to learn how it can be used: to create and to write, that is tried with
// a nameless file in the same folder, as CreateBlockFile does; to read, with a read.
//
// kInvalidArgument: what has the name is no file of this user's own (a link, a pipe, another's), is there
// already, or another process has it. kNotFound: it is not there.
Result<std::unique_ptr<BlockFile>> OpenNamedBlockFile(const std::string& path, NamedFileUse use,
                                                      const BlockFileOptions& options);

}  // namespace kvrun
