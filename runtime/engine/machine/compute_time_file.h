// How long this machine takes for what a plan depends on, kept between runs: a plan, and so an answer, would
// be another at each start otherwise. docs/formats/compute_time.md.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "platform/base/status.h"

namespace kvrun {

// What was measured: another one in any field is measured anew.
struct ComputeKey {
  std::string work;    // "layer of a token"
  std::string device;  // with its driver, and what it computes with
  std::string model;   // its fingerprint; empty: it is the same of all
  std::string kvrun;   // version

  bool operator==(const ComputeKey&) const = default;
};

struct ComputeEntry {
  ComputeKey key;
  std::vector<double> values;  // above or at 0; what they are is the work's
  int64_t measured_s = 0;      // since 1970

  bool operator==(const ComputeEntry&) const = default;
};

// As runtime/engine/machine/measurement_file.h says of all such files.
Result<std::vector<ComputeEntry>> ReadComputeTimes(const std::string& path);
Status WriteComputeTime(const std::string& path, const ComputeEntry& entry);

// What is kept, for a day; then, and where nothing is, what `measure` says, which is kept. What is measured
// to be about the same as before counts as the same. Without a path (nothing: no folder for it) or a version
// nothing is kept.
using MeasureFn = std::function<Result<std::vector<double>>()>;
Result<std::vector<double>> KeptOrMeasured(const std::optional<std::string>& path, const ComputeKey& key,
                                           int64_t now_s, const MeasureFn& measure);

// $XDG_CACHE_HOME/kvrun/compute_time.json; nothing where there is no folder for it.
std::optional<std::string> ComputeTimesPath();

}  // namespace kvrun
