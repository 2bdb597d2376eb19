// Folders for what kvrun writes: made where they are missing, for this user only (0700).
#pragma once

#include <string>

#include "platform/base/status.h"

namespace kvrun {

// The folder that is missing may be made; the one above it must be there, or may be made too.
enum class MissingParents : bool { kAreErrors, kAreMade };

// The folder itself, or the nearest above it that is there: where MakeFolder would begin. Makes nothing, and
// is an error where MakeFolder would find a parent missing or something that is no folder in its way.
Result<std::string> NearestFolder(const std::string& folder, MissingParents parents);

Status MakeFolder(const std::string& folder, MissingParents parents);

}  // namespace kvrun
