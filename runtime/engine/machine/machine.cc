#include "runtime/engine/machine/machine.h"

#include <system_error>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>
#include <vector>

#include "runtime/engine/text/utf8.h"
#include "runtime/kv/serve/kv_folder.h"

namespace kvrun {
namespace {

namespace fs = std::filesystem;

struct Mount {
  std::string number;  // of the block device, "254:1"; of what has none "0:..."
  std::string point;
  std::string type;
  std::string source;
};

// Blanks and backslashes are written as three octal digits.
std::string Unescape(std::string_view word) {
  const auto is_octal = [](char c) { return c >= '0' && c <= '7'; };
  std::string text;
  for (size_t i = 0; i < word.size(); ++i) {
    if (word[i] == '\\' && i + 3 < word.size() && is_octal(word[i + 1]) && is_octal(word[i + 2]) &&
        is_octal(word[i + 3])) {
      text += static_cast<char>((word[i + 1] - '0') * 64 + (word[i + 2] - '0') * 8 + (word[i + 3] - '0'));
      i += 3;
    } else {
      text += word[i];
    }
  }
  return text;
}

// ID PARENT NUMBER ROOT POINT OPTIONS [FIELD..] - TYPE SOURCE OPTIONS
std::optional<Mount> ParseMount(const std::string& line) {
  constexpr size_t kNumber = 2;
  constexpr size_t kPoint = 4;
  std::istringstream in(line);
  const std::vector<std::string> words{std::istream_iterator<std::string>(in), {}};
  const auto dash = std::find(words.begin(), words.end(), "-");
  if (dash - words.begin() <= static_cast<std::ptrdiff_t>(kPoint) || words.end() - dash < 3) {
    return std::nullopt;
  }
  return Mount{words[kNumber], Unescape(words[kPoint]), dash[1], Unescape(dash[2])};
}

bool IsAbove(const std::string& point, std::string_view path) {
  if (point == "/") return path.starts_with('/');
  return path.starts_with(point) && (path.size() == point.size() || path[point.size()] == '/');
}

// Of several at one point the last covers the others.
std::optional<Mount> FindMount(std::string_view mountinfo, std::string_view path) {
  std::optional<Mount> found;
  std::istringstream in{std::string(mountinfo)};
  for (std::string line; std::getline(in, line);) {
    std::optional<Mount> mount = ParseMount(line);
    if (!mount || !IsAbove(mount->point, path)) continue;
    if (!found || mount->point.size() >= found->point.size()) found = std::move(mount);
  }
  return found;
}

// Partitions are named by their disk.
std::string DiskOf(const std::string& number) {
  std::error_code error;
  const fs::path device = fs::canonical("/sys/dev/block/" + number, error);
  if (error) return "";
  const bool is_partition = fs::exists(device / "partition", error);
  return (is_partition ? device.parent_path() : device).filename().string();
}

}  // namespace

std::string StorageNameFrom(std::string_view mountinfo, std::string_view path,
                            const std::function<std::string(const std::string& number)>& disk_of) {
  const std::optional<Mount> mount = FindMount(mountinfo, path);
  if (!mount) return "unknown";
  if (const std::string disk = disk_of(mount->number); !disk.empty()) return mount->type + " on " + disk;
  // Btrfs and others have numbers of their own, and what is on the net has no block device.
  constexpr std::string_view kDevices = "/dev/";
  const std::string source = RepairedUtf8(mount->source);
  if (source.starts_with(kDevices)) return mount->type + " on " + source.substr(kDevices.size());
  if (source.find('/') != std::string::npos) return mount->type + " on " + source;
  return mount->type;
}

std::string StorageName(const std::string& folder) {
  std::ifstream file("/proc/self/mountinfo");
  std::ostringstream text;
  text << file.rdbuf();
  std::error_code error;
  const fs::path given = fs::absolute(folder.empty() ? DefaultKvFolder() : folder, error);
  fs::path path = fs::weakly_canonical(given, error);
  if (error) path = given.lexically_normal();
  return StorageNameFrom(text.str(), path.string(), DiskOf);
}

}  // namespace kvrun
