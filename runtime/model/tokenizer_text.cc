#include "runtime/model/tokenizer_text.h"

namespace kvrun {
namespace {

uint8_t ByteAt(std::string_view text, size_t position) { return static_cast<uint8_t>(text[position]); }

bool PrintsAsItself(unsigned byte) {
  return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

struct SecondByteRange {
  uint8_t low;
  uint8_t high;
};

// Where the range of the second byte keeps out overlong forms, surrogates and what is above U+10FFFF.
SecondByteRange RangeAfter(uint8_t lead) {
  switch (lead) {
    case 0xe0: return {0xa0, 0xbf};
    case 0xed: return {0x80, 0x9f};
    case 0xf0: return {0x90, 0xbf};
    case 0xf4: return {0x80, 0x8f};
    default: return {0x80, 0xbf};
  }
}

}  // namespace

std::string WithSpacesMarked(std::string_view text) {
  std::string marked;
  marked.reserve(text.size() + text.size() / 2);
  for (const char c : text) {
    if (c == ' ') {
      marked += kSpaceMark;
    } else {
      marked += c;
    }
  }
  return marked;
}

void AppendWithMarksAsSpaces(std::string_view marked, std::string* text) {
  for (size_t at = 0; at < marked.size();) {
    const bool space = marked.substr(at, kSpaceMark.size()) == kSpaceMark;
    *text += space ? ' ' : marked[at];
    at += space ? kSpaceMark.size() : 1;
  }
}

size_t Utf8CharacterBytes(std::string_view text, size_t position) {
  const uint8_t lead = ByteAt(text, position);
  if (lead < 0x80) return 1;
  if (lead < 0xc2 || lead > 0xf4) return 0;
  const size_t character_bytes = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  if (text.size() - position < character_bytes) return 0;
  const SecondByteRange range = RangeAfter(lead);
  const uint8_t second = ByteAt(text, position + 1);
  if (second < range.low || second > range.high) return 0;
  for (size_t i = 2; i < character_bytes; ++i) {
    if ((ByteAt(text, position + i) & 0xc0) != 0x80) return 0;
  }
  return character_bytes;
}

std::string WithInvalidUtf8Masked(std::string_view text) {
  std::string masked(text);
  for (size_t position = 0; position < text.size();) {
    const size_t character_bytes = Utf8CharacterBytes(text, position);
    if (character_bytes == 0) masked[position] = '\x01';
    position += character_bytes == 0 ? 1 : character_bytes;
  }
  return masked;
}

const ByteAlphabet& ByteAlphabet::Get() {
  static const ByteAlphabet alphabet;
  return alphabet;
}

ByteAlphabet::ByteAlphabet() {
  bytes_.fill(-1);
  unsigned next_stand_in = 0x100;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const unsigned code_point = PrintsAsItself(byte) ? byte : next_stand_in++;
    bytes_[code_point] = static_cast<int16_t>(byte);
    if (code_point < 0x80) {
      characters_[byte][0] = static_cast<char>(code_point);
      lengths_[byte] = 1;
    } else {
      characters_[byte][0] = static_cast<char>(0xc0 | (code_point >> 6));
      characters_[byte][1] = static_cast<char>(0x80 | (code_point & 0x3f));
      lengths_[byte] = 2;
    }
  }
}

std::string ByteAlphabet::Encode(std::string_view bytes) const {
  std::string text;
  text.reserve(bytes.size() + bytes.size() / 4);
  for (const char byte : bytes) text += CharacterOf(static_cast<uint8_t>(byte));
  return text;
}

bool ByteAlphabet::Decode(std::string_view text, std::string* bytes) const {
  const size_t begin = bytes->size();
  for (size_t i = 0; i < text.size();) {
    const size_t character_bytes = Utf8CharacterBytes(text, i);
    const bool is_short = character_bytes == 1 || character_bytes == 2;
    size_t code_point = kCodePoints;
    if (is_short) {
      code_point = character_bytes == 1 ? ByteAt(text, i)
                                        : (ByteAt(text, i) & 0x1fU) << 6 | (ByteAt(text, i + 1) & 0x3fU);
    }
    if (code_point >= kCodePoints || bytes_[code_point] < 0) {
      bytes->resize(begin);
      return false;
    }
    *bytes += static_cast<char>(bytes_[code_point]);
    i += character_bytes;
  }
  return true;
}

}  // namespace kvrun
