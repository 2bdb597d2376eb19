#include "runtime/engine/measure/evaluation.h"

#include <string>
#include <vector>

#include "runtime/capi/border.h"
#include "runtime/capi/handles.h"
#include "runtime/capi/kv_info.h"
#include "runtime/capi/session_options.h"

using kvrun::Status;
using kvrun::StatusCode;
using kvrun::capi::CheckNotNull;
using kvrun::capi::Guard;
using kvrun::capi::Json;

namespace {

Json ResultInfo(const kvrun::EvaluationResult& result, uint32_t n_steps) {
  const Json kv = kvrun::capi::KvReportInfo(result.report, n_steps, false);
  const kvrun::Recall of = result.recall.value_or(kvrun::Recall());
  const auto recall = [&](double share) { return result.recall ? Json(share) : Json(); };
  return {{"ppl", result.logits.ppl()},
          {"ppl_full", result.logits.ppl_full()},
          {"kl_mean", result.logits.kl_mean()},
          {"kl_error", result.logits.kl_error()},
          {"kl_parts", result.logits.kl_parts()},
          {"top1_agreement", result.logits.top1_agreement()},
          {"recall", recall(of.method)},
          {"recall_oracle", recall(of.oracle)},
          {"recall_recent", recall(of.recent)},
          {"recall_random", recall(of.random)},
          {"hit_rate", kv.value("hit_rate", Json())},
          {"decode_tps", result.decode_tps},
          {"decode_tps_full", result.decode_tps_full},
          {"kv", kv},
          {"notes", result.notes}};
}

// A configuration that cannot be run does not end the others.
Json RunConfig(kvrun::Evaluation& evaluation, const std::string& config, uint32_t n_steps,
               const kvrun::ProgressCallback& progress) {
  Json object = {{"config", config}};
  kvrun::KvSettings settings = kvrun::capi::UserSettings();
  Status status = kvrun::ParseKvOptions(config, &settings);
  if (status.ok()) {
    const auto result = evaluation.Run(settings, progress);
    if (result.ok()) {
      object.update(ResultInfo(*result, n_steps));
      return object;
    }
    status = result.status();
  }
  object["error"] = status.message();
  return object;
}

}  // namespace

extern "C" {

void kvrun_eval_options_init(kvrun_eval_options* options) {
  if (options == nullptr) return;
  *options = {};
  options->struct_size = sizeof(*options);
}

kvrun_status kvrun_eval_json(kvrun_engine* engine, const kvrun_eval_options* options, const int32_t* ids,
                             size_t count, char** json) {
  return Guard([&]() -> Status {
    KVRUN_RETURN_IF_ERROR(CheckNotNull(json, "json"));
    *json = nullptr;
    KVRUN_RETURN_IF_ERROR(CheckNotNull(engine, "engine"));
    KVRUN_RETURN_IF_ERROR(CheckNotNull(options, "options"));
    KVRUN_RETURN_IF_ERROR(CheckNotNull(ids, "ids"));
    kvrun_eval_options given;
    kvrun_eval_options_init(&given);
    KVRUN_RETURN_IF_ERROR(kvrun::capi::ReadOptions(options, "kvrun_eval_options", &given));
    if (given.n_configs > 0) KVRUN_RETURN_IF_ERROR(CheckNotNull(given.configs, "configs"));
    const auto progress =
        kvrun::capi::BindProgress(given.progress, given.progress_user, KVRUN_PHASE_EVALUATE);
    KVRUN_ASSIGN_OR_RETURN(
        const std::unique_ptr<kvrun::Evaluation> evaluation,
        engine->engine->CreateEvaluation(
            std::span<const int32_t>(ids, count),
            {.n_ctx = given.n_ctx, .n_steps = given.n_steps, .n_at_once = given.n_at_once}, progress));
    Json results = Json::array();
    for (size_t i = 0; i < given.n_configs; ++i) {
      KVRUN_RETURN_IF_ERROR(CheckNotNull(given.configs[i], "configs[]"));
      results.push_back(RunConfig(*evaluation, given.configs[i], given.n_steps, progress));
      if (given.result != nullptr)
        given.result(given.result_user, kvrun::capi::ToText(results.back()).c_str());
    }
    return kvrun::capi::CopyOut(results, json);
  });
}

kvrun_status kvrun_session_eval_json(kvrun_session* session, uint32_t sequence,
                                     const kvrun_eval_options* options, char** json) {
  return Guard([&]() -> Status {
    KVRUN_RETURN_IF_ERROR(CheckNotNull(json, "json"));
    *json = nullptr;
    KVRUN_RETURN_IF_ERROR(CheckNotNull(session, "session"));
    KVRUN_RETURN_IF_ERROR(CheckNotNull(options, "options"));
    kvrun_eval_options given;
    kvrun_eval_options_init(&given);
    KVRUN_RETURN_IF_ERROR(kvrun::capi::ReadOptions(options, "kvrun_eval_options", &given));
    const auto progress =
        kvrun::capi::BindProgress(given.progress, given.progress_user, KVRUN_PHASE_EVALUATE);
    KVRUN_ASSIGN_OR_RETURN(
        const kvrun::EvaluationResult result,
        session->engine->EvaluateSession(*session->session, sequence,
                                         {.n_steps = given.n_steps, .n_at_once = given.n_at_once}, progress));
    return kvrun::capi::CopyOut(ResultInfo(result, given.n_steps), json);
  });
}

}  // extern "C"
