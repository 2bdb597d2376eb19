// Calls of offline/ as the commands make them: what fails there is thrown here.
#pragma once

#include <kvrun/kvrun.h>

#include <string>
#include <utility>

#include "apps/common/failure.h"
#include "apps/common/progress.h"
#include "offline/probe.h"

namespace kvrun::cli {

inline kvrun_status ToStatus(StatusCode code) {
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

// Throws a Failure (an Interruption where the call was cancelled) unless the status is ok.
inline void Check(const Status& status) {
  if (status.ok()) return;
  if (status.code() == StatusCode::kCancelled) throw Interruption();
  throw Failure(ToStatus(status.code()), status.message());
}

template <typename T>
T Value(Result<T> result) {
  Check(result.status());
  return std::move(result).value();
}

// `progress` must outlive what is answered.
inline offline::OfflineProgress ShowIn(Progress* progress) {
  return [progress](const std::string& what, uint64_t done, uint64_t total) {
    return progress->Note(what, done, total);
  };
}

}  // namespace kvrun::cli
