// The key of sessions on flash, in a file of 32 bytes, or of 64 hex digits, that its user alone may read.
// Safe to call from any thread, and from several processes at once. No message holds anything of a key.
#pragma once

#include <string>

#include "platform/base/status.h"
#include "platform/io/secret_key.h"

namespace kvrun {

// $XDG_CONFIG_HOME/kvrun/session.key, or else $HOME/.config/kvrun/session.key: not in the folder of what it
// encrypts. Empty where neither variable is an absolute path. Makes nothing.
std::string DefaultKeyPath();

// The key in that file. A regular file of this user, no symbolic link, which no other may read or write; 32
// bytes, or 64 hex digits and at most a newline. kNotFound where there is none, kInvalidArgument where it is
// another; kUnsupported where this build cannot encrypt.
Result<SecretKey> ReadKeyFile(const std::string& path);

// The same, but where there is no file it is made, with a key of random bytes, and its folder where that is
// missing. Of several that make it at once, one does, and all answer its key. A key that this call made is on
// disk when it returns.
Result<SecretKey> UserKey(const std::string& path);

// Overwrites the file, then removes it: what was encrypted with its key cannot be read any more, but by
// whoever has read the key before. Ok where there is no file. kInvalidArgument where it is too long for a
// key, is no regular file, or another user's: it is left as it is then. In builds that cannot encrypt, too.
// Flash, and file systems that copy before they write, may keep the old bytes where only tools for disks find
// them.
Status DestroyKeyFile(const std::string& path);

}  // namespace kvrun
