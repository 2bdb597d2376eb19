#include "runtime/engine/device_times_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <span>
#include <utility>

#include <nlohmann/json.hpp>

#include "platform/base/units.h"
#include "platform/io/folder.h"
#include "platform/io/mapped_file.h"
#include "platform/io/replace_file.h"

namespace kvrun {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kFormat = "kvrun device times";
constexpr uint32_t kVersion = 1;
// More than so many entries with long names take.
constexpr uint64_t kMaxFileBytes = kMiB;

Json ToJson(const DeviceTimes& times) {
  return {{"prefill_us", times.prefill_us}, {"decode_us", times.decode_us}};
}

Json ToJson(const TimesKey& key) {
  return {{"gpu", key.gpu},
          {"driver", key.driver},
          {"cpu", key.cpu},
          {"threads", key.n_threads},
          {"exact_activations", key.exact_activations},
          {"model", key.model},
          {"kvrun", key.kvrun}};
}

// Readers throw where something is missing or of another type.
double TimeIn(const Json& json, const char* name) {
  const double us = json.at(name).get<double>();
  if (!(us >= 1e-3 && us <= 1e12)) throw std::out_of_range(fmt::format("{} is {}", name, us));
  return us;
}

DeviceTimes TimesIn(const Json& json) {
  return {.prefill_us = TimeIn(json, "prefill_us"), .decode_us = TimeIn(json, "decode_us")};
}

TimesEntry EntryIn(const Json& json) {
  const Json& key = json.at("key");
  return {.key = {.gpu = key.at("gpu").get<std::string>(),
                  .driver = key.at("driver").get<std::string>(),
                  .cpu = key.at("cpu").get<std::string>(),
                  .n_threads = key.at("threads").get<uint32_t>(),
                  .exact_activations = key.at("exact_activations").get<bool>(),
                  .model = key.at("model").get<std::string>(),
                  .kvrun = key.at("kvrun").get<std::string>()},
          .cpu = TimesIn(json.at("cpu")),
          .gpu = TimesIn(json.at("gpu"))};
}

Status Refuse(std::string_view why) {
  return {StatusCode::kCorrupt, fmt::format("it holds no times of devices that can be read: {}", why)};
}

}  // namespace

std::string TimesToJson(const std::vector<TimesEntry>& entries) {
  Json list = Json::array();
  for (const TimesEntry& entry : entries) {
    list.push_back({{"key", ToJson(entry.key)}, {"cpu", ToJson(entry.cpu)}, {"gpu", ToJson(entry.gpu)}});
  }
  const Json file = {{"format", kFormat}, {"version", kVersion}, {"entries", std::move(list)}};
  // Drivers' names may be no UTF-8.
  return file.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Result<std::vector<TimesEntry>> TimesFromJson(std::string_view text) {
  try {
    const Json file = Json::parse(text);
    if (file.at("format") != kFormat) return Refuse("it is another kind of file");
    if (file.at("version") != kVersion) return Refuse("it is of another version");
    std::vector<TimesEntry> entries;
    for (const Json& entry : file.at("entries")) {
      if (entries.size() == kMaxTimesEntries) return Refuse("there are too many");
      entries.push_back(EntryIn(entry));
    }
    return entries;
  } catch (const std::exception& error) {  // the library's way to say that a text is not as expected
    return Refuse(error.what());
  }
}

std::optional<std::string> TimesPath() {
  const std::optional<std::string> folder = CacheFolder();
  if (!folder) return std::nullopt;
  return *folder + "/device_times.json";
}

Result<std::vector<TimesEntry>> ReadTimes(const std::string& path) {
  if (access(path.c_str(), F_OK) != 0 && errno == ENOENT) {
    return Status(StatusCode::kNotFound, fmt::format("there is no {}", path));
  }
  KVRUN_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  const std::span<const std::byte> bytes = file.bytes();
  Result<std::vector<TimesEntry>> entries =
      bytes.size() > kMaxFileBytes
          ? Refuse("it is too long")
          : TimesFromJson({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  if (!entries.ok()) return entries.status().WithContext(path);
  return entries;
}

Status WriteTimes(const std::string& path, const TimesEntry& entry) {
  std::vector<TimesEntry> entries;
  if (Result<std::vector<TimesEntry>> there = ReadTimes(path); there.ok()) entries = std::move(*there);
  std::erase_if(entries, [&](const TimesEntry& other) { return other.key == entry.key; });
  while (entries.size() >= kMaxTimesEntries) entries.erase(entries.begin());
  entries.push_back(entry);
  KVRUN_RETURN_IF_ERROR(MakeFolder(path.substr(0, path.rfind('/')), MissingParents::kAreMade));
  const std::string text = TimesToJson(entries);
  return ReplaceFile(path, std::as_bytes(std::span(text)));
}

}  // namespace kvrun
