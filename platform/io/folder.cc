#include "platform/io/folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <system_error>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <string_view>
#include <utility>
#include <vector>

namespace kvrun {
namespace {

// "a//b/" is "a//b"; "/" stays.
std::string_view WithoutEndingSlashes(std::string_view folder) {
  while (folder.size() > 1 && folder.ends_with('/')) folder.remove_suffix(1);
  return folder;
}

// Of "a/b" "a", of "a" ".", of "/a" "/".
std::string_view ParentOf(std::string_view folder) {
  const size_t slash = folder.rfind('/');
  if (slash == std::string_view::npos) return ".";
  return slash == 0 ? "/" : WithoutEndingSlashes(folder.substr(0, slash));
}

Status CannotMake(std::string_view folder, std::string_view why) {
  return {StatusCode::kIo, fmt::format("cannot make the folder {}: {}", folder, why)};
}

Status CannotMake(std::string_view folder, int error_number) {
  return CannotMake(folder, std::generic_category().message(error_number));
}

std::string ErrnoText(int error_number) { return std::generic_category().message(error_number); }

Status CannotUse(std::string_view folder, std::string_view why) {
  return {StatusCode::kIo, fmt::format("{}: {}", folder, why)};
}

// `folder` without its ending slashes, and the ones above it that are missing too, from the lowest on; then
// the first that is there.
struct Path {
  std::vector<std::string> missing;
  std::string there;
};

Result<Path> Look(const std::string& folder, MissingParents parents) {
  Path path;
  for (std::string_view part = WithoutEndingSlashes(folder);; part = ParentOf(part)) {
    const std::string name(part);
    struct stat info {};
    if (stat(name.c_str(), &info) == 0) {
      if (!S_ISDIR(info.st_mode)) return CannotMake(folder, name + " is not a folder");
      path.there = name;
      return path;
    }
    // "/" and "." are always there, but for a working folder that was removed.
    if (errno != ENOENT || part == ParentOf(part)) return CannotMake(folder, errno);
    if (parents == MissingParents::kAreErrors && !path.missing.empty()) {
      return CannotMake(folder,
                        fmt::format("there is no folder {} to make it in: make that one first", name));
    }
    path.missing.push_back(name);
  }
}

// Null where it is no absolute path.
const char* AbsolutePathIn(const char* variable) {
  const char* value = std::getenv(variable);
  return value != nullptr && *value == '/' ? value : nullptr;
}

}  // namespace

Result<std::string> NearestFolder(const std::string& folder, MissingParents parents) {
  KVRUN_ASSIGN_OR_RETURN(Path path, Look(folder, parents));
  return std::move(path.there);
}

Status MakeFolder(const std::string& folder, MissingParents parents) {
  KVRUN_ASSIGN_OR_RETURN(const Path path, Look(folder, parents));
  for (auto part = path.missing.rbegin(); part != path.missing.rend(); ++part) {
    if (mkdir(part->c_str(), 0700) != 0 && errno != EEXIST) return CannotMake(folder, errno);
  }
  return Status::Ok();
}

std::vector<UserFolder> UserFolders(const std::string& shared) {
  std::vector<UserFolder> folders;
  if (const char* cache = AbsolutePathIn("XDG_CACHE_HOME"))
    folders.push_back({std::string(cache) + "/kvrun", ""});
  if (const char* home = AbsolutePathIn("HOME")) folders.push_back({std::string(home) + "/.cache/kvrun", ""});
  const std::string own = fmt::format("{}/kvrun-{}", shared, geteuid());
  folders.push_back({own, own});
  return folders;
}

Status CheckOwnFolder(const std::string& folder) {
  struct stat info {};
  if (lstat(folder.c_str(), &info) != 0)
    return errno == ENOENT ? Status::Ok() : CannotUse(folder, ErrnoText(errno));
  if (S_ISLNK(info.st_mode))
    return CannotUse(folder, "it is a symbolic link, which anybody may have made: remove it");
  if (!S_ISDIR(info.st_mode)) return CannotUse(folder, "it is not a folder: remove it");
  if (info.st_uid != geteuid())
    return CannotUse(folder, fmt::format("it belongs to another user ({})", info.st_uid));
  if ((info.st_mode & 022) == 0) return Status::Ok();
  return CannotUse(folder, fmt::format("others can write into it (mode {:o}): remove it, or chmod 700 it",
                                       info.st_mode & 07777));
}

Status CheckUserFolder(const UserFolder& folder, InMemory in_memory) {
  if (!folder.own.empty()) KVRUN_RETURN_IF_ERROR(CheckOwnFolder(folder.own));
  KVRUN_ASSIGN_OR_RETURN(const std::string there, NearestFolder(folder.path, MissingParents::kAreMade));
  if (faccessat(AT_FDCWD, there.c_str(), W_OK | X_OK, AT_EACCESS) != 0) {
    const std::string why = ErrnoText(errno);
    return there == folder.path
               ? CannotUse(folder.path, why)
               : CannotUse(folder.path, fmt::format("it cannot be made in {} ({})", there, why));
  }
  struct statfs facts {};
  if (in_memory == InMemory::kIsRefused && statfs(there.c_str(), &facts) == 0) {
    const auto type = static_cast<uint32_t>(facts.f_type);
    if (type == TMPFS_MAGIC || type == RAMFS_MAGIC) {
      return CannotUse(folder.path, "it lies in memory (tmpfs), where a KV cache saves no memory");
    }
  }
  return Status::Ok();
}

std::optional<std::string> ConfigFolder() {
  if (const char* config = AbsolutePathIn("XDG_CONFIG_HOME")) return std::string(config) + "/kvrun";
  if (const char* home = AbsolutePathIn("HOME")) return std::string(home) + "/.config/kvrun";
  return std::nullopt;
}

std::optional<std::string> StateHomeFolder() {
  if (const char* state = AbsolutePathIn("XDG_STATE_HOME")) return std::string(state) + "/kvrun";
  if (const char* home = AbsolutePathIn("HOME")) return std::string(home) + "/.local/state/kvrun";
  return std::nullopt;
}

std::optional<std::string> CacheFolder() {
  const std::vector<UserFolder> folders = UserFolders();
  if (folders.size() == 1) return std::nullopt;  // a process without a home is to leave nothing behind
  for (const UserFolder& folder : folders) {
    if (!CheckUserFolder(folder, InMemory::kIsAllowed).ok()) continue;
    if (folder.own.empty()) return folder.path;
    if (MakeFolder(folder.own, MissingParents::kAreErrors).ok() && CheckOwnFolder(folder.own).ok())
      return folder.path;
  }
  return std::nullopt;
}

}  // namespace kvrun
