#include "runtime/engine/machine/storage_speed_file.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <cerrno>
#include <stdexcept>

#include "platform/io/folder.h"
#include "runtime/engine/machine/machine.h"
#include "runtime/engine/machine/measurement_file.h"

namespace kvrun {
namespace {

using Json = nlohmann::json;

Json ToJson(const SpeedKey& key) {
  return {{"storage", key.storage}, {"device", key.device}, {"mode", key.mode}, {"kvrun", key.kvrun}};
}

Json ToJson(const SpeedEntry& entry) {
  return {{"key", ToJson(entry.key)}, {"reads_per_s", entry.reads_per_s}};
}

// Throws where something is missing or of another type.
SpeedEntry EntryIn(const Json& json) {
  const Json& key = json.at("key");
  const double reads_per_s = json.at("reads_per_s").get<double>();
  if (!(reads_per_s >= 1e-3 && reads_per_s <= 1e12)) {
    throw std::out_of_range(fmt::format("reads_per_s is {}", reads_per_s));
  }
  return {.key = {.storage = key.at("storage").get<std::string>(),
                  .device = key.at("device").get<std::string>(),
                  .mode = key.at("mode").get<std::string>(),
                  .kvrun = key.at("kvrun").get<std::string>()},
          .reads_per_s = reads_per_s};
}

constexpr MeasurementForm kForm{.format = "kvrun storage speed",
                                .version = 1,
                                .holds = "speeds of storage",
                                .known = [](const Json& json) { return ToJson(EntryIn(json)); }};

}  // namespace

Result<SpeedKey> SpeedKeyOf(const std::string& folder, const IoMode& mode, const std::string& version) {
  KVRUN_ASSIGN_OR_RETURN(const std::string place, NearestFolder(folder, MissingParents::kAreMade));
  struct stat info {};
  if (stat(place.c_str(), &info) != 0)
    return StatusFromErrno(errno, "cannot find out on which storage " + place + " lies");
  return SpeedKey{
      .storage = StorageName(folder),
      .device = fmt::format("{}:{}", major(info.st_dev), minor(info.st_dev)),
      .mode = fmt::format("{} {}", IoBackendName(mode.backend), mode.direct ? "direct" : "buffered"),
      .kvrun = version};
}

Result<std::vector<SpeedEntry>> ReadSpeeds(const std::string& path) {
  KVRUN_ASSIGN_OR_RETURN(const std::vector<Json> kept, ReadMeasurements(kForm, path));
  std::vector<SpeedEntry> entries;
  for (const Json& entry : kept) entries.push_back(EntryIn(entry));
  return entries;
}

Result<double> FindSpeed(const std::string& path, const SpeedKey& key) {
  KVRUN_ASSIGN_OR_RETURN(const Json entry, FindMeasurement(kForm, path, ToJson(key)));
  return EntryIn(entry).reads_per_s;
}

Status WriteSpeed(const std::string& path, const SpeedEntry& entry) {
  return KeepMeasurement(kForm, path, ToJson(entry));
}

}  // namespace kvrun
