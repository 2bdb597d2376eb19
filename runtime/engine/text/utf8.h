// UTF-8 that arrives in pieces and may be invalid.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace kvrun {

bool IsValidUtf8(std::string_view text);

// Repaired as Utf8Repairer does. Names that files keep are compared with names of here in this form.
std::string RepairedUtf8(std::string_view text);

// As a message has it, in one line: repaired, and control characters (below 0x20, 0x7f) as \n, \r, \t or
// \x1b. Of more than 1200 bytes, which hold a text of others, the middle is left out, and said to be. What is
// so already is not changed.
std::string MessageText(std::string_view text);

// Passes valid UTF-8 on, character by character; each maximal piece of an invalid one becomes one U+FFFD, as
// the Unicode Standard recommends (chapter 3.9). An incomplete character at the end is held back.
class Utf8Repairer {
 public:
  void Append(std::string_view bytes, std::string* out);
  // What is held back can no longer be completed.
  void Finish(std::string* out);
  size_t n_replaced() const { return n_replaced_; }

 private:
  void Begin(uint8_t byte, std::string* out);
  void Replace(std::string* out);

  std::array<char, 4> held_ = {};
  uint32_t n_held_ = 0;
  uint32_t n_needed_ = 0;  // bytes of the character that held_ begins
  uint8_t lowest_ = 0x80;  // of the next byte
  uint8_t highest_ = 0xBF;
  size_t n_replaced_ = 0;
};

}  // namespace kvrun
