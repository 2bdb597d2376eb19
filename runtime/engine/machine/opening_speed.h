// How fast a core opens what is encrypted, where it decides how much of the KV is read.
#pragma once

#include "runtime/kv/plan/flash_times.h"

namespace kvrun {

// With the cipher that is preferred here. Measured when it is asked for first, in a few milliseconds: then a
// process is told the same. Of a build that cannot encrypt nothing is known. Any thread.
OpeningTimes MeasuredOpening();

}  // namespace kvrun
