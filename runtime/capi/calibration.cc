#include "runtime/engine/measure/calibration.h"

#include <algorithm>

#include "runtime/capi/border.h"
#include "runtime/capi/handles.h"
#include "runtime/engine/measure/calibration_time.h"

using kvrun::Status;
using kvrun::StatusCode;
using kvrun::capi::CheckNotNull;
using kvrun::capi::Guard;
using kvrun::capi::Json;

namespace {

kvrun::Result<kvrun::CalibrationOptions> Translate(const kvrun_calibrate_options& given) {
  kvrun::CalibrationOptions options;
  if (given.kind != nullptr) {
    KVRUN_ASSIGN_OR_RETURN(options.kind, kvrun::FindAdapterKind(given.kind));
  }
  options.rank = given.rank;
  options.n_ctx = given.n_ctx;
  if (given.checkpoint != nullptr) options.checkpoint_path = given.checkpoint;
  if (given.sums != nullptr) options.sums_path = given.sums;
  options.restarts = given.restart != 0;
  options.keeps_checkpoint = given.keep_checkpoint != 0;
  options.limit_s = given.max_ms / 1000.0;
  if (given.checkpoint_ms != 0) options.checkpoint_period_s = given.checkpoint_ms / 1000.0;
  if (given.n_texts > 0) {
    KVRUN_RETURN_IF_ERROR(CheckNotNull(given.texts, "texts"));
    KVRUN_RETURN_IF_ERROR(CheckNotNull(given.counts, "counts"));
  }
  for (size_t i = 0; i < given.n_texts; ++i) {
    if (given.counts[i] > 0) KVRUN_RETURN_IF_ERROR(CheckNotNull(given.texts[i], "texts[]"));
    options.texts.emplace_back(given.texts[i], given.counts[i]);
  }
  return options;
}

kvrun::Result<kvrun_calibrate_options> Read(const kvrun_calibrate_options* options) {
  kvrun_calibrate_options given;
  kvrun_calibrate_options_init(&given);
  KVRUN_RETURN_IF_ERROR(kvrun::capi::ReadOptions(options, "kvrun_calibrate_options", &given));
  return given;
}

Json Info(const kvrun::Calibration& calibration) {
  const kvrun::Adapter& adapter = calibration.adapter;
  Json layers = Json::array();
  for (const kvrun::LayerAdapter& layer : adapter.layers) layers.push_back({{"energy", layer.energy}});
  return {{"kind", kvrun::AdapterKindName(adapter.kind)},
          {"rank", adapter.layers.front().rank},
          {"n_tokens", calibration.n_tokens},
          {"n_tokens_given", calibration.n_tokens_given},
          {"made_from", adapter.made_from},
          {"n_pieces", calibration.n_pieces},
          {"resumed_tokens", calibration.n_resumed_tokens},
          {"notes", calibration.notes},
          {"fingerprint", adapter.fingerprint},
          {"layers", layers}};
}

// What is asked about a calibration before it runs.
kvrun::Result<kvrun::CalibrationOptions> ReadCalibration(const kvrun_engine* engine,
                                                         const kvrun_calibrate_options* options) {
  KVRUN_RETURN_IF_ERROR(CheckNotNull(engine, "engine"));
  KVRUN_RETURN_IF_ERROR(CheckNotNull(options, "options"));
  KVRUN_ASSIGN_OR_RETURN(const kvrun_calibrate_options given, Read(options));
  return Translate(given);
}

}  // namespace

extern "C" {

void kvrun_calibrate_options_init(kvrun_calibrate_options* options) {
  if (options == nullptr) return;
  *options = {};
  options->struct_size = sizeof(*options);
}

kvrun_status kvrun_calibrate(kvrun_engine* engine, const kvrun_calibrate_options* options, const char* path,
                             char** json) {
  return Guard([&]() -> Status {
    if (json != nullptr) *json = nullptr;
    KVRUN_RETURN_IF_ERROR(CheckNotNull(engine, "engine"));
    KVRUN_RETURN_IF_ERROR(CheckNotNull(options, "options"));
    KVRUN_RETURN_IF_ERROR(CheckNotNull(path, "path"));
    KVRUN_ASSIGN_OR_RETURN(const kvrun_calibrate_options given, Read(options));
    KVRUN_ASSIGN_OR_RETURN(const kvrun::CalibrationOptions calibrate_options, Translate(given));
    const auto progress =
        kvrun::capi::BindProgress(given.progress, given.progress_user, KVRUN_PHASE_CALIBRATE);
    KVRUN_ASSIGN_OR_RETURN(const kvrun::Calibration calibration,
                           engine->engine->Calibrate(calibrate_options, path, progress));
    return json == nullptr ? Status::Ok() : kvrun::capi::CopyOut(Info(calibration), json);
  });
}

kvrun_status kvrun_calibrate_time_json(kvrun_engine* engine, const kvrun_calibrate_options* options,
                                       const kvrun_reuse_options* reuse, char** json) {
  return Guard([&]() -> Status {
    KVRUN_RETURN_IF_ERROR(CheckNotNull(json, "json"));
    *json = nullptr;
    KVRUN_ASSIGN_OR_RETURN(const kvrun::CalibrationOptions calibrate_options,
                           ReadCalibration(engine, options));
    kvrun_reuse_options given_reuse;
    kvrun_reuse_options_init(&given_reuse);
    KVRUN_RETURN_IF_ERROR(kvrun::capi::ReadOptions(reuse, "kvrun_reuse_options", &given_reuse));
    KVRUN_ASSIGN_OR_RETURN(
        const kvrun::CalibrationTimes times,
        engine->engine->TimeCalibration(calibrate_options, reuse != nullptr, given_reuse.skip_layers == 0,
                                        calibrate_options.limit_s));
    const bool is_limited = calibrate_options.limit_s > 0.0;
    const auto sums_ms = static_cast<uint32_t>(std::clamp(times.sums_s * 1e3, 1.0, 4e9));
    return kvrun::capi::CopyOut(Json{{"n_ctx", times.n_ctx},
                                     {"sums_ms", is_limited ? sums_ms : 0},
                                     {"later_s", times.later_s},
                                     {"seconds", times.seconds},
                                     {"all_seconds", times.all_seconds}},
                                json);
  });
}

kvrun_status kvrun_calibrate_checkpoint_json(kvrun_engine* engine, const kvrun_calibrate_options* options,
                                             char** json) {
  return Guard([&]() -> Status {
    KVRUN_RETURN_IF_ERROR(CheckNotNull(json, "json"));
    *json = nullptr;
    KVRUN_ASSIGN_OR_RETURN(const kvrun::CalibrationOptions calibrate_options,
                           ReadCalibration(engine, options));
    const kvrun::Model& model = engine->engine->model();
    KVRUN_ASSIGN_OR_RETURN(const kvrun::CalibrationPlan plan,
                           kvrun::PlanCalibration(calibrate_options, model.config));
    KVRUN_ASSIGN_OR_RETURN(const kvrun::FoundCheckpoint found,
                           kvrun::FindCheckpoint(model, calibrate_options, plan));
    return kvrun::capi::CopyOut(Json{{"resumed_tokens", found.sums ? found.sums->n_tokens : 0},
                                     {"n_tokens", plan.n_tokens},
                                     {"note", found.note}},
                                json);
  });
}

}  // extern "C"
