// For the programs, which see this folder and not the C API's inside.
#pragma once

#include "runtime/capi/status_code.h"

namespace kvrun::offline {

constexpr kvrun_status FailureCode(StatusCode code) { return capi::ToC(code); }

}  // namespace kvrun::offline
