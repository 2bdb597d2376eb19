#include "platform/io/available_memory.h"

#include <algorithm>
#include <fstream>
#include <initializer_list>
#include <sstream>
#include <string_view>

#include "platform/io/control_groups.h"

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
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(wanted)) continue;
    std::istringstream rest(line.substr(wanted.size()));
    uint64_t number = 0;
    return rest >> number ? Bytes(number) : std::nullopt;
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
    can_be_had += NumberNamed(folder + "/memory.stat", std::string(name) + " ").value_or(0);
  const uint64_t kept = *usage - std::min(*usage, can_be_had);
  return *limit - std::min(*limit, kept);
}

// What the process may map yet (ulimit -v). A driver maps more than it uses, so this is on the safe side.
Bytes LeftOfAddressSpace(const std::string& root) {
  const Bytes limit = NumberNamed(root + "/proc/self/limits", "Max address space ");
  const Bytes mapped_kib = NumberNamed(root + "/proc/self/status", "VmSize:");
  if (!limit || !mapped_kib) return std::nullopt;
  return *limit - std::min(*limit, *mapped_kib * 1024);
}

}  // namespace

std::optional<uint64_t> AvailableMemoryBytes(const std::string& root) {
  Bytes available = NumberNamed(root + "/proc/meminfo", "MemAvailable:");
  if (available) *available *= 1024;
  for (const ControlGroup& group : FindControlGroups("memory", root)) {
    available = Least(available, LeftOfGroup(root + group.folder, group.is_v2 ? kVersion2 : kVersion1));
  }
  return Least(available, LeftOfAddressSpace(root));
}

}  // namespace kvrun
