// The CPU's examination.
#pragma once

#include <string>

#include "runtime/device/check_up.h"

namespace kvrun::host {

// Every self-test with every instruction set that the processor has. `note`: for the report; may be empty.
CheckUp PlanCheckUp(const std::string& note);

}  // namespace kvrun::host
