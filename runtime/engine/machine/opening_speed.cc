#include "runtime/engine/machine/opening_speed.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "platform/base/status.h"
#include "platform/base/units.h"
#include "platform/io/seal.h"
#include "platform/io/secret_key.h"

namespace kvrun {
namespace {

constexpr size_t kOpenedBytes = 256 * kKiB;  // does not stay in the first cache
constexpr size_t kShortBytes = 1024;
constexpr size_t kLongBytes = 16 * 1024;
constexpr int kTries = 5;  // what else runs on the machine only makes them longer

// Of a unit of so many bytes, the least of a few tries.
Result<double> UnitMicroseconds(size_t unit_bytes) {
  using Clock = std::chrono::steady_clock;
  KVRUN_ASSIGN_OR_RETURN(const SecretKey key, SecretKey::Random());
  KVRUN_ASSIGN_OR_RETURN(Sealer sealer, Sealer::Create(PreferredCipher(), key));
  std::vector<std::byte> sealed(kOpenedBytes);
  std::vector<std::byte> plain(kOpenedBytes);
  std::vector<std::array<std::byte, kTagBytes>> tags(kOpenedBytes / unit_bytes);
  const std::array<std::byte, 12> associated{};
  for (size_t i = 0; i < tags.size(); ++i) {
    const std::span<std::byte> unit = std::span(sealed).subspan(i * unit_bytes, unit_bytes);
    KVRUN_RETURN_IF_ERROR(sealer.Seal(MakeNonce(0, i), associated, unit, unit, tags[i]));
  }
  double least_us = std::numeric_limits<double>::infinity();
  for (int i = 0; i < kTries; ++i) {
    const Clock::time_point begin = Clock::now();
    for (size_t unit = 0; unit < tags.size(); ++unit) {
      KVRUN_RETURN_IF_ERROR(sealer.Open(MakeNonce(0, unit), associated,
                                        std::span(sealed).subspan(unit * unit_bytes, unit_bytes),
                                        std::span(plain).subspan(unit * unit_bytes, unit_bytes), tags[unit]));
    }
    const std::chrono::duration<double, std::micro> elapsed = Clock::now() - begin;
    least_us = std::min(least_us, elapsed.count() / static_cast<double>(tags.size()));
  }
  return least_us;
}

OpeningTimes Measure() {
  const Result<double> short_us = UnitMicroseconds(kShortBytes);
  const Result<double> long_us = UnitMicroseconds(kLongBytes);
  if (!short_us.ok() || !long_us.ok()) return {};
  // A line through both.
  const double byte_us = std::max(*long_us - *short_us, *long_us / 2.0) / (kLongBytes - kShortBytes);
  return {.unit_us = std::max(*short_us - byte_us * kShortBytes, 0.0), .bytes_per_s = 1e6 / byte_us};
}

}  // namespace

OpeningTimes MeasuredOpening() {
  static const OpeningTimes times = Measure();
  return times;
}

}  // namespace kvrun
