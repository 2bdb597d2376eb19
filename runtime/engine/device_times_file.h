// What devices were measured to do, kept between runs: docs/formats/device_times.md.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "platform/base/status.h"
#include "runtime/engine/device_times.h"

namespace kvrun {

// What was measured: another one in any field is measured anew.
struct TimesKey {
  std::string gpu;
  std::string driver;  // with its version
  std::string cpu;
  uint32_t n_threads = 0;
  bool exact_activations = false;
  std::string model;  // its fingerprint
  std::string kvrun;  // version

  bool operator==(const TimesKey&) const = default;
};

struct TimesEntry {
  TimesKey key;
  DeviceTimes cpu;
  DeviceTimes gpu;

  bool operator==(const TimesEntry&) const = default;
};

inline constexpr size_t kMaxTimesEntries = 64;

// The file's text and what it says. Reading refuses what is no such text, and times that are no times.
std::string TimesToJson(const std::vector<TimesEntry>& entries);
Result<std::vector<TimesEntry>> TimesFromJson(std::string_view text);

// Nothing where there is no folder for it.
std::optional<std::string> TimesPath();
// kNotFound where there is no file.
Result<std::vector<TimesEntry>> ReadTimes(const std::string& path);
// Puts an entry last in place of one with its key, and drops the first where there are too many. What cannot
// be read is replaced. The folder is made.
Status WriteTimes(const std::string& path, const TimesEntry& entry);

}  // namespace kvrun
