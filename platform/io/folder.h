// Folders for what kvrun writes: made where they are missing, for this user only (0700).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "platform/base/status.h"

namespace kvrun {

// The folder that is missing may be made; the one above it must be there, or may be made too.
enum class MissingParents : bool { kAreErrors, kAreMade };

// The folder itself, or the nearest above it that is there: where MakeFolder would begin. Makes nothing, and
// is an error where MakeFolder would find a parent missing or something that is no folder in its way.
Result<std::string> NearestFolder(const std::string& folder, MissingParents parents);

Status MakeFolder(const std::string& folder, MissingParents parents);

// The folder where users without a home may have folders of their own.
inline constexpr const char* kSharedFolder = "/var/tmp";

// A folder where kvrun may keep files of this user; it need not be there.
struct UserFolder {
  std::string path;
  std::string own;  // it or one above it, in a folder where anybody may make some; else empty
};

// In the order in which they are tried: $XDG_CACHE_HOME/kvrun and $HOME/.cache/kvrun, where these are
// absolute paths, and kvrun-UID in `shared`.
std::vector<UserFolder> UserFolders(const std::string& shared = kSharedFolder);

// `folder`, which nobody else has made or can write into: a folder and no symbolic link, of this user, with a
// mode that lets no other write. Ok where there is none.
Status CheckOwnFolder(const std::string& folder);

// Whether this user could make the folder, unless it is there, and files in it; the message says of which
// folder and why not. Makes nothing.
enum class InMemory : bool { kIsRefused, kIsAllowed };
Status CheckUserFolder(const UserFolder& folder, InMemory in_memory);

// Where kvrun keeps what is to stay, such as keys: $XDG_CONFIG_HOME/kvrun, or else $HOME/.config/kvrun;
// nothing where neither variable is an absolute path. It need not be there.
std::optional<std::string> ConfigFolder();

// Where kvrun keeps what users have made with it, such as sessions: $XDG_STATE_HOME/kvrun, or else
// $HOME/.local/state/kvrun; nothing where neither variable is an absolute path. It need not be there.
std::optional<std::string> StateHomeFolder();

// Where kvrun keeps what saves time at the next start: the first of UserFolders that can be used; nothing
// where none can, or neither variable is set. It need not be there, but for one in kSharedFolder, which is
// made, so that nobody else can make it.
std::optional<std::string> CacheFolder();

}  // namespace kvrun
