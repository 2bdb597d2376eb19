// Measures whole decoding steps at candidates of a search, with random KV and replayed choices: what a
// TimeModel is fitted to. Source: KVSwap, appendix A.3.
#pragma once

#include <cstdint>
#include <vector>

#include "offline/candidate.h"
#include "offline/probe.h"
#include "offline/time_model.h"
#include "runtime/engine/engine.h"
#include "runtime/kv/kv_options.h"

namespace kvrun::offline {

struct StepPoint {
  SearchSetting setting;
  SizedCandidate sized;
  double repeated_share = 1.0;  // of chosen groups, those that the step before has chosen too
};

// `count` of them in all, spread over the settings (at least 4 of each): random candidates, and shares from
// 0.5 to 1. The same seed gives the same points. `candidates`: of each setting.
std::vector<StepPoint> SpreadPoints(const std::vector<SearchSetting>& settings,
                                    const std::vector<std::vector<SizedCandidate>>& candidates, size_t count,
                                    uint64_t seed);

// Milliseconds are the median of `n_runs` runs of 16 steps. The reads are counted as they were made.
Result<StepSample> MeasureStep(Engine& engine, const KvStorageOptions& storage, const StepPoint& point,
                               uint32_t n_runs);

// As a session would be given it, by name: options, and where KV lies.
Result<KvSettings> SettingsOf(const NamedKvOptions& options, const KvStorageOptions& storage);

}  // namespace kvrun::offline
