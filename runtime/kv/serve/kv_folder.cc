#include "runtime/kv/serve/kv_folder.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

namespace kvrun {
namespace {

UserFolder KvIn(UserFolder folder) {
  folder.path += "/kv";
  return folder;
}

// Whose it is is asked again when it is there: another may have made it meanwhile.
Status Make(const UserFolder& folder, InMemory in_memory) {
  KVRUN_RETURN_IF_ERROR(MakeFolder(folder.path, MissingParents::kAreMade));
  return CheckUserFolder(folder, in_memory);
}

}  // namespace

Result<std::string> FindKvFolder(FolderUse use, InMemory in_memory, const std::string& shared,
                                 std::string* passed_over) {
  std::string reasons;
  for (const UserFolder& parent : UserFolders(shared)) {
    const UserFolder folder = KvIn(parent);
    Status status = CheckUserFolder(folder, in_memory);
    if (status.ok() && use == FolderUse::kIsMade) status = Make(folder, in_memory);
    if (status.ok()) {
      if (passed_over != nullptr) *passed_over = std::move(reasons);
      return folder.path;
    }
    reasons += (reasons.empty() ? "" : "; ") + status.message();
  }
  return Status(
      StatusCode::kIo,
      fmt::format("no folder for the KV cache can be used ({}): name a folder on flash with --kv-dir",
                  reasons));
}

std::string NoteOfKvFolder(const std::string& shared) {
  std::string passed_over;
  const Result<std::string> found =
      FindKvFolder(FolderUse::kIsTried, InMemory::kIsRefused, shared, &passed_over);
  if (!found.ok() || passed_over.empty()) return "";
  return fmt::format("the KV cache lies in {} ({}); --kv-dir names another folder", *found, passed_over);
}

std::string DefaultKvFolder() {
  const Result<std::string> found = FindKvFolder(FolderUse::kIsTried, InMemory::kIsRefused);
  return found.ok() ? *found : KvIn(UserFolders().front()).path;
}

}  // namespace kvrun
