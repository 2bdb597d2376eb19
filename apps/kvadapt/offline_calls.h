// Calls of offline/ as the commands make them: what fails there is thrown here.
#pragma once

#include <kvrun/kvrun.h>

#include <string>
#include <utility>

#include "apps/common/failure.h"
#include "apps/common/printable.h"
#include "apps/common/progress.h"
#include "offline/failure_code.h"
#include "offline/probe.h"

namespace kvrun::cli {

// Throws a Failure (an Interruption where the call was cancelled) unless the status is ok.
inline void Check(const Status& status) {
  if (status.ok()) return;
  if (status.code() == StatusCode::kCancelled) throw Interruption();
  // As kvrun_last_error has it: an exception's text ends at its first NUL.
  throw Failure(offline::FailureCode(status.code()), Printable(status.message()));
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
