#include "runtime/engine/machine/opening_speed.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "platform/base/status.h"
#include "platform/base/units.h"
#include "platform/io/cpu_name.h"
#include "platform/io/seal.h"
#include "platform/io/secret_key.h"
#include "runtime/engine/machine/compute_time_file.h"

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

// unit_us and bytes_per_s of a line through two sizes.
Result<std::vector<double>> Measure() {
  KVRUN_ASSIGN_OR_RETURN(const double short_us, UnitMicroseconds(kShortBytes));
  KVRUN_ASSIGN_OR_RETURN(const double long_us, UnitMicroseconds(kLongBytes));
  const double byte_us = std::max(long_us - short_us, long_us / 2.0) / (kLongBytes - kShortBytes);
  return std::vector<double>{std::max(short_us - byte_us * kShortBytes, 0.0), 1e6 / byte_us};
}

}  // namespace

OpeningTimes MeasuredOpening(const std::string& version) {
  static const OpeningTimes times = [&]() -> OpeningTimes {
    const ComputeKey key = {.work = fmt::format("opening {}", CipherName(PreferredCipher())),
                            .device = CpuName(),
                            .model = {},
                            .kvrun = version};
    const Result<std::vector<double>> values =
        KeptOrMeasured(ComputeTimesPath(), key, std::time(nullptr), Measure);
    if (!values.ok() || values->size() != 2 || (*values)[1] <= 0.0) return {};
    return {.unit_us = (*values)[0], .bytes_per_s = (*values)[1]};
  }();
  return times;
}

}  // namespace kvrun
