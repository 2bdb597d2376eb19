#include "platform/vulkan/driver_files.h"

#include <sys/stat.h>
#include <system_error>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string_view>

#include <nlohmann/json.hpp>

namespace kvrun {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxManifestBytes = 1 << 20;
// Where a library that is named without a folder may lie. One elsewhere is known by its manifest alone.
constexpr const char* kLibraryFolders[] = {"/usr/lib",
                                           "/usr/lib64",
                                           "/lib",
                                           "/lib64",
                                           "/usr/local/lib",
#if defined(__x86_64__)
                                           "/usr/lib/x86_64-linux-gnu",
                                           "/lib/x86_64-linux-gnu"
#elif defined(__aarch64__)
                                           "/usr/lib/aarch64-linux-gnu",
                                           "/lib/aarch64-linux-gnu"
#endif
};

void AppendList(std::string_view list, std::string_view suffix, std::vector<std::string>* parts) {
  while (!list.empty()) {
    const size_t colon = std::min(list.find(':'), list.size());
    if (colon > 0) parts->push_back(std::string(list.substr(0, colon)) + std::string(suffix));
    list.remove_prefix(std::min(colon + 1, list.size()));
  }
}

bool FactsOf(const std::string& path, uint64_t* size_bytes, int64_t* mtime_ns) {
  struct stat facts = {};
  if (stat(path.c_str(), &facts) != 0 || !S_ISREG(facts.st_mode)) return false;
  *size_bytes = static_cast<uint64_t>(facts.st_size);
  *mtime_ns = int64_t{facts.st_mtim.tv_sec} * 1'000'000'000 + facts.st_mtim.tv_nsec;
  return true;
}

// As in the manifest; empty where it names none.
std::string LibraryNamedIn(const std::string& manifest) {
  std::ifstream file(manifest, std::ios::binary);
  std::string text(kMaxManifestBytes, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(std::max<std::streamsize>(file.gcount(), 0)));
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return "";
  const auto icd = json.find("ICD");
  if (icd == json.end() || !icd->is_object()) return "";
  const auto path = icd->find("library_path");
  return path != icd->end() && path->is_string() ? path->get<std::string>() : "";
}

// A name with a folder is relative to the manifest's; one without is searched for as dlopen would, roughly.
std::vector<std::string> LibraryPlaces(const std::string& named, const std::string& manifest) {
  if (named.empty()) return {};
  if (named.starts_with('/')) return {named};
  const std::string beside = (fs::path(manifest).parent_path() / named).string();
  if (named.find('/') != std::string::npos) return {beside};
  std::vector<std::string> places;
  if (const char* folders = std::getenv("LD_LIBRARY_PATH")) AppendList(folders, "/" + named, &places);
  for (const char* folder : kLibraryFolders) places.push_back(std::string(folder) + "/" + named);
  return places;
}

DriverFile DriverOf(const std::string& manifest) {
  DriverFile driver;
  driver.manifest = manifest;
  FactsOf(manifest, &driver.manifest_bytes, &driver.manifest_mtime_ns);
  for (const std::string& place : LibraryPlaces(LibraryNamedIn(manifest), manifest)) {
    if (!FactsOf(place, &driver.library_bytes, &driver.library_mtime_ns)) continue;
    driver.library = place;
    break;
  }
  return driver;
}

std::vector<std::string> ManifestsIn(const std::string& place) {
  std::error_code error;
  if (!fs::is_directory(place, error)) return {place};
  std::vector<std::string> manifests;
  for (fs::directory_iterator i(place, error), end; !error && i != end; i.increment(error)) {
    if (i->path().extension() == ".json") manifests.push_back(i->path().string());
  }
  std::sort(manifests.begin(), manifests.end());
  return manifests;
}

}  // namespace

Variables EnvironmentVariables() {
  const bool is_privileged = geteuid() != getuid() || getegid() != getgid();
  return [is_privileged](const char* name) -> std::optional<std::string> {
    const char* value = is_privileged ? nullptr : std::getenv(name);
    if (value == nullptr || *value == '\0') return std::nullopt;
    return value;
  };
}

std::vector<std::string> DriverPlaces(const Variables& variables) {
  std::vector<std::string> places;
  for (const char* name : {"VK_DRIVER_FILES", "VK_ICD_FILENAMES"}) {
    const std::optional<std::string> files = variables(name);
    if (!files) continue;
    AppendList(*files, "", &places);
    return places;
  }
  AppendList(variables("VK_ADD_DRIVER_FILES").value_or(""), "", &places);
  const std::optional<std::string> home = variables("HOME");
  const auto add = [&](const char* name, const std::string& otherwise) {
    AppendList(variables(name).value_or(otherwise), "/vulkan/icd.d", &places);
  };
  add("XDG_CONFIG_HOME", home ? *home + "/.config" : "");
  add("XDG_CONFIG_DIRS", "/etc/xdg");
  AppendList("/usr/local/etc:/etc", "/vulkan/icd.d", &places);
  add("XDG_DATA_HOME", home ? *home + "/.local/share" : "");
  add("XDG_DATA_DIRS", "/usr/local/share:/usr/share");
  return places;
}

std::vector<DriverFile> FindDriverFiles(const std::vector<std::string>& places) {
  std::vector<DriverFile> drivers;
  for (const std::string& place : places) {
    for (const std::string& manifest : ManifestsIn(place)) {
      std::error_code error;
      if (!fs::is_regular_file(manifest, error) || access(manifest.c_str(), R_OK) != 0) continue;
      const auto is_same = [&](const DriverFile& driver) { return driver.manifest == manifest; };
      if (std::none_of(drivers.begin(), drivers.end(), is_same)) drivers.push_back(DriverOf(manifest));
    }
  }
  return drivers;
}

}  // namespace kvrun
