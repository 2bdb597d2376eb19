#include "runtime/capi/session_options.h"

#include <fmt/format.h>

#include <cstring>
#include <type_traits>

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

}  // namespace

Result<SessionOptions> ReadSessionOptions(const kvrun_session_options* given) {
  kvrun_session_options read;
  kvrun_session_options_init(&read);
  KVRUN_RETURN_IF_ERROR(ReadOptions(given, "kvrun_session_options", &read));
  SessionOptions options;
  options.n_sequences = read.n_sequences;
  options.n_ctx = read.n_ctx;
  options.progress = BindProgress(read.progress, read.progress_user, KVRUN_PHASE_PREFILL);
  options.kv.version = kvrun_version();
  if (read.session != nullptr && *read.session != '\0') {
    KVRUN_ASSIGN_OR_RETURN(options.path, SessionPath(read.session));
  }
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
