// What the C API says of a session's KV cache in JSON form: which options there are, what its budget buys,
// and what was done with it.
#pragma once

#include <cstdint>

#include "runtime/capi/border.h"
#include "runtime/kv/plan/kv_report.h"

namespace kvrun::capi {

// As kvrun_kv_options_json.
Json KvOptionsInfo();

// As kvrun_kv_plan_json.
Json KvPlanInfo(const KvPlan& plan);

// The object "kv" of kvrun_session_stats_json. decode_tokens: those that the report's time was spent on.
Json KvReportInfo(const KvReport& report, uint64_t decode_tokens, bool with_layers);

}  // namespace kvrun::capi
