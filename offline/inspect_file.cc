#include "offline/inspect_file.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <cerrno>
#include <fstream>

namespace kvrun::offline {
namespace {

enum class FileKind : uint8_t { kAdapter, kProfile, kConfig };

// Adapters are GGUF files and profiles JSON objects.
Result<FileKind> KindOf(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  char head[256] = {};
  if (!file) return StatusFromErrno(errno == 0 ? ENOENT : errno, "cannot open " + path);
  file.read(head, sizeof head);
  const std::string_view begin(head, static_cast<size_t>(file.gcount()));
  if (begin.starts_with("GGUF")) return FileKind::kAdapter;
  const size_t first = begin.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos || begin.find('\0') != std::string_view::npos) {
    return Status(
        StatusCode::kCorrupt,
        fmt::format("{} is none of kvrun's files: an adapter, a configuration or a device's profile "
                    "can be shown",
                    path));
  }
  return begin[first] == '{' ? FileKind::kProfile : FileKind::kConfig;
}

}  // namespace

Result<std::string> InspectFile(const std::string& path) {
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
