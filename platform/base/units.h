// Units, counts in words and small integer arithmetic used everywhere.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace kvrun {

inline constexpr uint64_t kKiB = 1024;
inline constexpr uint64_t kMiB = 1024 * kKiB;
inline constexpr uint64_t kGiB = 1024 * kMiB;

// a + b must not overflow.
template <typename T>
constexpr T CeilDiv(T a, T b) {
  return (a + b - 1) / b;
}

template <typename T>
constexpr T RoundUp(T value, T multiple) {
  return CeilDiv(value, multiple) * multiple;
}

// "22.5 KiB", "180.0 MiB".
std::string FormatBytes(uint64_t bytes);

// "1 piece", "2 pieces". `many` where it is not `one` and an s: Counted(2, "copy", "copies").
std::string Counted(uint64_t n, std::string_view one, std::string_view many = {});

}  // namespace kvrun
