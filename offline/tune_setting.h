// What is asked of a tuning, made definite: budgets in bytes, settings of the search, the adapter.
#pragma once

#include <optional>
#include <vector>

#include "offline/tune.h"
#include "runtime/kv/math/adapter.h"
#include "runtime/kv/planner/kv_options.h"
#include "runtime/model/model.h"

namespace kvrun::offline {

// Each number alone.
Status CheckTuneNumbers(const TuneOptions& options);
std::vector<uint32_t> Distinct(std::vector<uint32_t> values);

// Nothing where no path is given. Another model's is refused.
Result<std::optional<Adapter>> TuningAdapter(const Model& model, const std::string& path);

// One for each context and batch size; a budget that one of them cannot be had with is kOutOfMemory.
// `engine`: its device says how much a budget selects; null where there is none yet.
Result<std::vector<SearchSetting>> SearchSettings(const Model& model, const TuneOptions& options,
                                                  const KvStorageOptions& storage,
                                                  const std::optional<Adapter>& adapter, Engine* engine);

}  // namespace kvrun::offline
