#include "runtime/capi/session_options.h"

#include <fmt/format.h>

#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "platform/io/secret_key.h"
#include "platform/io/session_key.h"
#include "runtime/capi/border.h"
#include "runtime/engine/session/session_folder.h"

namespace kvrun::capi {
namespace {

Status SetKvType(const kvrun_kv_type& given, KvSettings* kv) {
  // Read as a number: a C caller may have put any there.
  std::underlying_type_t<kvrun_kv_type> kv_type = 0;
  std::memcpy(&kv_type, &given, sizeof(kv_type));
  if (kv_type != KVRUN_KV_F16 && kv_type != KVRUN_KV_F32) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("kv_type {} is not known; use KVRUN_KV_F16 or KVRUN_KV_F32", kv_type));
  }
  // F16 is what is there unless something is said: it leaves the choice to the method.
  return kv_type == KVRUN_KV_F32 ? SetKvOption("type", "f32", kv) : Status::Ok();
}

constexpr std::string_view kOwnKey = "auto";

Result<std::shared_ptr<const SecretKey>> AskForKey(kvrun_session_key_fn ask, void* user) {
  auto key = std::make_shared<SecretKey>();
  static_assert(SecretKey::kBytes == 32);
  if (ask(user, reinterpret_cast<uint8_t*>(key->bytes().data())) == 0) return {std::move(key)};
  return Status(StatusCode::kInvalidArgument,
                "session_key gives no key: the session is not made; without the callback it would not be "
                "encrypted");
}

// Null: there is none.
Result<std::shared_ptr<const SecretKey>> KeyOf(const kvrun_session_options& given) {
  const bool has_path = given.session_key_path != nullptr && *given.session_key_path != '\0';
  if (has_path && given.session_key != nullptr) {
    return Status(StatusCode::kInvalidArgument,
                  "a session has one key: give session_key_path or session_key, and not both");
  }
  if (given.session_key != nullptr) return AskForKey(given.session_key, given.session_key_user);
  if (has_path) return ReadSessionKey(given.session_key_path);
  return std::shared_ptr<const SecretKey>();
}

}  // namespace

std::string SessionKeyPath(const std::string& path) { return path == kOwnKey ? DefaultKeyPath() : path; }

Result<std::shared_ptr<const SecretKey>> ReadSessionKey(const std::string& path) {
  const std::string file = SessionKeyPath(path);
  KVRUN_ASSIGN_OR_RETURN(SecretKey key, path == kOwnKey ? UserKey(file) : ReadKeyFile(file));
  return std::shared_ptr<const SecretKey>(std::make_shared<SecretKey>(std::move(key)));
}

std::shared_ptr<const SecretKey> FindOwnKey() {
  const std::string path = DefaultKeyPath();
  if (path.empty()) return nullptr;
  Result<SecretKey> key = ReadKeyFile(path);
  return key.ok() ? std::make_shared<SecretKey>(std::move(key).value()) : nullptr;
}

KvSettings UserSettings() {
  KvSettings settings;
  settings.version = kvrun_version();
  settings.storage.written_path = WrittenPath();
  return settings;
}

Result<SessionOptions> ReadSessionOptions(const kvrun_session_options* given) {
  kvrun_session_options read;
  kvrun_session_options_init(&read);
  KVRUN_RETURN_IF_ERROR(ReadOptions(given, "kvrun_session_options", &read));
  SessionOptions options;
  options.n_sequences = read.n_sequences;
  options.n_ctx = read.n_ctx;
  options.progress = BindProgress(read.progress, read.progress_user, KVRUN_PHASE_PREFILL);
  options.load_progress =
      BindProgress(read.session_progress, read.session_progress_user, KVRUN_PHASE_OPEN_SESSION);
  options.save_progress =
      BindProgress(read.session_progress, read.session_progress_user, KVRUN_PHASE_SAVE_SESSION);
  options.kv = UserSettings();
  if (read.answer_tokens != 0) options.answer_tokens = read.answer_tokens;
  if (read.session != nullptr && *read.session != '\0') {
    KVRUN_ASSIGN_OR_RETURN(options.path, SessionPath(read.session));
  }
  const bool has_key_path = read.session_key_path != nullptr && *read.session_key_path != '\0';
  if (options.path.empty() && (has_key_path || read.session_key != nullptr)) {
    return Status(
        StatusCode::kInvalidArgument,
        "a session's key (--session-key) is for one that is kept: name it with --session, or encrypt "
        "what ends with the process with --kv-encrypt");
  }
  options.read_only = read.session_read_only != 0;
  if (options.path.empty() && options.read_only) {
    return Status(StatusCode::kInvalidArgument,
                  "only a session that is kept can be read (--session-read-only): name it with --session");
  }
  KVRUN_ASSIGN_OR_RETURN(options.key, KeyOf(read));
  KVRUN_RETURN_IF_ERROR(SetKvType(read.kv_type, &options.kv));
  if (read.n_kv_options > 0) KVRUN_RETURN_IF_ERROR(CheckNotNull(read.kv_options, "kv_options"));
  for (size_t i = 0; i < read.n_kv_options; ++i) {
    KVRUN_RETURN_IF_ERROR(CheckNotNull(read.kv_options[i].name, "kv_options[].name"));
    KVRUN_RETURN_IF_ERROR(CheckNotNull(read.kv_options[i].value, "kv_options[].value"));
    KVRUN_RETURN_IF_ERROR(SetKvOption(read.kv_options[i].name, read.kv_options[i].value, &options.kv));
  }
  return options;
}

}  // namespace kvrun::capi
