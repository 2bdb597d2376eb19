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

// The same for a file that a person asked for, which may be large, so it comes in parts: synced, mode 0644,
// and a link to it stays a link.
Status ReplaceResultFile(const std::string& path, std::span<const std::span<const std::byte>> parts);

}  // namespace kvrun
