#include "runtime/engine/measure/needles.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "runtime/capi/border.h"
#include "runtime/capi/handles.h"
#include "runtime/capi/kv_info.h"
#include "runtime/capi/session_options.h"
#include "runtime/engine/measure/needle_evaluation.h"

using kvrun::Status;
using kvrun::capi::CheckNotNull;
using kvrun::capi::Guard;
using kvrun::capi::Json;

namespace {

double Share(const std::vector<bool>& right) {
  return static_cast<double>(std::count(right.begin(), right.end(), true)) /
         static_cast<double>(right.size());
}

// Binomial: as if no answer depended on another.
double ErrorOfShare(const std::vector<bool>& right) {
  const double share = Share(right);
  return std::sqrt(share * (1.0 - share) / static_cast<double>(right.size()));
}

Json ResultInfo(const char* config, const kvrun::NeedleRun& run, const std::vector<bool>& full) {
  if (!run.status.ok()) return {{"config", config}, {"error", run.status.message()}};
  return {{"config", config},
          {"answered", Share(run.right)},
          {"answered_error", ErrorOfShare(run.right)},
          {"answered_full", Share(full)},
          {"answered_full_error", ErrorOfShare(full)},
          {"right", run.right},
          {"right_full", full},
          {"kv", kvrun::capi::KvReportInfo(run.report, run.n_steps, false)},
          {"notes", run.notes}};
}

Status AskNeedles(const kvrun_engine& engine, const kvrun_needle_options& given, std::span<const int32_t> ids,
                  Json* results) {
  std::vector<kvrun::NeedleRun> runs(given.n_configs);
  for (size_t i = 0; i < given.n_configs; ++i) {
    KVRUN_RETURN_IF_ERROR(CheckNotNull(given.configs[i], "configs[]"));
    runs[i].settings = kvrun::capi::UserSettings();
    runs[i].status = kvrun::ParseKvOptions(given.configs[i], &runs[i].settings);
  }
  const auto progress = kvrun::capi::BindProgress(given.progress, given.progress_user, KVRUN_PHASE_EVALUATE);
  std::vector<bool> full;
  const auto done = [&](size_t i) {
    if (given.result == nullptr) return;
    given.result(given.result_user, kvrun::capi::ToText(ResultInfo(given.configs[i], runs[i], full)).c_str());
  };
  for (size_t i = 0; i < runs.size(); ++i) {
    if (!runs[i].status.ok()) done(i);
  }
  const kvrun::NeedleOptions options = {
      .n_ctx = given.n_ctx,
      .n_needles = given.n_needles,
      .n_per_document = given.n_per_document == 0 ? kvrun::kNeedlesPerDocument : given.n_per_document,
      .n_copies = given.n_copies == 0 ? kvrun::kNeedleCopies : given.n_copies,
      .seed = given.seed,
      .n_at_once = std::max(given.n_at_once, 1U)};
  KVRUN_RETURN_IF_ERROR(engine.engine->AskForNeedles(ids, options, {&full, runs, done}, progress));
  for (size_t i = 0; i < runs.size(); ++i) results->push_back(ResultInfo(given.configs[i], runs[i], full));
  return Status::Ok();
}

}  // namespace

extern "C" {

void kvrun_needle_options_init(kvrun_needle_options* options) {
  if (options == nullptr) return;
  *options = {};
  options->struct_size = sizeof(*options);
}

kvrun_status kvrun_needles_json(kvrun_engine* engine, const kvrun_needle_options* options, const int32_t* ids,
                                size_t count, char** json) {
  return Guard([&]() -> Status {
    KVRUN_RETURN_IF_ERROR(CheckNotNull(json, "json"));
    *json = nullptr;
    KVRUN_RETURN_IF_ERROR(CheckNotNull(engine, "engine"));
    KVRUN_RETURN_IF_ERROR(CheckNotNull(options, "options"));
    KVRUN_RETURN_IF_ERROR(CheckNotNull(ids, "ids"));
    kvrun_needle_options given;
    kvrun_needle_options_init(&given);
    KVRUN_RETURN_IF_ERROR(kvrun::capi::ReadOptions(options, "kvrun_needle_options", &given));
    if (given.n_configs > 0) KVRUN_RETURN_IF_ERROR(CheckNotNull(given.configs, "configs"));
    Json results = Json::array();
    KVRUN_RETURN_IF_ERROR(AskNeedles(*engine, given, {ids, count}, &results));
    return kvrun::capi::CopyOut(results, json);
  });
}

}  // extern "C"
