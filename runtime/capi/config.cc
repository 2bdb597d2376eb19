#include <fmt/format.h>

#include <string>

#include "platform/base/units.h"
#include "runtime/capi/border.h"
#include "runtime/capi/handles.h"
#include "runtime/engine/config/config_file.h"
#include "runtime/engine/machine/machine.h"
#include "runtime/engine/session/context_length.h"
#include "runtime/engine/text/utf8.h"

using kvrun::Status;
using kvrun::StatusCode;
using kvrun::capi::CheckNotNull;
using kvrun::capi::Guard;
using kvrun::capi::Json;

namespace {

kvrun::Result<kvrun::ConfigTarget> TargetOf(const kvrun::Model& model, const kvrun_engine* engine,
                                            const kvrun_config_options& options, bool lies_on_flash) {
  kvrun::ConfigTarget target;
  KVRUN_ASSIGN_OR_RETURN(target.model_fingerprint, model.Fingerprint());
  target.cpu = kvrun::RepairedUtf8(kvrun::CpuName());  // names are as a config has them
  if (lies_on_flash) target.storage = kvrun::StorageName(options.kv_dir == nullptr ? "" : options.kv_dir);
  if (engine == nullptr) return target;
  const kvrun::DeviceInfo& info = engine->engine->device().info();
  target.device = kvrun::RepairedUtf8(info.name);
  target.driver = kvrun::RepairedUtf8(info.driver);
  target.device_is_cpu = info.is_cpu;
  target.exact_activations = engine->exact_activations;
  return target;
}

std::string Sequences(uint32_t n) { return kvrun::Counted(n, "sequence"); }

Json SolutionInfo(const kvrun::ConfigSolution& solution) {
  const auto figure = [](double value) { return value > 0.0 ? Json(value) : Json(); };
  return {{"batch", solution.batch},
          {"ctx", solution.ctx},
          {"budget_bytes", solution.budget_bytes},
          {"predicted_ms", figure(solution.predicted_ms)},
          {"measured_ms", figure(solution.measured_ms)},
          {"kl", figure(solution.kl)},
          {"bound", solution.bound.empty() ? Json() : Json(solution.bound)}};
}

Json Info(const kvrun::ChosenSolution& chosen, const kvrun::ConfigFit& fit, uint32_t n_sequences,
          uint32_t n_ctx) {
  Json options = Json::array();
  for (const auto& [name, value] : chosen.options) options.push_back({{"name", name}, {"value", value}});
  Json notes = Json::array();
  for (const std::string& reason : fit.reasons) {
    notes.push_back(kvrun::MessageText(reason) + ": taken all the same");
  }
  for (const std::string& note : fit.notes) notes.push_back(kvrun::MessageText(note));
  if (!chosen.is_exact) {
    notes.push_back(
        fmt::format("it was tuned for {} tokens, {}, which is the nearest that it has to {} tokens, {}",
                    chosen.solution->ctx, Sequences(chosen.solution->batch), n_ctx, Sequences(n_sequences)));
  }
  return {{"kv_options", options},
          {"exact", chosen.is_exact},
          {"solution", SolutionInfo(*chosen.solution)},
          {"notes", notes}};
}

}  // namespace

extern "C" {

void kvrun_config_options_init(kvrun_config_options* options) {
  if (options == nullptr) return;
  *options = {};
  options->struct_size = sizeof(*options);
  options->n_sequences = 1;
}

kvrun_status kvrun_config_json(const char* path, const kvrun_model* model, const kvrun_engine* engine,
                               const kvrun_config_options* options, char** json) {
  return Guard([&]() -> Status {
    KVRUN_RETURN_IF_ERROR(CheckNotNull(json, "json"));
    *json = nullptr;
    KVRUN_RETURN_IF_ERROR(CheckNotNull(path, "path"));
    KVRUN_RETURN_IF_ERROR(CheckNotNull(model, "model"));
    KVRUN_RETURN_IF_ERROR(model->model->computable);
    kvrun_config_options given;
    kvrun_config_options_init(&given);
    KVRUN_RETURN_IF_ERROR(kvrun::capi::ReadOptions(options, "kvrun_config_options", &given));
    KVRUN_RETURN_IF_ERROR(kvrun::CheckSequenceCount(given.n_sequences));
    const uint32_t n_ctx = kvrun::ChooseContext(given.n_ctx, model->model->config);
    KVRUN_ASSIGN_OR_RETURN(const kvrun::KvConfig config, kvrun::ReadConfig(path));
    KVRUN_ASSIGN_OR_RETURN(const kvrun::KvMethod method, kvrun::FindKvMethod(config.method));
    KVRUN_ASSIGN_OR_RETURN(const kvrun::ConfigTarget target,
                           TargetOf(*model->model, engine, given, method.needs_file()));
    const kvrun::ConfigFit fit = kvrun::CompareConfig(config, target);
    if (!fit.refusal.empty() && given.force == 0) {
      return Status(StatusCode::kUnsupported, fmt::format("{}: {}", path, fit.refusal));
    }
    const kvrun::ChosenSolution chosen = kvrun::ChooseSolution(config, path, given.n_sequences, n_ctx);
    return kvrun::capi::CopyOut(Info(chosen, fit, given.n_sequences, n_ctx), json);
  });
}

}  // extern "C"
