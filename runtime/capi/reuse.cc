#include "runtime/capi/border.h"
#include "runtime/capi/handles.h"
#include "runtime/engine/measure/reuse_trace.h"

using kvrun::Status;
using kvrun::capi::CheckNotNull;
using kvrun::capi::Guard;
using kvrun::capi::Json;

namespace {

Json Info(const kvrun::ReuseMeasurement& measured) {
  Json rates = Json::array();
  for (const kvrun::ReuseRate& row : measured.rates) {
    rates.push_back({{"policy", row.policy},
                     {"group", row.group_tokens},
                     {"select", row.select_entries},
                     {"ctx", row.n_ctx},
                     {"capacity", row.reuse_groups},
                     {"rate", row.rate}});
  }
  Json info = {{"n_ctx", measured.n_ctx}, {"n_steps", measured.n_steps}, {"rank", measured.rank}};
  if (!measured.note.empty()) info["note"] = measured.note;
  info["rates"] = rates;
  info["measured_on"] = measured.measured_on;
  info["left_out"] = measured.left_out;
  Json layers = Json::array();
  for (size_t i = 0; i < measured.layer_kls.size(); ++i) {
    layers.push_back({{"kl", measured.layer_kls[i]}, {"share", measured.layer_shares[i]}});
  }
  info["layers"] = layers;
  return info;
}

}  // namespace

extern "C" {

void kvrun_reuse_options_init(kvrun_reuse_options* options) {
  if (options == nullptr) return;
  *options = {};
  options->struct_size = sizeof(*options);
}

kvrun_status kvrun_measure_reuse(kvrun_engine* engine, const kvrun_reuse_options* options,
                                 const char* adapter_path, const int32_t* ids, size_t count, char** json) {
  return Guard([&]() -> Status {
    if (json != nullptr) *json = nullptr;
    KVRUN_RETURN_IF_ERROR(CheckNotNull(engine, "engine"));
    KVRUN_RETURN_IF_ERROR(CheckNotNull(adapter_path, "adapter_path"));
    if (count > 0) KVRUN_RETURN_IF_ERROR(CheckNotNull(ids, "ids"));
    kvrun_reuse_options given;
    kvrun_reuse_options_init(&given);
    KVRUN_RETURN_IF_ERROR(kvrun::capi::ReadOptions(options, "kvrun_reuse_options", &given));
    kvrun::ReuseOptions reuse;
    reuse.n_ctx = given.n_ctx;
    if (given.folder != nullptr) reuse.storage.folder = given.folder;
    reuse.storage.allow_tmpfs = given.allow_tmpfs != 0;
    reuse.measures_layers = given.skip_layers == 0;
    reuse.limit_s = given.max_ms / 1000.0;
    const auto progress =
        kvrun::capi::BindProgress(given.progress, given.progress_user, KVRUN_PHASE_EVALUATE);
    KVRUN_ASSIGN_OR_RETURN(
        const kvrun::ReuseMeasurement measured,
        engine->engine->MeasureReuse(adapter_path, std::span<const int32_t>(ids, count), reuse, progress));
    return json == nullptr ? Status::Ok() : kvrun::capi::CopyOut(Info(measured), json);
  });
}

}  // extern "C"
