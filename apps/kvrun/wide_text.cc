#include "apps/kvrun/wide_text.h"

#include <algorithm>
#include <cstdint>

namespace kvrun::cli {
namespace {

// Of a character that begins with `byte`; 0: none does.
size_t BytesOf(unsigned char byte) {
  if (byte == 0) return 0;
  if (byte < 0x80) return 1;
  if (byte >= 0xC2 && byte < 0xE0) return 2;
  if (byte >= 0xE0 && byte < 0xF0) return 3;
  return byte >= 0xF0 && byte < 0xF5 ? 4 : 0;
}

bool IsCharacter(uint32_t value, size_t n_bytes) {
  constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  return value >= kLeast[n_bytes] && value <= 0x10FFFF && (value < 0xD800 || value > 0xDFFF);
}

bool IsLoneByte(wchar_t value) { return value >= kLoneByte && value <= kLoneByte + 0xFF; }

}  // namespace

WideCharacter FirstCharacter(std::string_view bytes, bool end) {
  if (bytes.empty()) return {};
  const auto first = static_cast<unsigned char>(bytes[0]);
  const WideCharacter lone{static_cast<wchar_t>(kLoneByte + first), 1};
  const size_t n_bytes = BytesOf(first);
  if (n_bytes == 0) return lone;
  if (n_bytes == 1) return {static_cast<wchar_t>(first), 1};
  uint32_t value = first & (0x7FU >> n_bytes);
  for (size_t i = 1; i < n_bytes; ++i) {
    if (i == bytes.size()) return end ? lone : WideCharacter{};
    const auto byte = static_cast<unsigned char>(bytes[i]);
    if ((byte & 0xC0) != 0x80) return lone;
    value = value << 6 | (byte & 0x3F);
  }
  return IsCharacter(value, n_bytes) ? WideCharacter{static_cast<wchar_t>(value), n_bytes} : lone;
}

std::wstring WideText(std::string_view text) {
  std::wstring wide;
  wide.reserve(text.size());
  while (!text.empty()) {
    const WideCharacter character = FirstCharacter(text, /*end=*/true);
    wide += character.value;
    text.remove_prefix(character.n_bytes);
  }
  return wide;
}

std::string NarrowText(std::wstring_view text) {
  std::string narrow;
  narrow.reserve(text.size());
  const auto add = [&narrow](uint32_t byte) { narrow += static_cast<char>(byte); };
  for (const wchar_t c : text) {
    const auto value = static_cast<uint32_t>(c);
    if (IsLoneByte(c)) {
      add(value - kLoneByte);
    } else if (value < 0x80) {
      add(value);
    } else if (value < 0x800) {
      add(0xC0 | value >> 6);
      add(0x80 | (value & 0x3F));
    } else if (value < 0x10000) {
      add(0xE0 | value >> 12);
      add(0x80 | (value >> 6 & 0x3F));
      add(0x80 | (value & 0x3F));
    } else {
      add(0xF0 | value >> 18);
      add(0x80 | (value >> 12 & 0x3F));
      add(0x80 | (value >> 6 & 0x3F));
      add(0x80 | (value & 0x3F));
    }
  }
  return narrow;
}

}  // namespace kvrun::cli
