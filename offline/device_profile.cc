#include "offline/device_profile.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <span>
#include <stdexcept>
#include <utility>

#include <nlohmann/json.hpp>

#include "platform/base/units.h"
#include "platform/io/input_file.h"

namespace kvrun::offline {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kFormat = "kvrun device profile";
constexpr uint32_t kVersion = 1;
constexpr uint64_t kMaxFileBytes = 16 * kMiB;
constexpr size_t kMaxRows = 100'000;    // of each kind
constexpr size_t kMaxTextBytes = 4096;  // a name
constexpr size_t kMaxShapeKeys = 32;    // of an operation
constexpr double kMaxNumber = 1e15;     // of microseconds, 30 years; of bytes/s, a petabyte
constexpr uint32_t kMaxCount = 1U << 30;

Json ToJson(const MachineIdentity& machine) {
  return {{"device", machine.device}, {"driver", machine.driver},   {"cpu", machine.cpu},
          {"n_cpus", machine.n_cpus}, {"storage", machine.storage}, {"kvrun", machine.kvrun}};
}

Json ToJson(const StorageRate& rate) {
  return {{"backend", rate.backend},
          {"direct", rate.direct},
          {"block_bytes", rate.block_bytes},
          {"depth", rate.depth},
          {"bytes_per_s", rate.bytes_per_s},
          {"latency_us", rate.latency_us},
          {"latency_p99_us", rate.latency_p99_us}};
}

Json ToJson(const OperationRow& row) {
  return {{"operation", row.operation}, {"shape", row.shape}, {"us", row.us}};
}

template <typename Row>
Json ListOf(const std::vector<Row>& rows) {
  Json list = Json::array();
  for (const Row& row : rows) list.push_back(ToJson(row));
  return list;
}

// Thrown inside this file alone, as the JSON library throws too.
class Refusal : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// An object and where it lies: messages name each key from the top on, "storage.rates[3].depth".
class Reader {
 public:
  Reader(const Json& json, std::string path) : json_(json), path_(std::move(path)) {
    if (!json.is_object()) throw Refusal(path_ + " is not an object");
  }

  Reader Object(const char* name) const { return {At(name), Path(name)}; }

  std::string Text(const char* name) const {
    const Json& value = At(name);
    if (!value.is_string()) Refuse(name, "is not a text");
    auto text = value.get<std::string>();
    if (text.size() > kMaxTextBytes) Refuse(name, fmt::format("is longer than {} bytes", kMaxTextBytes));
    return text;
  }

  bool Flag(const char* name) const {
    const Json& value = At(name);
    if (!value.is_boolean()) Refuse(name, "is neither true nor false");
    return value.get<bool>();
  }

  uint32_t Count(const char* name, uint32_t least, uint32_t most) const {
    return CountOf(At(name), Path(name), least, most);
  }

  static uint32_t CountOf(const Json& value, const std::string& path, uint32_t least, uint32_t most) {
    if (!value.is_number_integer() || value.get<int64_t>() < least || value.get<int64_t>() > most) {
      throw Refusal(
          fmt::format("{} is {}, not a whole number from {} to {}", path, Shown(value), least, most));
    }
    return value.get<uint32_t>();
  }

  // JSON has no number that is not finite: the writer makes it null, and 1e999 cannot be read.
  double Number(const char* name) const {
    const Json& value = At(name);
    const double number = value.is_number() ? value.get<double>() : std::numeric_limits<double>::quiet_NaN();
    if (!(number >= 0 && number <= kMaxNumber)) {
      Refuse(name, fmt::format("is {}, not a number from 0 to {:g}", Shown(value), kMaxNumber));
    }
    return number;
  }

  double Positive(const char* name) const {
    const double number = Number(name);
    if (number <= 0) Refuse(name, "is 0; it must be above 0");
    return number;
  }

  template <typename Row>
  std::vector<Row> List(const char* name, Row (*row_in)(const Reader&)) const {
    const Json& list = At(name);
    if (!list.is_array()) Refuse(name, "is not a list");
    if (list.size() > kMaxRows) Refuse(name, fmt::format("has more than {} rows", kMaxRows));
    std::vector<Row> rows;
    rows.reserve(list.size());
    for (size_t i = 0; i < list.size(); ++i) {
      rows.push_back(row_in({list[i], fmt::format("{}[{}]", Path(name), i)}));
    }
    return rows;
  }

  std::map<std::string, uint32_t> Shape(const char* name) const {
    const Reader shape = Object(name);
    if (shape.json_.size() > kMaxShapeKeys) Refuse(name, fmt::format("has more than {} keys", kMaxShapeKeys));
    std::map<std::string, uint32_t> counts;
    for (const auto& [key, value] : shape.json_.items()) {
      if (key.empty() || key.size() > kMaxTextBytes) Refuse(name, "has a key that is not a name");
      counts[key] = CountOf(value, shape.Path(key), 0, kMaxCount);
    }
    return counts;
  }

 private:
  static std::string Shown(const Json& value) {
    if (value.is_structured()) return value.type_name();
    return value.dump(-1, ' ', true, Json::error_handler_t::replace).substr(0, 40);
  }
  std::string Path(const std::string& name) const { return path_.empty() ? name : path_ + "." + name; }
  [[noreturn]] void Refuse(const char* name, const std::string& why) const {
    throw Refusal(fmt::format("{} {}", Path(name), why));
  }
  const Json& At(const char* name) const {
    const auto found = json_.find(name);
    if (found == json_.end()) throw Refusal(Path(name) + " is missing");
    return *found;
  }

  const Json& json_;
  std::string path_;
};

MachineIdentity MachineIn(const Reader& reader) {
  return {.device = reader.Text("device"),
          .driver = reader.Text("driver"),
          .cpu = reader.Text("cpu"),
          .n_cpus = reader.Count("n_cpus", 0, kMaxCount),
          .storage = reader.Text("storage"),
          .kvrun = reader.Text("kvrun")};
}

StorageRate RateIn(const Reader& reader) {
  return {.backend = reader.Text("backend"),
          .direct = reader.Flag("direct"),
          .block_bytes = reader.Count("block_bytes", 1, kMaxCount),
          .depth = reader.Count("depth", 1, 1U << 16),
          .bytes_per_s = reader.Positive("bytes_per_s"),
          .latency_us = reader.Positive("latency_us"),
          .latency_p99_us = reader.Positive("latency_p99_us")};
}

OperationRow OperationIn(const Reader& reader) {
  return {.operation = reader.Text("operation"), .shape = reader.Shape("shape"), .us = reader.Number("us")};
}

DeviceProfile ProfileIn(const Json& json) {
  const Reader file(json, "");
  const uint32_t version = file.Count("version", 0, kMaxCount);
  if (version != kVersion)
    throw Refusal(fmt::format("version is {}, and this kvrun reads {}", version, kVersion));
  const Reader storage = file.Object("storage");
  return {.machine = MachineIn(file.Object("machine")),
          .model = file.Text("model"),
          .model_fingerprint = file.Text("model_fingerprint"),
          .storage = {.folder = storage.Text("folder"),
                      .alignment_bytes = storage.Count("alignment_bytes", 1, 1U << 20),
                      .rates = storage.List<StorageRate>("rates", RateIn)},
          .operations = file.List<OperationRow>("operations", OperationIn)};
}

Status Refuse(std::string_view why) {
  return {StatusCode::kCorrupt,
          fmt::format("the profile cannot be read: {}; measure again with kvadapt probe", why)};
}

// Why it is no damaged profile, but none at all; empty: it may be one.
std::string OtherKind(const Json& json) {
  if (!json.is_object()) return fmt::format("it is a JSON {}, and a profile is an object", json.type_name());
  const auto format = json.find("format");
  if (format == json.end()) return "format is missing";
  return *format == kFormat ? "" : fmt::format("format is not \"{}\"", kFormat);
}

}  // namespace

std::string ProfileToJson(const DeviceProfile& profile) {
  const Json file = {{"format", kFormat},
                     {"version", kVersion},
                     {"machine", ToJson(profile.machine)},
                     {"model", profile.model},
                     {"model_fingerprint", profile.model_fingerprint},
                     {"storage",
                      {{"folder", profile.storage.folder},
                       {"alignment_bytes", profile.storage.alignment_bytes},
                       {"rates", ListOf(profile.storage.rates)}}},
                     {"operations", ListOf(profile.operations)}};
  // Names of drivers and folders may be no UTF-8.
  return file.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Result<DeviceProfile> ProfileFromJson(std::string_view text) {
  try {
    const Json json = Json::parse(text);
    if (const std::string why = OtherKind(json); !why.empty()) {
      return Status(StatusCode::kCorrupt, fmt::format("it is not a device's profile but JSON of another kind "
                                                      "({}): name a file that kvadapt probe wrote",
                                                      why));
    }
    return ProfileIn(json);
  } catch (const Json::parse_error& error) {
    return Refuse(fmt::format("it is not JSON (byte {})", error.byte));
  } catch (const Json::exception&) {  // not in the words of the JSON library
    return Refuse("a value is missing, has another type or is too large");
  } catch (const std::exception& error) {
    return Refuse(error.what());
  }
}

Result<DeviceProfile> ReadProfile(const std::string& path) {
  KVRUN_ASSIGN_OR_RETURN(const InputFile file, InputFile::Open(path));
  std::vector<std::byte> bytes;
  if (file.size_bytes() <= kMaxFileBytes) {
    KVRUN_ASSIGN_OR_RETURN(bytes, file.ReadAll());
  }
  Result<DeviceProfile> profile =
      file.size_bytes() > kMaxFileBytes
          ? Refuse(fmt::format("it is longer than {}", FormatBytes(kMaxFileBytes)))
          : ProfileFromJson({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  if (!profile.ok()) return profile.status().WithContext(path);
  return profile;
}

}  // namespace kvrun::offline
