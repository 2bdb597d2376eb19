// Numbers that need not be whole, from text.
#pragma once

#include <cmath>
#include <locale>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>

namespace kvrun {

// All of `text`, as in "0.5" or "1e-3" whatever the locale, or nothing. std::from_chars in other words:
// libc++ has that for whole numbers only, before version 20.
inline std::optional<double> ParseReal(std::string_view text) {
  // Neither blanks nor "+1", "0x10", "inf" and "nan", which some libraries take.
  if (text.empty() || text.front() == '+') return std::nullopt;
  if (text.find_first_not_of("0123456789.eE+-") != std::string_view::npos) return std::nullopt;
  std::istringstream stream{std::string(text)};
  stream.imbue(std::locale::classic());
  double value = 0;
  if (!(stream >> value) || stream.peek() != std::istringstream::traits_type::eof()) return std::nullopt;
  return std::isfinite(value) ? std::optional(value) : std::nullopt;
}

}  // namespace kvrun
