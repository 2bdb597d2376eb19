// What the processor is called.
#pragma once

#include <string>

namespace kvrun {

// "Intel(R) Xeon(R) Processor", or "CPU" where the system does not say.
std::string CpuName();

}  // namespace kvrun
