// A status as the C API counts them.
#pragma once

#include "platform/base/status.h"
#include "runtime/include/kvrun/kvrun.h"

namespace kvrun::capi {

constexpr kvrun_status ToC(StatusCode code) {
  switch (code) {
    case StatusCode::kOk: return KVRUN_OK;
    case StatusCode::kInvalidArgument: return KVRUN_INVALID_ARGUMENT;
    case StatusCode::kNotFound: return KVRUN_NOT_FOUND;
    case StatusCode::kCorrupt: return KVRUN_CORRUPT;
    case StatusCode::kUnsupported: return KVRUN_UNSUPPORTED;
    case StatusCode::kOutOfMemory: return KVRUN_OUT_OF_MEMORY;
    case StatusCode::kContextFull: return KVRUN_CONTEXT_FULL;
    case StatusCode::kIo: return KVRUN_IO_ERROR;
    case StatusCode::kDevice: return KVRUN_DEVICE_ERROR;
    case StatusCode::kCancelled: return KVRUN_CANCELLED;
    case StatusCode::kInternal: return KVRUN_INTERNAL_ERROR;
  }
  return KVRUN_INTERNAL_ERROR;
}

}  // namespace kvrun::capi
