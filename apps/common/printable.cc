#include "apps/common/printable.h"

#include <fmt/format.h>

namespace kvrun::cli {
namespace {

constexpr size_t kMaxContinuationBytes = 3;

bool IsWithinCharacter(std::string_view text, size_t at) {
  return at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0U) == 0x80;
}

// The next places where a character begins, if it is one.
size_t CutBefore(std::string_view text, size_t at) {
  size_t back = 0;
  while (back < kMaxContinuationBytes && back < at && IsWithinCharacter(text, at - back)) ++back;
  return at - back;
}

size_t CutAfter(std::string_view text, size_t at) {
  size_t further = 0;
  while (further < kMaxContinuationBytes && IsWithinCharacter(text, at + further)) ++further;
  return at + further;
}

}  // namespace

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
  return Clipped(shown);
}

std::string Clipped(std::string_view text, size_t max_bytes) {
  if (text.size() <= max_bytes) return std::string(text);
  // Well below the limit: a text that goes on for long tells nothing more.
  const std::string_view begin = text.substr(0, CutBefore(text, max_bytes / 3));
  const std::string_view end = text.substr(CutAfter(text, text.size() - max_bytes / 4));
  return fmt::format("{}... ({} bytes left out) ...{}", begin, text.size() - begin.size() - end.size(), end);
}

}  // namespace kvrun::cli
