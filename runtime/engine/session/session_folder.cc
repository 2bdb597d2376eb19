#include "runtime/engine/session/session_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "platform/io/folder.h"

namespace kvrun {
namespace {

constexpr size_t kLongestName = 200;  // names of files have at most 255 bytes

// What no shell and no file system reads as something else.
bool CanBeInName(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' ||
         c == '.' || static_cast<unsigned char>(c) >= 0x80;
}

}  // namespace

Result<std::string> SessionsFolder() {
  if (const std::optional<std::string> folder = StateHomeFolder()) return *folder + "/sessions";
  return Status(
      StatusCode::kNotFound,
      "there is no folder for sessions, as neither XDG_STATE_HOME nor HOME is an absolute path: name "
      "the session's file, such as ./thesis.session");
}

std::string WrittenPath() {
  const Result<std::string> folder = SessionsFolder();
  return folder.ok() ? *folder + "/written" : std::string();
}

Result<std::string> SessionPath(const std::string& name_or_path) {
  if (name_or_path.find('/') != std::string::npos) return name_or_path;
  const bool is_name = !name_or_path.empty() && name_or_path.size() <= kLongestName &&
                       name_or_path.front() != '.' && name_or_path.front() != '-' &&
                       std::all_of(name_or_path.begin(), name_or_path.end(), CanBeInName);
  if (!is_name) {
    return Status(
        StatusCode::kInvalidArgument,
        fmt::format("\"{}\" cannot be a session's name: these are up to {} letters, digits, '-', '_' "
                    "and '.', and begin with a letter or digit; a path has a '/' in it",
                    name_or_path, kLongestName));
  }
  KVRUN_ASSIGN_OR_RETURN(const std::string folder, SessionsFolder());
  KVRUN_RETURN_IF_ERROR(MakeFolder(folder, MissingParents::kAreMade));
  KVRUN_RETURN_IF_ERROR(CheckOwnFolder(folder));
  return fmt::format("{}/{}{}", folder, name_or_path, kSessionEnding);
}

}  // namespace kvrun
