#include "platform/io/folder.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <system_error>

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
      if (!S_ISDIR(info.st_mode)) return CannotMake(folder, name + " is no folder");
      path.there = name;
      return path;
    }
    // "/" and "." are always there, but for a working folder that was removed.
    if (errno != ENOENT || part == ParentOf(part)) return CannotMake(folder, errno);
    if (parents == MissingParents::kAreErrors && !path.missing.empty()) {
      return CannotMake(folder,
                        fmt::format("there is no folder {}, in which it would lie: make that first", name));
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

std::optional<std::string> CacheFolder() {
  if (const char* cache = AbsolutePathIn("XDG_CACHE_HOME")) return std::string(cache) + "/kvrun";
  if (const char* home = AbsolutePathIn("HOME")) return std::string(home) + "/.cache/kvrun";
  return std::nullopt;
}

}  // namespace kvrun
