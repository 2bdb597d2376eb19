#include "runtime/engine/storage_speed_file.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cerrno>
#include <span>
#include <stdexcept>
#include <utility>

#include <nlohmann/json.hpp>

#include "platform/base/units.h"
#include "platform/io/folder.h"
#include "platform/io/mapped_file.h"
#include "platform/io/replace_file.h"
#include "runtime/engine/machine.h"

namespace kvrun {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kFormat = "kvrun storage speed";
constexpr uint32_t kVersion = 1;
// More than so many entries with long names take.
constexpr uint64_t kMaxFileBytes = kMiB;

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

Status Refuse(std::string_view why) {
  return {StatusCode::kCorrupt, fmt::format("it holds no speeds of storage that can be read: {}", why)};
}

}  // namespace

Result<SpeedKey> SpeedKeyOf(const std::string& folder, const IoMode& mode, const std::string& version) {
  KVRUN_ASSIGN_OR_RETURN(const std::string place, NearestFolder(folder, MissingParents::kAreMade));
  struct stat info {};
  if (stat(place.c_str(), &info) != 0) return StatusFromErrno(errno, "cannot learn what " + place + " is on");
  return SpeedKey{
      .storage = StorageName(folder),
      .device = fmt::format("{}:{}", major(info.st_dev), minor(info.st_dev)),
      .mode = fmt::format("{} {}", IoBackendName(mode.backend), mode.direct ? "direct" : "buffered"),
      .kvrun = version};
}

std::string SpeedsToJson(const std::vector<SpeedEntry>& entries) {
  Json list = Json::array();
  for (const SpeedEntry& entry : entries) {
    list.push_back({{"key",
                     {{"storage", entry.key.storage},
                      {"device", entry.key.device},
                      {"mode", entry.key.mode},
                      {"kvrun", entry.key.kvrun}}},
                    {"reads_per_s", entry.reads_per_s}});
  }
  const Json file = {{"format", kFormat}, {"version", kVersion}, {"entries", std::move(list)}};
  // Names of what is mounted may be no UTF-8.
  return file.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Result<std::vector<SpeedEntry>> SpeedsFromJson(std::string_view text) {
  try {
    const Json file = Json::parse(text);
    if (file.at("format") != kFormat) return Refuse("it is another kind of file");
    if (file.at("version") != kVersion) return Refuse("it is of another version");
    std::vector<SpeedEntry> entries;
    for (const Json& entry : file.at("entries")) {
      if (entries.size() == kMaxSpeedEntries) return Refuse("there are too many");
      entries.push_back(EntryIn(entry));
    }
    return entries;
  } catch (const std::exception& error) {  // the library's way to say that a text is not as expected
    return Refuse(error.what());
  }
}

Result<std::vector<SpeedEntry>> ReadSpeeds(const std::string& path) {
  if (access(path.c_str(), F_OK) != 0 && errno == ENOENT) {
    return Status(StatusCode::kNotFound, fmt::format("there is no {}", path));
  }
  KVRUN_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  const std::span<const std::byte> bytes = file.bytes();
  Result<std::vector<SpeedEntry>> entries =
      bytes.size() > kMaxFileBytes
          ? Refuse("it is too long")
          : SpeedsFromJson({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  if (!entries.ok()) return entries.status().WithContext(path);
  return entries;
}

Status WriteSpeed(const std::string& path, const SpeedEntry& entry) {
  std::vector<SpeedEntry> entries;
  if (Result<std::vector<SpeedEntry>> there = ReadSpeeds(path); there.ok()) entries = std::move(*there);
  std::erase_if(entries, [&](const SpeedEntry& other) { return other.key == entry.key; });
  while (entries.size() >= kMaxSpeedEntries) entries.erase(entries.begin());
  entries.push_back(entry);
  KVRUN_RETURN_IF_ERROR(MakeFolder(path.substr(0, path.rfind('/')), MissingParents::kAreMade));
  const std::string text = SpeedsToJson(entries);
  return ReplaceFile(path, std::as_bytes(std::span(text)));
}

}  // namespace kvrun
