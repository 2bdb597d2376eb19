// A file, written so that a reader sees the old one or the whole new one.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "platform/base/status.h"

namespace kvrun {

// Under another name beside it first, then renamed; mode 0600. What a power cut leaves may be empty or cut:
// for files whose reader checks them.
Status ReplaceFile(const std::string& path, std::span<const std::byte> bytes);

// The same for a file that a person asked for, which may be large, so it comes in parts: synced; a new file
// gets the mode that the umask leaves, another keeps its own; a link stays a link, and what is there and is
// no file is refused.
Status ReplaceResultFile(const std::string& path, std::span<const std::span<const std::byte>> parts);
// Whether it can be written, to be asked before a long computation; leaves nothing behind.
Status CheckResultFile(const std::string& path);

}  // namespace kvrun
