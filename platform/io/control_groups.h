// The control groups of this process, which may limit what it gets of processors and memory.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kvrun {

struct ControlGroup {
  std::string folder;  // that holds its files
  bool is_v2 = false;  // of the one hierarchy of version 2, which may lack the controller's files
};

// In each hierarchy that may have `controller` ("cpu", "memory") the group that this process is in, and then
// those above it as far as they are mounted here (a container sees its own alone). `root` is put before the
// names of the system's files that are read, and not before the folders that are answered.
std::vector<ControlGroup> FindControlGroups(std::string_view controller, const std::string& root = "");

}  // namespace kvrun
