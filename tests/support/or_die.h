// For set-up in tests and benchmarks: prints the message of what failed, and ends the program.
#pragma once

#include <cstdio>
#include <utility>

#include "platform/base/check.h"
#include "platform/base/status.h"

namespace kvrun::testing {

inline void RunOrDie(const Status& status) {
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.message().c_str());
  KVRUN_CHECK(status.ok());
}

template <typename T>
T OrDie(Result<T> result) {
  RunOrDie(result.status());
  return std::move(result).value();
}

}  // namespace kvrun::testing
