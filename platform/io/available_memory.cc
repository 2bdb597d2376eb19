#include "platform/io/available_memory.h"

#include <algorithm>
#include <fstream>
#include <initializer_list>
#include <limits>
#include <sstream>
#include <string_view>
#include <vector>

namespace kvrun {
namespace {

using Bytes = std::optional<uint64_t>;

Bytes Least(Bytes a, Bytes b) {
  if (!a || !b) return a ? a : b;
  return std::min(*a, *b);
}

// Of lines "NAME NUMBER ...".
Bytes NumberNamed(const std::string& path, std::string_view wanted) {
  std::ifstream file(path);
  for (std::string name; file >> name;) {
    uint64_t number = 0;
    if (name == wanted) return file >> number ? Bytes(number) : std::nullopt;
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return std::nullopt;
}

// Nothing where it says "max", or is not there.
Bytes NumberIn(const std::string& path) {
  std::ifstream file(path);
  uint64_t number = 0;
  if (file >> number) return number;
  return std::nullopt;
}

// What the two versions of control groups call what is asked of them here.
struct GroupFiles {
  std::initializer_list<const char*> limits;
  const char* usage;
  std::initializer_list<const char*> of_files;  // in memory.stat
};
const GroupFiles kVersion1 = {
    {"memory.limit_in_bytes"}, "memory.usage_in_bytes", {"total_inactive_file", "total_active_file"}};
const GroupFiles kVersion2 = {
    {"memory.max", "memory.high"}, "memory.current", {"inactive_file", "active_file"}};

Bytes LeftOfGroup(const std::string& folder, const GroupFiles& files) {
  Bytes limit;
  for (const char* name : files.limits) limit = Least(limit, NumberIn(folder + "/" + name));
  const Bytes usage = NumberIn(folder + "/" + files.usage);
  if (!limit || !usage) return std::nullopt;
  uint64_t can_be_had = 0;
  for (const char* name : files.of_files)
    can_be_had += NumberNamed(folder + "/memory.stat", name).value_or(0);
  const uint64_t kept = *usage - std::min(*usage, can_be_had);
  return *limit - std::min(*limit, kept);
}

// A mounted hierarchy of control groups that counts memory.
struct Hierarchy {
  std::string group;   // whose folder the mount point is: "/", or a container's
  std::string folder;  // the mount point
  bool is_version_2 = false;
};

bool HasWord(std::string_view list, std::string_view word) {
  while (!list.empty()) {
    const size_t comma = std::min(list.find(','), list.size());
    if (list.substr(0, comma) == word) return true;
    list.remove_prefix(std::min(comma + 1, list.size()));
  }
  return false;
}

std::vector<Hierarchy> Hierarchies(const std::string& root) {
  std::vector<Hierarchy> hierarchies;
  std::ifstream file(root + "/proc/self/mountinfo");
  for (std::string line; std::getline(file, line);) {
    // ID PARENT DEVICE GROUP FOLDER OPTIONS [..] - KIND SOURCE OPTIONS
    const size_t dash = line.find(" - ");
    if (dash == std::string::npos) continue;
    std::istringstream first(line.substr(0, dash));
    std::istringstream second(line.substr(dash + 3));
    std::string ignored, kind, options;
    Hierarchy found;
    first >> ignored >> ignored >> ignored >> found.group >> found.folder;
    second >> kind >> ignored >> options;
    found.is_version_2 = kind == "cgroup2";
    if (found.is_version_2 || (kind == "cgroup" && HasWord(options, "memory"))) hierarchies.push_back(found);
  }
  return hierarchies;
}

// This process's group in such a hierarchy, as /proc/self/cgroup has it: "ID:CONTROLLERS:GROUP".
std::string GroupIn(const Hierarchy& hierarchy, const std::string& root) {
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string_view controllers = std::string_view(line).substr(first + 1, second - first - 1);
    const bool is_it = hierarchy.is_version_2 ? controllers.empty() : HasWord(controllers, "memory");
    if (is_it) return line.substr(second + 1);
  }
  return "";
}

// Of the group and all above it, as far as they can be seen.
Bytes LeftIn(const Hierarchy& hierarchy, const std::string& root) {
  const GroupFiles& files = hierarchy.is_version_2 ? kVersion2 : kVersion1;
  const std::string top = root + hierarchy.folder;
  std::string group = GroupIn(hierarchy, root);
  // In a container the mount point may be the group itself, which /proc then names as the host does.
  const std::string above = hierarchy.group == "/" ? "" : hierarchy.group;
  const bool is_below = group.starts_with(above + "/") && group.find("/..") == std::string::npos;
  group = is_below ? group.substr(above.size()) : "";
  Bytes left = LeftOfGroup(top, files);
  for (size_t end = group.size(); end != 0 && end != std::string::npos; end = group.rfind('/', end - 1)) {
    left = Least(left, LeftOfGroup(top + group.substr(0, end), files));
  }
  return left;
}

}  // namespace

std::optional<uint64_t> AvailableMemoryBytes(const std::string& root) {
  Bytes available = NumberNamed(root + "/proc/meminfo", "MemAvailable:");
  if (available) *available *= 1024;
  for (const Hierarchy& hierarchy : Hierarchies(root)) available = Least(available, LeftIn(hierarchy, root));
  return available;
}

}  // namespace kvrun
