// Statistics for people (standard error) and for machines (JSON).
#pragma once

#include <string>

#include "apps/common/api.h"
#include "apps/common/report.h"

namespace kvrun::cli {

// Two lines, of speed, and of memory against the KV cache's budget. `stats` as in kvrun_session_stats_json.
std::string SummaryText(const Json& stats);
// One line before these: the speed of the last turn.
std::string TurnText(const Json& stats);
// A third: why an answer of so many tokens ended, and what would let it go on.
std::string EndText(kvrun_finish finish, size_t n_tokens, uint32_t n_ctx);
// All else that is known, for --verbose. `engine_info` as in kvrun_engine_info_json.
std::string StatisticsText(const Json& stats, const Json& engine_info);
// What --profile asked for; empty without.
std::string ProfileText(const Json& stats);

// Adds prefill_tps, decode_tps, ttft_ms, device, memory, and where there are any kv and operations.
void AddStatistics(const Json& stats, const Json& engine_info, Json* object);

// Nested JSON as indented "name  value" lines.
std::string Outline(const Json& json, int indent);

}  // namespace kvrun::cli
