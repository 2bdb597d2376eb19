// What Python's str knows of characters. Internal to the templates' interpreter.
//
// Letters of alphabets that know capitals, and those of the larger scripts, are all here; of small scripts
// only some are known as letters.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace kvrun::jinja {

// Bytes that are no UTF-8 count as characters of one byte.
struct Character {
  uint32_t code = 0;
  size_t n_bytes = 1;
};
Character CharacterAt(std::string_view text, size_t position);
// The character that ends before `position`, which is not 0.
Character CharacterBefore(std::string_view text, size_t position);
size_t CountCharacters(std::string_view text);
// Where the character of this index begins; size() where there are fewer.
size_t OffsetOfCharacter(std::string_view text, size_t index);

void AppendUtf8(uint32_t code, std::string* text);

bool IsSpace(uint32_t code);
bool IsLineBreak(uint32_t code);  // for splitlines
bool IsDecimal(uint32_t code);
bool IsDigit(uint32_t code);
bool IsAlpha(uint32_t code);
bool IsUpper(uint32_t code);
bool IsLower(uint32_t code);
bool IsPrintable(uint32_t code);  // for repr

// Appends the character in capitals: "ß" becomes two.
void AppendUpper(uint32_t code, std::string* text);
void AppendTitle(uint32_t code, std::string* text);
uint32_t ToLower(uint32_t code);

}  // namespace kvrun::jinja
