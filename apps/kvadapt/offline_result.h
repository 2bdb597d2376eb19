// Answers of offline/, with exceptions: as Check does for the C API.
#pragma once

#include <utility>

#include "apps/common/failure.h"
#include "offline/failure_code.h"

namespace kvrun::cli {

// What it holds; a Failure with its message where it is an error.
template <typename Result>
auto Take(Result&& result) {
  if (!result.ok()) {
    throw Failure(offline::FailureCode(result.status().code()), result.status().message());
  }
  return std::forward<Result>(result).value();
}

}  // namespace kvrun::cli
