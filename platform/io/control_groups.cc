#include "platform/io/control_groups.h"

#include <algorithm>
#include <fstream>
#include <optional>
#include <sstream>

namespace kvrun {
namespace {

// Where a hierarchy of groups of processes is mounted that may have limits.
struct GroupMount {
  std::string root;  // of the hierarchy: what of it is mounted; empty: all
  std::string folder;
  bool is_v2 = false;
};

bool HasWord(std::string_view words, std::string_view word) {
  for (size_t begin = 0; begin <= words.size();) {
    const size_t end = std::min(words.find(',', begin), words.size());
    if (words.substr(begin, end - begin) == word) return true;
    begin = end + 1;
  }
  return false;
}

// A line of /proc/self/mountinfo: number, parent, device, root, folder, options ... - type source options.
std::optional<GroupMount> ParseMount(const std::string& line, std::string_view controller) {
  std::istringstream words(line);
  std::string skipped, type, options;
  GroupMount mount;
  words >> skipped >> skipped >> skipped >> mount.root >> mount.folder;
  while (words >> skipped && skipped != "-") {
  }
  if (!(words >> type >> skipped >> options)) return std::nullopt;
  mount.is_v2 = type == "cgroup2";
  if (!mount.is_v2 && (type != "cgroup" || !HasWord(options, controller))) return std::nullopt;
  if (mount.root == "/") mount.root.clear();
  return mount;
}

// A line of /proc/self/cgroup: number:controllers:group; those of version 2 are 0 and empty.
std::optional<std::string> GroupOf(const std::string& root, std::string_view controller, bool is_v2) {
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string_view controllers = std::string_view(line).substr(first + 1, second - first - 1);
    if (is_v2 ? line.starts_with("0::") : HasWord(controllers, controller)) return line.substr(second + 1);
  }
  return std::nullopt;
}

// Empty where the group is the mounted one, or is not below it (it is seen from another namespace).
std::string RelativeTo(const std::string& group, const std::string& mounted) {
  const bool is_below = group.starts_with(mounted) && group.substr(mounted.size()).starts_with('/');
  std::string below = is_below ? group.substr(mounted.size()) : std::string();
  if (below == "/" || below.find("/..") != std::string::npos) below.clear();
  return below;
}

}  // namespace

std::vector<ControlGroup> FindControlGroups(std::string_view controller, const std::string& root) {
  std::vector<ControlGroup> groups;
  std::ifstream mounts(root + "/proc/self/mountinfo");
  for (std::string line; std::getline(mounts, line);) {
    const std::optional<GroupMount> mount = ParseMount(line, controller);
    if (!mount) continue;
    const std::optional<std::string> group = GroupOf(root, controller, mount->is_v2);
    if (!group) continue;
    // From the process's own group up to what is mounted.
    std::string below = RelativeTo(*group, mount->root);
    while (true) {
      groups.push_back({mount->folder + below, mount->is_v2});
      if (below.empty()) break;
      below.resize(below.rfind('/'));
    }
  }
  return groups;
}

}  // namespace kvrun
