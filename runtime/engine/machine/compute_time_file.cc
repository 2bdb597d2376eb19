#include "runtime/engine/machine/compute_time_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

#include "runtime/engine/machine/measurement_file.h"

namespace kvrun {
namespace {

using Json = nlohmann::json;

constexpr int64_t kFreshSeconds = 24 * 3600;
// More or less than that is another machine: what else runs on it, or how it is cooled, has changed.
constexpr double kSame = 1.25;

Json ToJson(const ComputeKey& key) {
  return {{"work", key.work}, {"device", key.device}, {"model", key.model}, {"kvrun", key.kvrun}};
}

Json ToJson(const ComputeEntry& entry) {
  return {{"key", ToJson(entry.key)}, {"values", entry.values}, {"measured_s", entry.measured_s}};
}

// Throws where something is missing or of another type.
ComputeEntry ComputeEntryIn(const Json& json) {
  const Json& key = json.at("key");
  ComputeEntry entry = {.key = {.work = key.at("work").get<std::string>(),
                                .device = key.at("device").get<std::string>(),
                                .model = key.at("model").get<std::string>(),
                                .kvrun = key.at("kvrun").get<std::string>()},
                        .values = json.at("values").get<std::vector<double>>(),
                        .measured_s = json.at("measured_s").get<int64_t>()};
  for (const double value : entry.values) {
    if (!(value >= 0.0 && value <= 1e15)) throw std::out_of_range(fmt::format("a value is {}", value));
  }
  return entry;
}

constexpr MeasurementForm kComputeForm{
    .format = "kvrun compute time",
    .version = 1,
    .holds = "times of computing",
    .known = [](const Json& json) { return ToJson(ComputeEntryIn(json)); }};

bool AreAboutTheSame(const std::vector<double>& a, const std::vector<double>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](double one, double other) {
    return std::max(one, other) <= kSame * std::min(one, other);
  });
}

}  // namespace

Result<std::vector<ComputeEntry>> ReadComputeTimes(const std::string& path) {
  KVRUN_ASSIGN_OR_RETURN(const std::vector<Json> kept, ReadMeasurements(kComputeForm, path));
  std::vector<ComputeEntry> entries;
  for (const Json& entry : kept) entries.push_back(ComputeEntryIn(entry));
  return entries;
}

Status WriteComputeTime(const std::string& path, const ComputeEntry& entry) {
  return KeepMeasurement(kComputeForm, path, ToJson(entry));
}

Result<std::vector<double>> KeptOrMeasured(const std::optional<std::string>& path, const ComputeKey& key,
                                           int64_t now_s, const MeasureFn& measure) {
  if (!path || key.kvrun.empty()) return measure();
  std::optional<ComputeEntry> kept;
  if (const Result<Json> found = FindMeasurement(kComputeForm, *path, ToJson(key)); found.ok()) {
    kept = ComputeEntryIn(*found);
    const int64_t age_s = now_s - kept->measured_s;  // a clock may have been set back
    if (age_s >= 0 && age_s < kFreshSeconds) return kept->values;
  }
  KVRUN_ASSIGN_OR_RETURN(std::vector<double> values, measure());
  if (kept && AreAboutTheSame(kept->values, values)) values = kept->values;
  // Where it cannot be kept, the next start measures again.
  (void)WriteComputeTime(*path, {key, values, now_s});
  return values;
}

std::optional<std::string> ComputeTimesPath() { return MeasurementPath("compute_time.json"); }

}  // namespace kvrun
