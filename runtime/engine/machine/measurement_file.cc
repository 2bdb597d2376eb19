#include "runtime/engine/machine/measurement_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <span>
#include <utility>

#include "platform/base/units.h"
#include "platform/io/folder.h"
#include "platform/io/input_file.h"
#include "platform/io/replace_file.h"

namespace kvrun {
namespace {

using Json = nlohmann::json;

// More than so many entries with long names take.
constexpr uint64_t kMaxFileBytes = kMiB;

// Names of drivers, and of what is mounted, may be no UTF-8.
std::string TextOf(const Json& json) { return json.dump(1, ' ', false, Json::error_handler_t::replace); }

Json AsWritten(const Json& json) { return Json::parse(TextOf(json)); }

Status Refuse(const MeasurementForm& form, std::string_view why) {
  return {StatusCode::kCorrupt, fmt::format("it holds no readable {}: {}", form.holds, why)};
}

Result<std::vector<Json>> EntriesIn(const MeasurementForm& form, std::string_view text) {
  try {
    const Json file = Json::parse(text);
    if (file.at("format") != form.format) return Refuse(form, "it is another kind of file");
    if (file.at("version") != form.version) return Refuse(form, "it is of another version");
    std::vector<Json> entries;
    for (const Json& entry : file.at("entries")) {
      if (entries.size() == kMaxMeasurements) return Refuse(form, "it has too many entries");
      entries.push_back(form.known(entry));
    }
    return entries;
  } catch (const Json::parse_error& error) {
    return Refuse(form, fmt::format("it is not JSON (byte {})", error.byte));
  } catch (const Json::exception&) {  // the library's way to say that a text is not as expected
    return Refuse(form, "a value is missing or has another type");
  } catch (const std::exception& error) {
    return Refuse(form, error.what());
  }
}

}  // namespace

std::optional<std::string> MeasurementPath(std::string_view name) {
  const std::optional<std::string> folder = CacheFolder();
  if (!folder) return std::nullopt;
  return *folder + "/" + std::string(name);
}

Result<std::vector<Json>> ReadMeasurements(const MeasurementForm& form, const std::string& path) {
  if (access(path.c_str(), F_OK) != 0 && errno == ENOENT) {
    return Status(StatusCode::kNotFound, fmt::format("there is no {}", path));
  }
  KVRUN_ASSIGN_OR_RETURN(const InputFile file, InputFile::Open(path));
  if (file.size_bytes() > kMaxFileBytes) return Refuse(form, "it is too long").WithContext(path);
  KVRUN_ASSIGN_OR_RETURN(const std::vector<std::byte> bytes, file.ReadAll());
  Result<std::vector<Json>> entries =
      EntriesIn(form, {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  if (!entries.ok()) return entries.status().WithContext(path);
  return entries;
}

Result<Json> FindMeasurement(const MeasurementForm& form, const std::string& path, const Json& key) {
  KVRUN_ASSIGN_OR_RETURN(const std::vector<Json> entries, ReadMeasurements(form, path));
  const auto same = [written = AsWritten(key)](const Json& entry) { return entry["key"] == written; };
  const auto found = std::find_if(entries.begin(), entries.end(), same);
  if (found != entries.end()) return *found;
  return Status(StatusCode::kNotFound, fmt::format("{} has no such {}", path, form.holds));
}

Status KeepMeasurement(const MeasurementForm& form, const std::string& path, const Json& entry) {
  std::vector<Json> entries;
  if (Result<std::vector<Json>> there = ReadMeasurements(form, path); there.ok()) entries = std::move(*there);
  Json written = AsWritten(entry);
  std::erase_if(entries, [&](const Json& other) { return other["key"] == written["key"]; });
  while (entries.size() >= kMaxMeasurements) entries.erase(entries.begin());
  entries.push_back(std::move(written));
  KVRUN_RETURN_IF_ERROR(MakeFolder(path.substr(0, path.rfind('/')), MissingParents::kAreMade));
  const std::string text =
      TextOf({{"format", form.format}, {"version", form.version}, {"entries", entries}}) + "\n";
  return ReplaceFile(path, std::as_bytes(std::span(text)));
}

}  // namespace kvrun
