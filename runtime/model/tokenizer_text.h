// What the tokenizers need to know of UTF-8, SentencePiece's spaces and byte-level BPE's alphabet. Internal
// to the tokenizers.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace kvrun {

inline constexpr std::string_view kSpaceMark = "\xe2\x96\x81";  // U+2581: SentencePiece's space

std::string WithSpacesMarked(std::string_view text);
void AppendWithMarksAsSpaces(std::string_view marked, std::string* text);

// Bytes of the well-formed UTF-8 character (RFC 3629) that starts at `position`, or 0 where none does.
size_t Utf8CharacterBytes(std::string_view text, size_t position);

// A string of the same length in which each byte that is no part of a well-formed character is U+0001: to
// the pre-tokenizers' patterns a symbol, neither letter nor digit nor space.
std::string WithInvalidUtf8Masked(std::string_view text);

// Byte-level BPE writes each byte as a printable character: itself where it is one, else U+0100 and up.
class ByteAlphabet {
 public:
  static const ByteAlphabet& Get();

  std::string_view CharacterOf(uint8_t byte) const { return {characters_[byte].data(), lengths_[byte]}; }
  std::string Encode(std::string_view bytes) const;
  // Appends the bytes; false, and nothing appended, if a character of `text` is not in the alphabet.
  bool Decode(std::string_view text, std::string* bytes) const;

 private:
  ByteAlphabet();

  static constexpr size_t kCodePoints = 0x144;
  std::array<std::array<char, 2>, 256> characters_{};
  std::array<uint8_t, 256> lengths_{};
  std::array<int16_t, kCodePoints> bytes_{};  // -1: not in the alphabet
};

}  // namespace kvrun
