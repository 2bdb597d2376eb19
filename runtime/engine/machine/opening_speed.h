// How fast a core opens what is encrypted, where it decides how much of the KV is read.
#pragma once

#include <string>

#include "runtime/kv/plan/flash_times.h"

namespace kvrun {

// With the cipher that is preferred here. What is kept of it (compute_time_file.h), else measured when it is
// asked for first, in a few milliseconds: then a process is told the same. Of a build that cannot encrypt
// nothing is known. `version`: of kvrun; empty: it is kept nowhere. Any thread.
OpeningTimes MeasuredOpening(const std::string& version);

}  // namespace kvrun
