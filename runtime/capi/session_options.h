// A caller's kvrun_session_options as the engine takes them.
#pragma once

#include "platform/base/status.h"
#include "runtime/engine/engine.h"
#include "runtime/include/kvrun/kvrun.h"

namespace kvrun::capi {

// Null: the defaults.
Result<SessionOptions> ReadSessionOptions(const kvrun_session_options* given);

}  // namespace kvrun::capi
