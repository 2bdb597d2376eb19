// The kvrun program as built, on the device that the tests use.
#pragma once

#include <string>
#include <vector>

#include "tests/support/program_runner.h"

namespace kvrun::testing {

// bin/kvrun beside the folder of the running test program.
std::string RealProgram();

// The variables that choose the driver, the device and the validation layer, as they are in the tests' own
// environment, then `more`, which win.
ProgramInput WithDrivers(const std::vector<std::string>& more = {});

}  // namespace kvrun::testing
