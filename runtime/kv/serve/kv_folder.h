// Where KV lies on flash if no folder is named.
#pragma once

#include <string>

#include "platform/base/status.h"
#include "platform/io/folder.h"

namespace kvrun {

enum class FolderUse : bool { kIsMade, kIsTried };

// kv in the first of the UserFolders that can be used, which kIsMade makes where it is missing. kIo where
// none can: the message names all of them, each with its reason. `passed_over`: the reasons of those before
// the one that is answered; empty where there are none.
Result<std::string> FindKvFolder(FolderUse use, InMemory in_memory, const std::string& shared = kSharedFolder,
                                 std::string* passed_over = nullptr);

// What to tell the user where KV does not lie in the first folder that it could; else empty.
std::string NoteOfKvFolder(const std::string& shared = kSharedFolder);

// What FindKvFolder would answer, for names and keys; the first where none can be used.
std::string DefaultKvFolder();

}  // namespace kvrun
