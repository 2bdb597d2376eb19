// What was measured once and is kept between runs: entries, each with a key, in a JSON file
// {"format": .., "version": .., "entries": [{"key": {..}, ..}, ..]}.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "platform/base/status.h"

namespace kvrun {

inline constexpr size_t kMaxMeasurements = 64;

// One kind of such a file.
struct MeasurementForm {
  std::string_view format;
  uint32_t version = 1;
  std::string_view holds;  // for messages: "speeds of storage"
  // An entry with what this kvrun knows of it. Throws where something is missing or of another type.
  nlohmann::json (*known)(const nlohmann::json& entry);
};

// $XDG_CACHE_HOME/kvrun/NAME; nothing where there is no folder for it.
std::optional<std::string> MeasurementPath(std::string_view name);

// kNotFound where there is no file. A file is refused as a whole: one bad entry, and nothing counts.
Result<std::vector<nlohmann::json>> ReadMeasurements(const MeasurementForm& form, const std::string& path);

// kNotFound where there is none with that key. Bytes of the key that are no UTF-8 are compared as they were
// written: repaired.
Result<nlohmann::json> FindMeasurement(const MeasurementForm& form, const std::string& path,
                                       const nlohmann::json& key);

// Puts an entry last in place of one with its key, and drops the first where there are too many. What cannot
// be read is replaced. The folder is made.
// Where several processes (or threads) do so at the same time, a reader always sees the whole file of one of
// them. Another's entry may be lost; what it says is then measured again.
Status KeepMeasurement(const MeasurementForm& form, const std::string& path, const nlohmann::json& entry);

}  // namespace kvrun
