#include "apps/kvrun/bench_session.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "apps/common/failure.h"
#include "apps/common/interrupt.h"
#include "apps/kvrun/measured_session.h"

namespace kvrun::cli {
namespace {

int StopWhenAsked(void*, uint32_t, int32_t, const char*, size_t) { return Interrupted() ? 1 : 0; }

// Its last token is computed again, which warms up, too.
Json DecodeOnce(const Session& session, const std::vector<int32_t>& ids, uint32_t n_decode) {
  const std::string why_anew = FeedFrom(session, ids, ids.size() - 1);
  if (!why_anew.empty()) {
    throw Failure(KVRUN_UNSUPPORTED, fmt::format("the session cannot be measured as it lies: {}", why_anew));
  }
  kvrun_session_stats_reset(session.get());
  kvrun_generate_options options;
  kvrun_generate_options_init(&options);
  options.temperature = 0;
  options.ignore_end = 1;
  options.max_tokens = n_decode + 1;  // the first follows from what is there
  const uint32_t sequence = 0;
  kvrun_generate_result result;
  Check(kvrun_session_generate(session.get(), &sequence, 1, &options, StopWhenAsked, nullptr, &result));
  if (result.finish == KVRUN_FINISH_CANCELLED) throw Interruption();
  return SessionStats(session);
}

Json PerToken(const Json& operations, uint32_t n_decode) {
  Json per_token = Json::array();
  for (const Json& operation : operations) {
    per_token.push_back({{"name", operation["name"]},
                         {"per_token", operation["count"].get<double>() / n_decode},
                         {"ms_per_token", operation["ms"].get<double>() / n_decode}});
  }
  return per_token;
}

Json ResultOf(const SharedOptions& shared, uint32_t depth, std::vector<double> rates, const Json& stats,
              uint32_t n_decode) {
  Json result = {{"session", shared.session}, {"depth", depth}, {"prefill_tps", Json()}};
  result["decode_tps_runs"] = rates;
  const auto middle = rates.begin() + static_cast<std::ptrdiff_t>(rates.size() / 2);
  std::nth_element(rates.begin(), middle, rates.end());
  result["decode_tps"] = *middle;
  const Json kv = stats.value("kv", Json::object());
  for (const char* key : {"hit_rate", "io_hidden", "stall_ms_per_token"}) result[key] = kv.value(key, Json());
  for (const char* key : {"kv", "memory", "notes"}) result[key] = stats.value(key, Json());
  const Json operations = stats.value("operations", Json::array());
  if (!operations.empty()) result["operations"] = PerToken(operations, n_decode);
  return result;
}

}  // namespace

Json BenchSession(const Model& model, const SharedOptions& shared, uint32_t n_decode, uint32_t n_repetitions,
                  Progress* progress) {
  const MeasuredSession measured = OpenToMeasure(model, shared, n_decode + 1, progress);
  const Session& session = measured.session;
  const std::vector<int32_t>& ids = measured.ids;
  std::vector<double> rates;
  Json stats;
  for (uint32_t run = 0; run < n_repetitions; ++run) {
    stats = DecodeOnce(session, ids, n_decode);
    rates.push_back(stats.value("decode_tps", 0.0));
  }
  progress->Clear();
  return ResultOf(shared, static_cast<uint32_t>(ids.size()), std::move(rates), stats, n_decode);
}

}  // namespace kvrun::cli
