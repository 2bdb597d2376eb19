// What devices were measured to do, kept between runs: docs/formats/device_times.md.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "platform/base/status.h"
#include "runtime/engine/device/device_times.h"

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
  // Of the devices taken, seen since by kept: what is no surprise. A trial computes a part of the model only.
  DeviceTimes usual{.prefill_us = 1.0, .decode_us = 1.0};
  // Why these times are to be measured again; empty: they are not.
  std::string stale = {};

  bool operator==(const TimesEntry&) const = default;
};

// Of one process for another, without rounding. kInternal where the text is none of these.
std::string TimesToText(const DeviceTimes& times);
Result<DeviceTimes> TimesFromText(const std::string& text);

// Nothing where there is no folder for it.
std::optional<std::string> TimesPath();

// As runtime/engine/machine/measurement_file.h says of all such files. Times that are no times are refused.
Result<std::vector<TimesEntry>> ReadTimes(const std::string& path);
Result<TimesEntry> FindTimes(const std::string& path, const TimesKey& key);
Status WriteTimes(const std::string& path, const TimesEntry& entry);

}  // namespace kvrun
