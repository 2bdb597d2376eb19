#include "offline/step_sampler.h"

#include <algorithm>
#include <array>

#include "platform/base/random.h"

namespace kvrun::offline {
namespace {

constexpr uint32_t kStepsPerRun = 16;
constexpr size_t kFewestPerSetting = 4;
constexpr std::array kShares = {1.0, 0.9, 0.8, 0.7, 0.5};
// Of a layer and a sequence, in a step: two to three times what a text asks for. Where more is read steps
// take several times as long, by laws of their own, and nothing that is chosen is near.
constexpr double kMostLoads = 100.0;
constexpr size_t kPointsPerPool = 4;  // one of so many reads into the pool, where candidates do
constexpr int kTries = 50;

double LoadsOf(const SizedCandidate& sized, double share, uint32_t batch) {
  const KvPlan& plan = sized.plan;
  const double n_free = FreeGroups(plan);
  const double n_slots = FreeSlots(plan);
  return plan.n_streams * (n_free - share * std::min(n_free, n_slots)) / batch;
}

// Those that read into the pool, or the others; all where there are none such.
std::vector<const SizedCandidate*> Pick(const std::vector<SizedCandidate>& candidates, bool pool) {
  std::vector<const SizedCandidate*> picked;
  for (const SizedCandidate& one : candidates) {
    if ((one.candidate.pool_entries > 0) == pool) picked.push_back(&one);
  }
  if (picked.empty() && !candidates.empty()) return Pick(candidates, !pool);
  return picked;
}

}  // namespace

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

std::vector<StepPoint> SpreadPoints(const std::vector<SearchSetting>& settings,
                                    const std::vector<std::vector<SizedCandidate>>& candidates, size_t count,
                                    uint64_t seed) {
  std::vector<StepPoint> points;
  if (settings.empty()) return points;
  const size_t per_setting = std::max(kFewestPerSetting, (count + settings.size() - 1) / settings.size());
  Random random(seed);
  for (size_t i = 0; i < settings.size(); ++i) {
    if (candidates[i].empty()) continue;
    const std::vector<const SizedCandidate*> slots = Pick(candidates[i], false);
    const std::vector<const SizedCandidate*> pools = Pick(candidates[i], true);
    for (size_t k = 0; k < per_setting; ++k) {
      const double share = kShares[k % kShares.size()];
      const bool is_pool = k % kPointsPerPool == kPointsPerPool - 1;
      const std::vector<const SizedCandidate*>& among = is_pool ? pools : slots;
      const SizedCandidate* sized = nullptr;
      for (int n_tried = 0; n_tried < kTries; ++n_tried) {
        sized = among[random.Below(static_cast<uint32_t>(among.size()))];
        if (LoadsOf(*sized, share, settings[i].batch) <= kMostLoads) break;
      }
      points.push_back({settings[i], *sized, share});
    }
  }
  return points;
}

std::vector<StepPoint> InTurns(const std::vector<std::vector<StepPoint>>& points) {
  size_t n_most = 0;
  for (const auto& of_setting : points) n_most = std::max(n_most, of_setting.size());
  std::vector<StepPoint> turns;
  for (size_t k = 0; k < n_most; ++k) {
    for (const auto& of_setting : points) {
      if (k < of_setting.size()) turns.push_back(of_setting[k]);
    }
  }
  return turns;
}

void SteadyClock::Refer(double reference_ms) { references_.push_back(reference_ms); }

double SteadyClock::Slowness(size_t k) const {
  if (references_.empty()) return 1.0;
  const size_t n_before = std::clamp<size_t>(noted_[k], 1, references_.size());
  const double before = references_[n_before - 1];
  const double after = references_[std::min(n_before, references_.size() - 1)];
  return (before + after) / 2 / Median(references_);
}

Result<KvSettings> SettingsOf(const NamedKvOptions& options, const KvStorageOptions& storage) {
  KvSettings settings;
  settings.storage = storage;
  KVRUN_RETURN_IF_ERROR(SetKvOption("method", "kvswap", &settings));
  for (const auto& [name, value] : options) KVRUN_RETURN_IF_ERROR(SetKvOption(name, value, &settings));
  return settings;
}

Result<StepSample> MeasureStep(Engine& engine, const KvStorageOptions& storage, const StepPoint& point,
                               uint32_t n_runs, const std::function<bool()>& is_cancelled) {
  BenchmarkOptions options;
  KVRUN_ASSIGN_OR_RETURN(options.kv, SettingsOf(point.sized.options, storage));
  options.kv.storage.adapter_path.clear();  // random keys have none
  options.kv.kv.adapter_from_file = false;
  const uint32_t n_decode = std::min(kStepsPerRun, point.setting.ctx / 2);
  options.depths = {point.setting.ctx - n_decode};
  options.n_decode = n_decode;
  options.n_sequences = point.setting.batch;
  options.n_repetitions = n_runs;
  options.fill_random = true;
  options.hit_rate = point.repeated_share;
  options.weight_reads = false;
  KVRUN_ASSIGN_OR_RETURN(const std::vector<BenchmarkResult> results,
                         engine.RunBenchmark(options, [&](uint64_t, uint64_t) { return is_cancelled(); }));
  const BenchmarkResult& result = results.front();
  StepSample sample;
  sample.step_ms = 1e3 * point.setting.batch / Median(result.decode_tps);
  const KvStats& stats = result.report->stats;
  const double hit_rate = stats.chosen_groups == 0
                              ? 1.0
                              : static_cast<double>(stats.hit_groups + stats.stand_in_groups) /
                                    static_cast<double>(stats.chosen_groups);
  sample.point = PointOf(point.setting, point.sized.plan, {.hit_rate = hit_rate});
  sample.point.loads =
      static_cast<double>(stats.chosen_groups - stats.hit_groups - stats.stand_in_groups) / n_decode;
  sample.point.reads =
      std::min(sample.point.loads, static_cast<double>(result.report->store.reads) / n_decode);
  return sample;
}

}  // namespace kvrun::offline
