#include <filesystem>
#include <string>
#include <vector>

#include "runtime/capi/border.h"
#include "runtime/capi/handles.h"
#include "runtime/capi/kv_info.h"
#include "runtime/capi/session_options.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/session/context_length.h"
#include "runtime/engine/session/session_kv.h"
#include "runtime/kv/serve/kv_folder.h"

using kvrun::Status;
using kvrun::capi::CheckNotNull;
using kvrun::capi::Guard;

namespace {

// Where its KV lies, of methods that keep it on flash.
std::string FolderOf(const kvrun::SessionOptions& session) {
  if (!session.path.empty()) return std::filesystem::path(session.path).parent_path();
  const std::string& named = session.kv.storage.folder;
  return named.empty() ? kvrun::DefaultKvFolder() : named;
}

}  // namespace

extern "C" {

kvrun_status kvrun_kv_option_check(const char* name, const char* value) {
  return Guard([&]() -> Status {
    KVRUN_RETURN_IF_ERROR(CheckNotNull(name, "name"));
    KVRUN_RETURN_IF_ERROR(CheckNotNull(value, "value"));
    kvrun::KvSettings settings;
    return kvrun::SetKvOption(name, value, &settings);
  });
}

kvrun_status kvrun_kv_option_choices_json(const char* name, char** json) {
  return Guard([&]() -> Status {
    KVRUN_RETURN_IF_ERROR(CheckNotNull(json, "json"));
    *json = nullptr;
    KVRUN_RETURN_IF_ERROR(CheckNotNull(name, "name"));
    return kvrun::capi::CopyOut(kvrun::capi::Json(kvrun::KvOptionChoices(name)), json);
  });
}

kvrun_status kvrun_kv_options_json(char** json) {
  return Guard([&]() -> Status {
    KVRUN_RETURN_IF_ERROR(CheckNotNull(json, "json"));
    *json = nullptr;
    return kvrun::capi::CopyOut(kvrun::capi::KvOptionsInfo(), json);
  });
}

kvrun_status kvrun_kv_plan_json(const kvrun_model* model, const kvrun_session_options* options, char** json) {
  return Guard([&]() -> Status {
    KVRUN_RETURN_IF_ERROR(CheckNotNull(json, "json"));
    *json = nullptr;
    KVRUN_RETURN_IF_ERROR(CheckNotNull(model, "model"));
    KVRUN_RETURN_IF_ERROR(model->model->computable);
    KVRUN_ASSIGN_OR_RETURN(kvrun::SessionOptions session, kvrun::capi::ReadSessionOptions(options));
    kvrun::SettleKept(&session);
    KVRUN_RETURN_IF_ERROR(kvrun::CheckSequenceCount(session.n_sequences));
    const kvrun::ModelConfig& config = model->model->config;
    const uint32_t n_ctx = kvrun::ChooseContext(session.n_ctx, config);
    KVRUN_ASSIGN_OR_RETURN(kvrun::KvPlan plan,
                           kvrun::PlanSessionKv(*model->model, session.kv, n_ctx, session.n_sequences));
    const std::vector<std::string> notes = kvrun::ContextNotes(n_ctx, config);
    std::vector<std::string>& of_plan = plan.notes.for_people;
    of_plan.insert(of_plan.begin(), notes.begin(), notes.end());
    kvrun::capi::Json info = kvrun::capi::KvPlanInfo(plan);
    info["folder"] = plan.method.is_on_flash() ? kvrun::capi::Json(FolderOf(session)) : kvrun::capi::Json();
    return kvrun::capi::CopyOut(info, json);
  });
}

}  // extern "C"
