// Statistics for people (standard error) and for machines (JSON).
#pragma once

#include <string>

#include "apps/common/api.h"
#include "apps/common/report.h"

namespace kvrun::cli {

// `stats` as in kvrun_session_stats_json, `engine_info` as in kvrun_engine_info_json.
std::string StatisticsText(const Json& stats, const Json& engine_info);

// Adds prefill_tps, decode_tps, ttft_ms, device, memory, and where there are any kv and operations.
void AddStatistics(const Json& stats, const Json& engine_info, Json* object);

// Nested JSON as indented "name  value" lines.
std::string Outline(const Json& json, int indent);

}  // namespace kvrun::cli
