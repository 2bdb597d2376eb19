// How often what is selected is in memory already: measured after a calibration, and shown.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/common/shared_options.h"

namespace kvrun::cli {

// Of the longest text; into the adapter's file (kvrun_measure_reuse). What fails or is interrupted leaves the
// adapter as it was. `folder`: for KV; empty: where sessions keep it. `max_ms`: 0: no limit.
Json MeasureReuseRates(const LoadedEngine& loaded, const std::string& adapter,
                       const std::vector<std::vector<int32_t>>& texts, uint32_t n_ctx,
                       const std::string& folder, bool skips_layers, uint32_t max_ms, Progress* progress);

// Of lru, at the number of selected entries nearest to the paper's 400: a row for each size of groups, a
// column for each capacity. `adapter["reuse"]`: as MeasureReuseRates answers; none: nothing is said.
std::string ReuseTable(const Json& adapter);

}  // namespace kvrun::cli
