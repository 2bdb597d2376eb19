#include "runtime/kv/plan/flash_times.h"

#include <algorithm>

namespace kvrun {

double FlashTimes::ReadMicroseconds(uint64_t bytes) const {
  constexpr double kBlockBytes = 4096.0;
  const double rate = bytes_per_s > 0.0 ? bytes_per_s : reads_per_s * kBlockBytes;
  return 1e6 * std::max(1.0 / reads_per_s, static_cast<double>(bytes) / rate);
}

}  // namespace kvrun
