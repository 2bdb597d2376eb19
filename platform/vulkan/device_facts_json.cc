#include <fmt/format.h>

#include <cerrno>
#include <fstream>
#include <set>
#include <sstream>
#include <type_traits>

#include <nlohmann/json.hpp>

#include "platform/vulkan/device_facts.h"
#include "platform/vulkan/device_facts_fields.h"

namespace kvrun {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kFormat = "kvrun-device-facts-1";

// Reads members of one JSON object; the first problem stays.
class Reader {
 public:
  Reader(const Json& object, std::string where) : object_(object), where_(std::move(where)) {
    if (!object_.is_object()) Fail("is not an object");
  }

  template <typename T>
  void Read(std::string_view name, T& value) {
    const Json* member = Find(name);
    if (member == nullptr) return;
    if constexpr (std::is_same_v<T, bool>) {
      if (!member->is_boolean()) return Fail(fmt::format("\"{}\" must be true or false", name));
      value = member->get<bool>();
    } else if constexpr (std::is_same_v<T, std::string>) {
      if (!member->is_string()) return Fail(fmt::format("\"{}\" must be a string", name));
      value = member->get<std::string>();
    } else if constexpr (std::is_same_v<T, double>) {
      if (!member->is_number()) return Fail(fmt::format("\"{}\" must be a number", name));
      value = member->get<double>();
    } else {
      ReadInteger(name, *member, value);
    }
  }

  // The member, or null with a failure noted.
  const Json* Find(std::string_view name) {
    if (!status_.ok()) return nullptr;
    seen_.insert(std::string(name));
    const auto member = object_.find(std::string(name));
    if (member != object_.end()) return &*member;
    Fail(fmt::format("\"{}\" is missing", name));
    return nullptr;
  }

  void Fail(std::string_view why) {
    if (status_.ok()) status_ = Status(StatusCode::kCorrupt, fmt::format("{}: {}", where_, why));
  }

  Status Finish() {
    if (!status_.ok()) return status_;
    for (const auto& [key, value] : object_.items()) {
      if (!seen_.contains(key)) Fail(fmt::format("\"{}\" is not known", key));
    }
    return status_;
  }

 private:
  template <typename T>
  void ReadInteger(std::string_view name, const Json& member, T& value) {
    using Wide = uint64_t;
    Wide wide = 0;
    if constexpr (std::is_enum_v<T>) {
      if (!member.is_number_unsigned()) return Fail(fmt::format("\"{}\" must be a whole number", name));
      wide = member.get<Wide>();
    } else {
      if (!member.is_number_unsigned() || member.get<Wide>() > std::numeric_limits<T>::max()) {
        return Fail(fmt::format("\"{}\" must be a whole number that fits", name));
      }
      wide = member.get<Wide>();
    }
    value = static_cast<T>(wide);
  }

  const Json& object_;
  std::string where_;
  Status status_;
  std::set<std::string> seen_;
};

// Calls read(reader, item) for each object of the array `name`.
template <typename Item, typename ReadItem>
void ReadArray(Reader& reader, std::string_view origin, const char* name, std::vector<Item>& items,
               ReadItem&& read) {
  const Json* array = reader.Find(name);
  if (array == nullptr) return;
  if (!array->is_array() || array->size() > 64)
    return reader.Fail(fmt::format("\"{}\" must be a list", name));
  for (const Json& element : *array) {
    Reader element_reader(element, fmt::format("{}: \"{}\"", origin, name));
    Item item;
    read(element_reader, item);
    if (const Status status = element_reader.Finish(); !status.ok()) return reader.Fail(status.message());
    items.push_back(item);
  }
}

Status CheckHeapIndices(const DeviceFacts& facts, std::string_view origin) {
  for (const MemoryTypeFacts& type : facts.memory_types) {
    if (type.heap_index >= facts.memory_heaps.size()) {
      return {StatusCode::kCorrupt, fmt::format("{}: a memory type names heap {} of {}", origin,
                                                type.heap_index, facts.memory_heaps.size())};
    }
  }
  return Status::Ok();
}

}  // namespace

std::string DeviceFactsToJson(const DeviceFacts& facts) {
  Json json;
  json["format"] = kFormat;
  json["type"] = static_cast<uint32_t>(facts.type);
  VisitDeviceFacts(facts, [&](const char* name, ClampRule, const auto& value) { json[name] = value; });
  json["memory_heaps"] = Json::array();
  for (const MemoryHeapFacts& heap : facts.memory_heaps) {
    json["memory_heaps"].push_back({{"size_bytes", heap.size_bytes}, {"flags", heap.flags}});
  }
  json["memory_types"] = Json::array();
  for (const MemoryTypeFacts& type : facts.memory_types) {
    json["memory_types"].push_back({{"heap_index", type.heap_index}, {"flags", type.flags}});
  }
  json["queue_families"] = Json::array();
  for (const QueueFamilyFacts& family : facts.queue_families) {
    json["queue_families"].push_back({{"flags", family.flags},
                                      {"queue_count", family.queue_count},
                                      {"timestamp_valid_bits", family.timestamp_valid_bits}});
  }
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

Result<DeviceFacts> DeviceFactsFromJson(std::string_view text, std::string_view origin) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) {
    return Status(StatusCode::kCorrupt,
                  fmt::format("{}: it is not JSON, as a file of device facts is", origin));
  }
  Reader reader(json, std::string(origin));
  DeviceFacts facts;
  std::string format;
  reader.Read("format", format);
  if (format != kFormat) reader.Fail(fmt::format("\"format\" is \"{}\", not \"{}\"", format, kFormat));
  reader.Read("type", facts.type);
  if (static_cast<uint32_t>(facts.type) > 4) reader.Fail("\"type\" must be 0 to 4");
  VisitDeviceFacts(facts, [&](const char* name, ClampRule, auto& value) { reader.Read(name, value); });
  ReadArray(reader, origin, "memory_heaps", facts.memory_heaps, [](Reader& item, MemoryHeapFacts& heap) {
    item.Read("size_bytes", heap.size_bytes);
    item.Read("flags", heap.flags);
  });
  ReadArray(reader, origin, "memory_types", facts.memory_types, [](Reader& item, MemoryTypeFacts& type) {
    item.Read("heap_index", type.heap_index);
    item.Read("flags", type.flags);
  });
  ReadArray(reader, origin, "queue_families", facts.queue_families,
            [](Reader& item, QueueFamilyFacts& family) {
              item.Read("flags", family.flags);
              item.Read("queue_count", family.queue_count);
              item.Read("timestamp_valid_bits", family.timestamp_valid_bits);
            });
  KVRUN_RETURN_IF_ERROR(reader.Finish());
  KVRUN_RETURN_IF_ERROR(CheckHeapIndices(facts, origin));
  return facts;
}

Status SaveDeviceFacts(const DeviceFacts& facts, const std::string& path) {
  errno = 0;
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << DeviceFactsToJson(facts);
  file.close();
  if (!file) return StatusFromErrno(errno == 0 ? EIO : errno, "cannot write device facts to " + path);
  return Status::Ok();
}

Result<DeviceFacts> LoadDeviceFacts(const std::string& path) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (file) text << file.rdbuf();
  if (!file) return StatusFromErrno(errno == 0 ? EIO : errno, "cannot read device facts from " + path);
  return DeviceFactsFromJson(text.str(), path);
}

}  // namespace kvrun
