#include "runtime/engine/device/device_times_file.h"

#include <fmt/format.h>

#include <stdexcept>

#include "runtime/engine/machine/measurement_file.h"

namespace kvrun {
namespace {

using Json = nlohmann::json;

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

Json ToJson(const TimesEntry& entry) {
  Json json = {{"key", ToJson(entry.key)}, {"cpu", ToJson(entry.cpu)}, {"gpu", ToJson(entry.gpu)}};
  if (entry.usual != TimesEntry().usual) {
    json["usual"] = {{"prefill", entry.usual.prefill_us}, {"decode", entry.usual.decode_us}};
  }
  if (!entry.stale.empty()) json["stale"] = entry.stale;
  return json;
}

// Readers throw where something is missing or of another type.
double TimeIn(const Json& json, const char* name) {
  const double us = json.at(name).get<double>();
  if (!(us >= 1e-3 && us <= 1e12)) throw std::out_of_range(fmt::format("{} is {}", name, us));
  return us;
}

// Of a file that anyone may have written: a number beyond all integers is one too.
uint32_t CountIn(const Json& json) {
  if (!json.is_number_unsigned() || json.get<uint64_t>() > UINT32_MAX) {
    throw std::out_of_range(fmt::format("{} is no count", json.dump()));
  }
  return json.get<uint32_t>();
}

DeviceTimes TimesIn(const Json& json) {
  return {.prefill_us = TimeIn(json, "prefill_us"), .decode_us = TimeIn(json, "decode_us")};
}

TimesEntry EntryIn(const Json& json) {
  const Json& key = json.at("key");
  TimesEntry entry;
  if (const auto usual = json.find("usual"); usual != json.end()) {
    entry.usual = {.prefill_us = TimeIn(*usual, "prefill"), .decode_us = TimeIn(*usual, "decode")};
  }
  if (const auto stale = json.find("stale"); stale != json.end()) entry.stale = stale->get<std::string>();
  return {.key = {.gpu = key.at("gpu").get<std::string>(),
                  .driver = key.at("driver").get<std::string>(),
                  .cpu = key.at("cpu").get<std::string>(),
                  .n_threads = CountIn(key.at("threads")),
                  .exact_activations = key.at("exact_activations").get<bool>(),
                  .model = key.at("model").get<std::string>(),
                  .kvrun = key.at("kvrun").get<std::string>()},
          .cpu = TimesIn(json.at("cpu")),
          .gpu = TimesIn(json.at("gpu")),
          .usual = entry.usual,
          .stale = entry.stale};
}

constexpr MeasurementForm kForm{
    .format = "kvrun device times", .version = 1, .holds = "times of devices", .known = [](const Json& json) {
      return ToJson(EntryIn(json));
    }};

}  // namespace

std::string TimesToText(const DeviceTimes& times) { return ToJson(times).dump(); }

Result<DeviceTimes> TimesFromText(const std::string& text) {
  try {
    return TimesIn(Json::parse(text));
  } catch (const std::exception&) {
    return Status(StatusCode::kInternal,
                  "the measured times of a device cannot be read: a fault in kvrun, please report it");
  }
}

std::optional<std::string> TimesPath() { return MeasurementPath("device_times.json"); }

Result<std::vector<TimesEntry>> ReadTimes(const std::string& path) {
  KVRUN_ASSIGN_OR_RETURN(const std::vector<Json> kept, ReadMeasurements(kForm, path));
  std::vector<TimesEntry> entries;
  for (const Json& entry : kept) entries.push_back(EntryIn(entry));
  return entries;
}

Result<TimesEntry> FindTimes(const std::string& path, const TimesKey& key) {
  KVRUN_ASSIGN_OR_RETURN(const Json entry, FindMeasurement(kForm, path, ToJson(key)));
  return EntryIn(entry);
}

Status WriteTimes(const std::string& path, const TimesEntry& entry) {
  return KeepMeasurement(kForm, path, ToJson(entry));
}

}  // namespace kvrun
