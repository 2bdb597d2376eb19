#include "apps/common/printable.h"

#include <fmt/format.h>

namespace kvrun::cli {

std::string Printable(std::string_view text) {
  std::string shown;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte != 0x7F) {
      shown += c;
    } else if (c == '\n' || c == '\r' || c == '\t') {
      shown += c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t";
    } else {
      shown += fmt::format("\\x{:02x}", byte);
    }
  }
  return shown;
}

}  // namespace kvrun::cli
