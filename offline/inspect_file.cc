#include "offline/inspect_file.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <system_error>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <filesystem>
#include <string_view>

#include "platform/io/mapped_file.h"

namespace kvrun::offline {
namespace {

constexpr size_t kBeginBytes = 256;

enum class FileKind : uint8_t { kAdapter, kProfile, kConfig };

Status NoneOfOurs(const std::string& path, std::string_view why) {
  return {StatusCode::kCorrupt,
          fmt::format("{} is none of kvrun's files: {}; an adapter, a configuration or a "
                      "device's profile can be shown",
                      path, why)};
}

// A list, where a configuration has the name of a section in its brackets.
bool IsJsonList(std::string_view begin) {
  const size_t inner = begin.find_first_not_of("[ \t\r\n");
  if (!begin.starts_with('[')) return false;
  return inner == std::string_view::npos || std::isalpha(static_cast<unsigned char>(begin[inner])) == 0;
}

// Adapters are GGUF files and profiles JSON objects.
Result<FileKind> KindOf(const std::string& path) {
  KVRUN_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  const std::string_view text(reinterpret_cast<const char*>(file.bytes().data()),
                              std::min(file.bytes().size(), kBeginBytes));
  if (text.empty()) return NoneOfOurs(path, "it is empty");
  if (text.starts_with("GGUF")) return FileKind::kAdapter;
  if (text.find('\0') != std::string_view::npos) return NoneOfOurs(path, "it is neither GGUF nor text");
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return NoneOfOurs(path, "it begins with white space alone");
  if (IsJsonList(text.substr(first))) return NoneOfOurs(path, "it is a JSON list");
  return text[first] == '{' ? FileKind::kProfile : FileKind::kConfig;
}

}  // namespace

Result<std::string> InspectFile(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    return Status(StatusCode::kInvalidArgument, path + " is a folder: name a file in it");
  }
  KVRUN_ASSIGN_OR_RETURN(const FileKind kind, KindOf(path));
  if (kind == FileKind::kProfile) {
    KVRUN_ASSIGN_OR_RETURN(const DeviceProfile profile, ReadProfile(path));
    return ProfileObject(profile);
  }
  if (kind == FileKind::kConfig) {
    KVRUN_ASSIGN_OR_RETURN(const KvConfig config, ReadConfig(path));
    return ConfigObject(config);
  }
  KVRUN_ASSIGN_OR_RETURN(const Adapter adapter, ReadWholeAdapter(path));
  struct stat facts = {};
  if (stat(path.c_str(), &facts) != 0) return StatusFromErrno(errno, "cannot open " + path);
  return AdapterObject(adapter, static_cast<uint64_t>(facts.st_size));
}

}  // namespace kvrun::offline
