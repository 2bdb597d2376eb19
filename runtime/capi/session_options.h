// A caller's kvrun_session_options as the engine takes them.
#pragma once

#include <memory>
#include <string>

#include "platform/base/status.h"
#include "platform/io/secret_key.h"
#include "runtime/engine/engine.h"
#include "runtime/include/kvrun/kvrun.h"
#include "runtime/kv/planner/kv_options.h"

namespace kvrun::capi {

// `path`: session_key_path; "auto": the user's own, which is made where it is missing.
Result<std::shared_ptr<const SecretKey>> ReadSessionKey(const std::string& path);
// The user's own, where there is one that can be read; null: there is none. Makes nothing.
std::shared_ptr<const SecretKey> FindOwnKey();
std::string SessionKeyPath(const std::string& path);

// Without options: of this version of kvrun, and with the file in which what is written counts.
KvSettings UserSettings();

// Null: the defaults.
Result<SessionOptions> ReadSessionOptions(const kvrun_session_options* given);

}  // namespace kvrun::capi
