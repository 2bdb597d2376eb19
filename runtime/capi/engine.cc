#include "runtime/engine/engine.h"

#include <memory>
#include <string>

#include "runtime/capi/border.h"
#include "runtime/capi/handles.h"

using kvrun::Status;
using kvrun::capi::CheckNotNull;
using kvrun::capi::Guard;

static_assert(KVRUN_MAX_THREADS == kvrun::kMaxThreads);

extern "C" {

void kvrun_engine_options_init(kvrun_engine_options* options) {
  if (options == nullptr) return;
  *options = {};
  options->struct_size = sizeof(*options);
}

kvrun_status kvrun_engine_create(const kvrun_model* model, const kvrun_engine_options* options,
                                 kvrun_engine** engine) {
  return Guard([&]() -> Status {
    KVRUN_RETURN_IF_ERROR(CheckNotNull(engine, "engine"));
    *engine = nullptr;
    KVRUN_RETURN_IF_ERROR(CheckNotNull(model, "model"));
    KVRUN_RETURN_IF_ERROR(model->model->computable);
    kvrun_engine_options given;
    kvrun_engine_options_init(&given);
    KVRUN_RETURN_IF_ERROR(kvrun::capi::ReadOptions(options, "kvrun_engine_options", &given));
    kvrun::EngineOptions engine_options;
    if (given.device != nullptr && *given.device != '\0') engine_options.device.device = given.device;
    engine_options.device.validation = given.validation != 0;
    engine_options.device.profile = given.profile != 0;
    engine_options.device.exact_activations = given.exact_activations != 0;
    engine_options.device.n_threads = given.n_threads;
    if (given.instruction_set != nullptr) engine_options.device.instruction_set = given.instruction_set;
    engine_options.device.remeasure = given.remeasure != 0;
    engine_options.version = kvrun_version();
    engine_options.progress =
        kvrun::capi::BindProgress(given.progress, given.progress_user, KVRUN_PHASE_LOAD);
    KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<kvrun::Engine> created,
                           kvrun::Engine::Create(*model->model, engine_options));
    *engine = new kvrun_engine{std::move(created), given.profile != 0, given.exact_activations != 0};
    return Status::Ok();
  });
}

void kvrun_engine_destroy(kvrun_engine* engine) { delete engine; }

kvrun_status kvrun_engine_info_json(const kvrun_engine* engine, char** json) {
  return Guard([&]() -> Status {
    KVRUN_RETURN_IF_ERROR(CheckNotNull(json, "json"));
    *json = nullptr;
    KVRUN_RETURN_IF_ERROR(CheckNotNull(engine, "engine"));
    const kvrun::DeviceInfo& info = engine->engine->device().info();
    const kvrun::capi::Json object = {{"device", info.name},
                                      {"kind", info.kind},
                                      {"driver", info.driver},
                                      {"is_cpu", info.is_cpu},
                                      {"plan", info.plan},
                                      {"notes", engine->engine->DeviceNotes()},
                                      {"details", engine->engine->DeviceDetails()}};
    return kvrun::capi::CopyOut(object, json);
  });
}

}  // extern "C"
