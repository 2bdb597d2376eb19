// The Vulkan drivers of this machine as files: what the loader would open, found without opening any of it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace kvrun {

// A driver manifest (ICD JSON file), and the library that it names. A field of a file that was not found is
// empty or 0.
struct DriverFile {
  std::string manifest;  // its path
  std::string library;   // its path
  uint64_t manifest_bytes = 0;
  int64_t manifest_mtime_ns = 0;
  uint64_t library_bytes = 0;
  int64_t library_mtime_ns = 0;

  bool operator==(const DriverFile&) const = default;
};

// The value of an environment variable; nothing where it is not set.
using Variables = std::function<std::optional<std::string>(const char* name)>;
// Those of this process; none of them where it runs with another user's rights, as the loader does.
Variables EnvironmentVariables();

// Files and folders of manifests in the loader's order: those that VK_DRIVER_FILES or VK_ICD_FILENAMES names,
// else those of VK_ADD_DRIVER_FILES and the folders that the loader searches.
std::vector<std::string> DriverPlaces(const Variables& variables);

// The manifests in such places (files that end with .json, each once), with their libraries. What cannot be
// read is left to the loader to report.
std::vector<DriverFile> FindDriverFiles(const std::vector<std::string>& places);

}  // namespace kvrun
