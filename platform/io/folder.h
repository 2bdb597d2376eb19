// Folders for what kvrun writes: made where they are missing, for this user only (0700).
#pragma once

#include <optional>
#include <string>

#include "platform/base/status.h"

namespace kvrun {

// The folder that is missing may be made; the one above it must be there, or may be made too.
enum class MissingParents : bool { kAreErrors, kAreMade };

// The folder itself, or the nearest above it that is there: where MakeFolder would begin. Makes nothing, and
// is an error where MakeFolder would find a parent missing or something that is no folder in its way.
Result<std::string> NearestFolder(const std::string& folder, MissingParents parents);

Status MakeFolder(const std::string& folder, MissingParents parents);

// Where kvrun keeps what saves time at the next start: $XDG_CACHE_HOME/kvrun, else $HOME/.cache/kvrun;
// nothing if neither is set to an absolute path. It need not be there.
std::optional<std::string> CacheFolder();

}  // namespace kvrun
