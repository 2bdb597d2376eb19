// Numbers of things in messages: "1 piece", "2 pieces".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace kvrun::cli {

// `many` where it is not `one` and an s: Counted(2, "copy", "copies").
inline std::string Counted(uint64_t n, std::string_view one, std::string_view many = {}) {
  std::string text = std::to_string(n) + " ";
  if (n == 1) return text.append(one);
  if (!many.empty()) return text.append(many);
  return text.append(one).append("s");
}

}  // namespace kvrun::cli
