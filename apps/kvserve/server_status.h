// What a server says of itself: to its page, and to who collects metrics.
#pragma once

#include <string>

#include "apps/kvserve/backend.h"

namespace kvrun::serve {

// What kvrun_scheduler_json says.
Json ReportOf(const Backend& backend);

// For the page: {"model", "budget_bytes" (of all sessions that are open; null: none), "parts" [{"name",
// "bytes"}], "process_bytes", "hit_rate", "stall_ms_per_token", "read_mbps" (null: nothing is decoded from
// flash), "read_bytes", "written_bytes" (since the start), "decode_tps", "requests" [{"id", "state",
// "prompt_tokens", "read_tokens", "cached_tokens", "answer_tokens"}], "n_queued", "sessions" [{"name",
// "tokens", "bytes"}] (the longest first)}.
Json StatusOf(const std::string& model_name, const Json& report);

// In the text form of Prometheus.
std::string MetricsOf(const Json& report);

}  // namespace kvrun::serve
