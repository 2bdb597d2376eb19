#include "platform/base/units.h"

#include <fmt/format.h>

namespace kvrun {

std::string FormatBytes(uint64_t bytes) {
  if (bytes < kKiB) return fmt::format("{} B", bytes);
  if (bytes < kMiB) return fmt::format("{:.1f} KiB", static_cast<double>(bytes) / static_cast<double>(kKiB));
  if (bytes < kGiB) return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / static_cast<double>(kMiB));
  return fmt::format("{:.2f} GiB", static_cast<double>(bytes) / static_cast<double>(kGiB));
}

std::string Counted(uint64_t n, std::string_view one, std::string_view many) {
  if (n == 1) return fmt::format("{} {}", n, one);
  if (!many.empty()) return fmt::format("{} {}", n, many);
  return fmt::format("{} {}s", n, one);
}

}  // namespace kvrun
