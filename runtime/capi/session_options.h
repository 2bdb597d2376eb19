// A caller's kvrun_session_options as the engine takes them.
#pragma once

#include "platform/base/status.h"
#include "runtime/engine/engine.h"
#include "runtime/include/kvrun/kvrun.h"

namespace kvrun::capi {

// `path`: session_key_path; "auto": the user's own, which is made where it is missing.
Result<std::shared_ptr<const SecretKey>> ReadSessionKey(const std::string& path);
std::string SessionKeyPath(const std::string& path);

// Null: the defaults.
Result<SessionOptions> ReadSessionOptions(const kvrun_session_options* given);

}  // namespace kvrun::capi
