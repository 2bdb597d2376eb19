// Measures whole decoding steps at candidates of a search, with random KV and replayed choices: what a
// TimeModel is fitted to. Source: KVSwap, appendix A.3.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "offline/candidate.h"
#include "offline/probe.h"
#include "offline/time_model.h"
#include "runtime/engine/engine.h"
#include "runtime/kv/planner/kv_options.h"

namespace kvrun::offline {

struct StepPoint {
  SearchSetting setting;
  SizedCandidate sized;
  double repeated_share = 1.0;  // of chosen groups, those that the step before has chosen too
};

// `count` of them in all, spread over the settings (at least 4 of each): random candidates, and shares from
// 0.5 to 1, which together read no more than a few times what texts make them read, where there are such.
// The same seed gives the same points. `candidates`: of each setting.
std::vector<StepPoint> SpreadPoints(const std::vector<SearchSetting>& settings,
                                    const std::vector<std::vector<SizedCandidate>>& candidates, size_t count,
                                    uint64_t seed);

// Each setting's points, one of each in turns: time or a count may end them anywhere.
std::vector<StepPoint> InTurns(const std::vector<std::vector<StepPoint>>& points);

// Milliseconds are the median of `n_runs` runs of 16 steps. The reads are counted as they were made.
// `is_cancelled` is asked at each step; kCancelled where it says so.
Result<StepSample> MeasureStep(Engine& engine, const KvStorageOptions& storage, const StepPoint& point,
                               uint32_t n_runs, const std::function<bool()>& is_cancelled);

// Of at least one value; of an even number the upper middle.
double Median(std::vector<double> values);

// A machine that others use is now faster, now slower. One point measured again and again between others says
// how much slower than at its usual it was around each of them.
class SteadyClock {
 public:
  void Refer(double reference_ms);                       // the same point, once more
  void Note() { noted_.push_back(references_.size()); }  // another point was measured
  // Around the k-th noted point: the mean of the references before and after it, relative to the median of
  // all.
  double Slowness(size_t k) const;

 private:
  std::vector<double> references_;
  std::vector<size_t> noted_;  // how many references were before it
};

// As a session would be given it, by name: options, and where KV lies.
Result<KvSettings> SettingsOf(const NamedKvOptions& options, const KvStorageOptions& storage);

}  // namespace kvrun::offline
