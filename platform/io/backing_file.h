// What the back ends of a BlockFile read and write: a file that is open, and how it is to be used.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "platform/base/status.h"
#include "platform/io/block_file.h"
#include "platform/io/own_file.h"
#include "platform/io/unique_fd.h"

namespace kvrun {

struct BackingFile {
  UniqueFd fd;
  FileLock lock;  // none of a nameless one, or one that is read; before the descriptor goes
  std::string folder;
  bool is_read_only = false;  // writes are complete with EBADF
  bool direct = false;
  uint32_t alignment_bytes = 1;
  std::vector<std::string> notes;
};

// "cannot make a file in /kv: ...; name another folder".
Status CannotInFolder(int error_number, const std::string& folder, std::string_view what);

bool IsInMemory(int fd);  // of tmpfs and the like

// By what direct I/O is tried: a block that is written, which leaves the file longer, and read again; or one
// that is read, if there is one.
enum class DirectTrial : uint8_t { kWriteAndRead, kRead };
// Sets direct I/O and its alignment as the options' `direct` says, once it was done; else there is a note,
// or, with kOn, an error.
Status SetUpDirect(const BlockFileOptions& options, DirectTrial trial, BackingFile* file);

// As BlockFile::Reserve. Answers a note if the space could not be reserved for want of a file system that
// can.
Result<std::string> ReserveFile(const BackingFile& file, uint64_t size_bytes);

}  // namespace kvrun
