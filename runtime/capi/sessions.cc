// Sessions that are kept: what there is of them, and what is done with their files.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "platform/io/seal.h"
#include "platform/io/secret_key.h"
#include "platform/io/session_key.h"
#include "runtime/capi/border.h"
#include "runtime/capi/session_options.h"
#include "runtime/engine/session/session_folder.h"
#include "runtime/engine/session/session_list.h"
#include "runtime/store/write_meter.h"
#include "runtime/store/written_days.h"

using kvrun::KeptSessionInfo;
using kvrun::Result;
using kvrun::Status;
using kvrun::capi::CheckNotNull;
using kvrun::capi::Guard;
using kvrun::capi::Json;

namespace {

Json PairsInfo(const std::vector<std::pair<std::string, std::string>>& pairs) {
  Json object = Json::object();
  for (const auto& [name, value] : pairs) object[name] = value;
  return object;
}

Json DaysInfo(const kvrun::WrittenDays& written) {
  Json days = Json::array();
  for (const auto& [day, bytes] : written.days())
    days.push_back({{"date", kvrun::DateText(day)}, {"bytes", bytes}});
  return days;
}

Json InfoOf(const KeptSessionInfo& session) {
  const kvrun::SessionIdentity& identity = session.identity;
  const auto method = std::find_if(identity.form.begin(), identity.form.end(),
                                   [](const auto& fact) { return fact.first == "method"; });
  const bool is_known = !session.is_locked && session.trouble.empty();
  const auto known = [&](Json fact) { return is_known ? std::move(fact) : Json(); };
  return {{"name", session.name},
          {"path", session.path},
          {"model", known(identity.model_name)},
          {"fingerprint", known(identity.model)},
          {"method", known(method != identity.form.end() ? Json(method->second) : Json())},
          {"tokens", known(session.n_tokens)},
          {"context", known(identity.n_ctx)},
          {"words", known(identity.words)},
          {"bytes", session.size_bytes},
          {"used", session.used_s},
          {"written", known(session.written.total_bytes())},
          {"written_days", known(DaysInfo(session.written))},
          {"options", known(PairsInfo(identity.given))},
          {"form", known(PairsInfo(identity.form))},
          {"encrypted", session.is_encrypted},
          {"trouble", session.trouble.empty() ? Json() : Json(session.trouble)}};
}

}  // namespace

extern "C" {

kvrun_status kvrun_sessions_json(const char* folder, char** json) {
  return Guard([&]() -> Status {
    KVRUN_RETURN_IF_ERROR(CheckNotNull(json, "json"));
    *json = nullptr;
    std::string of_user;
    if (folder == nullptr) {
      KVRUN_ASSIGN_OR_RETURN(of_user, kvrun::SessionsFolder());
    }
    KVRUN_ASSIGN_OR_RETURN(
        const std::vector<KeptSessionInfo> sessions,
        kvrun::ListSessions(folder == nullptr ? of_user : folder, kvrun::capi::FindOwnKey().get()));
    Json list = Json::array();
    for (const KeptSessionInfo& session : sessions) list.push_back(InfoOf(session));
    return kvrun::capi::CopyOut(list, json);
  });
}

kvrun_status kvrun_written_json(char** json) {
  return Guard([&]() -> Status {
    KVRUN_RETURN_IF_ERROR(CheckNotNull(json, "json"));
    *json = nullptr;
    const std::string path = kvrun::WrittenPath();
    kvrun::WrittenDays written;
    if (!path.empty()) {
      KVRUN_ASSIGN_OR_RETURN(written, kvrun::ReadWritten(path));
    }
    const Json info = {{"path", path.empty() ? Json() : Json(path)},
                       {"written", written.total_bytes()},
                       {"written_today", written.BytesOf(kvrun::Today())},
                       {"days", DaysInfo(written)}};
    return kvrun::capi::CopyOut(info, json);
  });
}

kvrun_status kvrun_sessions_info_json(const char* session, char** json) {
  return kvrun_sessions_info_with_key_json(session, nullptr, json);
}

kvrun_status kvrun_sessions_info_with_key_json(const char* session, const char* session_key_path,
                                               char** json) {
  return Guard([&]() -> Status {
    KVRUN_RETURN_IF_ERROR(CheckNotNull(json, "json"));
    *json = nullptr;
    KVRUN_RETURN_IF_ERROR(CheckNotNull(session, "session"));
    KVRUN_ASSIGN_OR_RETURN(const std::string path, kvrun::SessionPath(session));
    const bool is_given = session_key_path != nullptr && *session_key_path != '\0';
    if (!is_given) {
      KVRUN_ASSIGN_OR_RETURN(const KeptSessionInfo info,
                             kvrun::DescribeWithLikelyKey(path, kvrun::capi::FindOwnKey().get()));
      return kvrun::capi::CopyOut(InfoOf(info), json);
    }
    KVRUN_ASSIGN_OR_RETURN(const auto key, kvrun::capi::ReadSessionKey(session_key_path));
    KVRUN_ASSIGN_OR_RETURN(const KeptSessionInfo info, kvrun::DescribeSession(path, key.get()));
    return kvrun::capi::CopyOut(InfoOf(info), json);
  });
}

kvrun_encryption kvrun_session_encryption(void) {
  if (!kvrun::CheckEncryption().ok()) return KVRUN_ENCRYPTION_NONE;
  return kvrun::HasAesInstructions() ? KVRUN_ENCRYPTION_FAST : KVRUN_ENCRYPTION_SLOW;
}

kvrun_status kvrun_session_key_destroy(const char* session_key_path) {
  return Guard([&]() -> Status {
    const bool is_own = session_key_path == nullptr || *session_key_path == '\0';
    const std::string path = kvrun::capi::SessionKeyPath(is_own ? "auto" : session_key_path);
    if (path.empty()) return Status::Ok();  // nor can there be one
    return kvrun::DestroyKeyFile(path);
  });
}

kvrun_status kvrun_sessions_remove(const char* session) {
  return Guard([&]() -> Status {
    KVRUN_RETURN_IF_ERROR(CheckNotNull(session, "session"));
    KVRUN_ASSIGN_OR_RETURN(const std::string path, kvrun::SessionPath(session));
    return kvrun::RemoveSession(path);
  });
}

kvrun_status kvrun_sessions_copy(const char* from, const char* to) {
  return Guard([&]() -> Status {
    KVRUN_RETURN_IF_ERROR(CheckNotNull(from, "from"));
    KVRUN_RETURN_IF_ERROR(CheckNotNull(to, "to"));
    KVRUN_ASSIGN_OR_RETURN(const std::string from_path, kvrun::SessionPath(from));
    KVRUN_ASSIGN_OR_RETURN(const std::string to_path, kvrun::SessionPath(to));
    KVRUN_RETURN_IF_ERROR(kvrun::CopySession(from_path, to_path));
    const Result<KeptSessionInfo> copy = kvrun::DescribeSession(to_path);
    const std::string written = kvrun::WrittenPath();
    // The copy is there, whether it can be counted or not.
    if (copy.ok() && !written.empty()) (void)kvrun::AddWritten(written, kvrun::Today(), copy->size_bytes);
    return Status::Ok();
  });
}

}  // extern "C"
