// The examination of one device by its self-tests: planned before it begins, so that the tests of several
// devices are counted together.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

#include "platform/base/status.h"
#include "runtime/device/open_device.h"

namespace kvrun {

struct CheckUp {
  size_t n_tests = 0;
  // Calls `tick` after each test; its error ends the examination.
  std::function<Result<DoctorReport>(const std::function<Status()>& tick)> run;
};

inline SelfTestResult ToResult(const std::string& name, const Result<std::string>& outcome) {
  return {name, outcome.ok(), outcome.ok() ? *outcome : outcome.status().message()};
}

}  // namespace kvrun
