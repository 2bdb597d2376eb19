#include "offline/inspect_file.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <system_error>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "platform/io/input_file.h"
#include "runtime/engine/config/config_keys.h"
#include "runtime/engine/measure/calibration_sums.h"
#include "runtime/model/gguf.h"
#include "runtime/model/gguf_parser.h"

namespace kvrun::offline {
namespace {

constexpr size_t kBeginBytes = 256;
constexpr uint64_t kMostTextBytes = uint64_t{16} << 20;  // more than any config

enum class FileKind : uint8_t { kAdapter, kProfile, kConfig };

Status NotShown(const std::string& path, std::string_view what) {
  return {StatusCode::kCorrupt,
          fmt::format("{} {}; an adapter, a configuration or a device's profile can be shown", path, what)};
}

Status NoneOfOurs(const std::string& path, std::string_view why) {
  return NotShown(path, fmt::format("is none of kvrun's files: {}", why));
}

// A list, where a configuration has the name of a section in its brackets.
bool IsJsonList(std::string_view begin) {
  const size_t inner = begin.find_first_not_of("[ \t\r\n");
  if (!begin.starts_with('[')) return false;
  return inner == std::string_view::npos || std::isalpha(static_cast<unsigned char>(begin[inner])) == 0;
}

// Adapters are GGUF files and profiles JSON objects.
Result<FileKind> KindOf(const std::string& path) {
  KVRUN_ASSIGN_OR_RETURN(const InputFile file, InputFile::Open(path));
  std::string begin(std::min<uint64_t>(file.size_bytes(), kBeginBytes), '\0');
  KVRUN_RETURN_IF_ERROR(file.Read(0, std::as_writable_bytes(std::span(begin))));
  const std::string_view text = begin;
  if (text.empty()) return NoneOfOurs(path, "it is empty");
  if (text.starts_with("GGUF")) return FileKind::kAdapter;
  if (text.find('\0') != std::string_view::npos) return NoneOfOurs(path, "it is neither GGUF nor text");
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return NoneOfOurs(path, "it begins with white space alone");
  if (IsJsonList(text.substr(first))) return NoneOfOurs(path, "it is a JSON list");
  return text[first] == '{' ? FileKind::kProfile : FileKind::kConfig;
}

// Whether the first line that says something is a configuration's: a key or a header of one. Any text begins
// as TOML, until a parser says where it does not go on.
bool BeginsAsConfig(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r\n";
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  size_t at = text.find_first_not_of(kBlanks);
  while (at != std::string_view::npos && text[at] == '#') {
    at = text.find_first_not_of(kBlanks, std::min(text.find('\n', at), text.size()));
  }
  if (at == std::string_view::npos) return true;  // comments alone
  at = std::min(text.find_first_not_of("[ \t", at), text.size());
  return std::any_of(kConfigKeys.begin(), kConfigKeys.end(), [rest = text.substr(at)](std::string_view key) {
    if (!rest.starts_with(key)) return false;
    const size_t next = rest.find_first_not_of(" \t", key.size());
    return next != std::string_view::npos &&
           std::string_view("=.]").find(rest[next]) != std::string_view::npos;
  });
}

Result<std::string> InspectConfig(const std::string& path) {
  const Result<KvConfig> config = ReadConfig(path);
  if (config.ok()) return ConfigObject(*config);
  KVRUN_ASSIGN_OR_RETURN(const InputFile file, InputFile::Open(path));
  // One that is too long for a config is text that goes on.
  std::string text(std::min(file.size_bytes(), kMostTextBytes), '\0');
  KVRUN_RETURN_IF_ERROR(file.Read(0, std::as_writable_bytes(std::span(text))));
  if (BeginsAsConfig(text)) return config.status();
  return NoneOfOurs(path, fmt::format("it is text, but not a configuration ({})", config.status().message()));
}

// What is GGUF, but no adapter.
Status OtherGguf(const std::string& path) {
  KVRUN_ASSIGN_OR_RETURN(const std::unique_ptr<GgufFile> file, GgufFile::Open(path));
  const auto architecture = file->String("general.architecture");
  if (!architecture.ok()) return NoneOfOurs(path, "it is a GGUF file that does not say what it holds");
  if (*architecture == kSumsArchitecture) {
    return NotShown(path,
                    "holds the sums of a calibration: those of kvadapt calibrate --dump-gram, or what an "
                    "interrupted one goes on from (OUTPUT.partial)");
  }
  return NoneOfOurs(path,
                    fmt::format("it is a GGUF file of {}, and kvrun info -m {} shows it if it is a model",
                                QuoteForMessage(*architecture), path));
}

Result<std::string> InspectAdapter(const std::string& path) {
  const Result<Adapter> adapter = ReadWholeAdapter(path);
  if (adapter.status().code() == StatusCode::kInvalidArgument) return OtherGguf(path);
  KVRUN_RETURN_IF_ERROR(adapter.status());
  struct stat facts = {};
  if (stat(path.c_str(), &facts) != 0) return StatusFromErrno(errno, "cannot open " + path);
  return AdapterObject(*adapter, static_cast<uint64_t>(facts.st_size));
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
  return kind == FileKind::kConfig ? InspectConfig(path) : InspectAdapter(path);
}

}  // namespace kvrun::offline
