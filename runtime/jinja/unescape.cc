// String literals of templates: Python's escapes.
#include <cstdio>

#include "runtime/jinja/lexer.h"
#include "runtime/jinja/unicode.h"

namespace kvrun::jinja {
namespace {

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  c = static_cast<char>(c | 0x20);
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

class Unescaper {
 public:
  Unescaper(std::string_view text, uint32_t line) : text_(text), line_(line) {}

  Result<std::string> Unescape() {
    while (position_ < text_.size()) {
      if (text_[position_] != '\\') {
        result_ += text_[position_++];
        continue;
      }
      ++position_;
      KVRUN_RETURN_IF_ERROR(Escape());
    }
    return std::move(result_);
  }

 private:
  Status Escape() {
    const char c = text_[position_];
    constexpr std::string_view kNames = "\\'\"abfnrtv";
    constexpr std::string_view kMeanings = "\\'\"\a\b\f\n\r\t\v";
    if (kNames.find(c) != kNames.npos) {
      result_ += kMeanings[kNames.find(c)];
      ++position_;
    } else if (c == '\n') {
      ++position_;
    } else if (c >= '0' && c <= '7') {
      Octal();
    } else if (c == 'x' || c == 'u' || c == 'U') {
      return Hexadecimal(c == 'x' ? 2 : c == 'u' ? 4 : 8);
    } else if (c == 'N') {
      return WrongSyntax(line_, "names of characters (\\N) are not known");
    } else {
      Unknown();
    }
    return Status::Ok();
  }

  void Octal() {
    uint32_t code = 0;
    for (int i = 0; i < 3 && position_ < text_.size() && text_[position_] >= '0' && text_[position_] <= '7';
         ++i) {
      code = code * 8 + static_cast<uint32_t>(text_[position_++] - '0');
    }
    AppendUtf8(code, &result_);
  }

  Status Hexadecimal(size_t n_digits) {
    uint32_t code = 0;
    for (size_t i = 1; i <= n_digits; ++i) {
      const int digit = position_ + i < text_.size() ? HexDigit(text_[position_ + i]) : -1;
      if (digit < 0) return WrongSyntax(line_, "a \\x, \\u or \\U escape has too few digits");
      code = code << 4 | static_cast<uint32_t>(digit);
    }
    if (code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) {
      return WrongSyntax(line_, "an escape names no character");
    }
    AppendUtf8(code, &result_);
    position_ += n_digits + 1;
    return Status::Ok();
  }

  // Jinja writes what is not ASCII as an escape before it reads escapes, so that a backslash before it
  // leaves that escape.
  void Unknown() {
    result_ += '\\';
    const Character character = CharacterAt(text_, position_);
    if (character.code < 0x80) return;
    char escape[16];
    std::snprintf(escape, sizeof(escape),
                  character.code < 0x100     ? "x%02x"
                  : character.code < 0x10000 ? "u%04x"
                                             : "U%08x",
                  character.code);
    result_ += escape;
    position_ += character.n_bytes;
  }

  std::string_view text_;
  uint32_t line_;
  size_t position_ = 0;
  std::string result_;
};

}  // namespace

Result<std::string> UnescapedString(const LexedToken& token) {
  return Unescaper(token.text.substr(1, token.text.size() - 2), token.line).Unescape();
}

}  // namespace kvrun::jinja
