#include "runtime/kv/plan/flash_times.h"

#include <algorithm>
#include <cmath>

namespace kvrun {
namespace {

constexpr double kBlockBytes = 4096.0;
constexpr uint32_t kMostHelpers = 3;  // more would wait for the one that reads

}  // namespace

double OpeningTimes::Microseconds(uint64_t bytes) const {
  return bytes_per_s > 0.0 ? unit_us + 1e6 * static_cast<double>(bytes) / bytes_per_s : 0.0;
}

double FlashTimes::FlashMicroseconds(uint64_t bytes) const {
  const double rate = bytes_per_s > 0.0 ? bytes_per_s : reads_per_s * kBlockBytes;
  return 1e6 * std::max(1.0 / reads_per_s, static_cast<double>(bytes) / rate);
}

double FlashTimes::WithOpening(double flash_us, uint64_t bytes, uint32_t n_helpers) const {
  const double open_us = opening.Microseconds(bytes);
  return share_cores ? flash_us + open_us : std::max(flash_us, open_us / (1.0 + n_helpers));
}

double FlashTimes::ReadMicroseconds(uint64_t bytes, uint32_t n_helpers) const {
  return WithOpening(FlashMicroseconds(bytes), bytes, n_helpers);
}

double FlashTimes::SequenceMicroseconds(uint64_t bytes, uint32_t n_helpers) const {
  const double rate = std::max(bytes_per_s, reads_per_s * kBlockBytes);
  return WithOpening(1e6 * static_cast<double>(bytes) / rate, bytes, n_helpers);
}

uint32_t FlashTimes::HelpersFor(uint64_t bytes, uint32_t spare_cores) const {
  if (share_cores) return 0;
  const double wanted = std::ceil(opening.Microseconds(bytes) / FlashMicroseconds(bytes)) - 1.0;
  const double most = std::min(spare_cores, kMostHelpers);
  return static_cast<uint32_t>(std::clamp(wanted, 0.0, most));
}

}  // namespace kvrun
