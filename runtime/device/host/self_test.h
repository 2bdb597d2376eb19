// Self-tests of the CPU's operations, each against a small computation in plain C++. For `doctor`.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "platform/base/status.h"
#include "runtime/device/host/host_device.h"

namespace kvrun::host {

struct HostCheck {
  std::string name;        // begins with the operations that run, as HostOperation names them
  bool exact_activations;  // of the device that it is for
  // On success a line of detail, else what is wrong.
  std::function<Result<std::string>(HostDevice&)> run;
};

// Every operation of models and methods, and every type of its data, at least once.
std::vector<HostCheck> HostChecks();

}  // namespace kvrun::host
