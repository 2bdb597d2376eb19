// UTF-8 as characters of a line editor, and back without a loss, whatever the bytes.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace kvrun::cli {

// The stand-in of byte 0: those that are no UTF-8, and 0, become kLoneByte + byte. No character is there.
inline constexpr wchar_t kLoneByte = 0xDC00;

struct WideCharacter {
  wchar_t value = 0;
  size_t n_bytes = 0;  // 0: `bytes` is empty, or the beginning of a character
};

// The first character of `bytes`. At the `end` of the input there is none whose rest may still come.
WideCharacter FirstCharacter(std::string_view bytes, bool end);

std::wstring WideText(std::string_view text);
std::string NarrowText(std::wstring_view text);

}  // namespace kvrun::cli
