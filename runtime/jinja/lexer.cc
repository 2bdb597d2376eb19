#include "runtime/jinja/lexer.h"

#include <algorithm>

#include "runtime/jinja/unicode.h"

namespace kvrun::jinja {
namespace {

bool IsAsciiDigit(char c) { return c >= '0' && c <= '9'; }

bool IsNameCharacter(char c) {
  return IsAsciiDigit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
         static_cast<uint8_t>(c) >= 0x80;
}

size_t EndOfSpaces(std::string_view text, size_t position) {
  while (position < text.size()) {
    const Character character = CharacterAt(text, position);
    if (!IsSpace(character.code)) break;
    position += character.n_bytes;
  }
  return position;
}

std::string_view WithoutSpacesAtEnd(std::string_view text) {
  while (!text.empty()) {
    const Character character = CharacterBefore(text, text.size());
    if (!IsSpace(character.code)) break;
    text.remove_suffix(character.n_bytes);
  }
  return text;
}

// (\d+_)*\d+ at `position`, or `position`.
size_t EndOfDigits(std::string_view text, size_t position) {
  while (position < text.size() && IsAsciiDigit(text[position])) {
    ++position;
    if (position + 1 < text.size() && text[position] == '_' && IsAsciiDigit(text[position + 1])) ++position;
  }
  return position;
}

size_t EndOfFloat(std::string_view text, size_t begin) {
  if (begin > 0 && text[begin - 1] == '.') return begin;
  size_t end = EndOfDigits(text, begin);
  if (end == begin) return begin;
  bool is_float = false;
  if (end < text.size() && text[end] == '.' && EndOfDigits(text, end + 1) > end + 1) {
    end = EndOfDigits(text, end + 1);
    is_float = true;
  }
  if (end < text.size() && (text[end] == 'e' || text[end] == 'E')) {
    size_t digits = end + 1;
    if (digits < text.size() && (text[digits] == '+' || text[digits] == '-')) ++digits;
    if (EndOfDigits(text, digits) > digits) return EndOfDigits(text, digits);
  }
  return is_float ? end : begin;
}

size_t EndOfInteger(std::string_view text, size_t begin) {
  if (!IsAsciiDigit(text[begin])) return begin;
  if (text[begin] != '0') return EndOfDigits(text, begin);
  const char base = begin + 1 < text.size() ? static_cast<char>(text[begin + 1] | 0x20) : ' ';
  const auto is_digit = [base](char c) {
    if (base == 'b') return c == '0' || c == '1';
    if (base == 'o') return c >= '0' && c <= '7';
    if (base == 'x') return IsAsciiDigit(c) || ((c | 0x20) >= 'a' && (c | 0x20) <= 'f');
    return c == '0';
  };
  const size_t first = base == 'b' || base == 'o' || base == 'x' ? begin + 2 : begin;
  size_t end = first;
  while (end < text.size()) {
    const size_t digit = end + (text[end] == '_' && end > begin ? 1 : 0);
    if (digit >= text.size() || !is_digit(text[digit])) break;
    end = digit + 1;
  }
  return end == first ? begin + 1 : end;
}

// After the closing quote, or `begin` where there is none.
size_t EndOfString(std::string_view text, size_t begin) {
  const char quote = text[begin];
  if (quote != '\'' && quote != '"') return begin;
  for (size_t i = begin + 1; i < text.size(); ++i) {
    if (text[i] == quote) return i + 1;
    if (text[i] == '\\') ++i;
  }
  return begin;
}

size_t EndOfOperator(std::string_view text, size_t begin) {
  for (const std::string_view two : {"//", "**", "==", "!=", ">=", "<="}) {
    if (text.substr(begin, 2) == two) return begin + 2;
  }
  return std::string_view("+-/*%~[](){}><=.:|,;").find(text[begin]) == std::string_view::npos ? begin
                                                                                              : begin + 1;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(source) {}

  Result<std::vector<LexedToken>> Lex() {
    while (position_ < source_.size()) KVRUN_RETURN_IF_ERROR(LexData());
    Add(Token::kEnd, position_, position_);
    return std::move(tokens_);
  }

 private:
  void Advance(size_t end) {
    line_ += static_cast<uint32_t>(std::count(source_.begin() + position_, source_.begin() + end, '\n'));
    is_line_start_ = end > position_ ? source_[end - 1] == '\n' : is_line_start_;
    position_ = end;
  }

  void Add(Token token, size_t begin, size_t end) {
    tokens_.push_back({token, line_, source_.substr(begin, end - begin)});
  }

  // -, + or nothing at `position`.
  char SignAt(size_t position) const {
    const char c = position < source_.size() ? source_[position] : ' ';
    return c == '-' || c == '+' ? c : ' ';
  }

  bool StartsWith(size_t position, std::string_view text) const {
    return source_.substr(position, text.size()) == text;
  }

  // The data from position_ to `end`, where a tag with this sign begins.
  void AddData(size_t end, char sign, bool is_variable) {
    std::string_view data = source_.substr(position_, end - position_);
    if (sign == '-') {
      data = WithoutSpacesAtEnd(data);
    } else if (sign != '+' && !is_variable) {
      const size_t line_begin = data.rfind('\n') == data.npos ? 0 : data.rfind('\n') + 1;
      if ((line_begin > 0 || is_line_start_) && EndOfSpaces(data, line_begin) == data.size()) {
        data = data.substr(0, line_begin);
      }
    }
    if (!data.empty()) Add(Token::kData, position_, position_ + data.size());
    Advance(end);
  }

  // The end of `-%}` with the spaces after it, `+%}`, or `%}` with a newline; 0 where none is at `position`.
  size_t EndOfClose(size_t position, std::string_view close, bool takes_plus) const {
    const char sign = SignAt(position);
    if (sign == '-' && StartsWith(position + 1, close)) {
      return EndOfSpaces(source_, position + 1 + close.size());
    }
    if (sign == '+' && takes_plus && StartsWith(position + 1, close)) return position + 1 + close.size();
    if (!StartsWith(position, close)) return 0;
    const size_t end = position + close.size();
    return takes_plus && end < source_.size() && source_[end] == '\n' ? end + 1 : end;
  }

  // The end of `{% raw %}`, or 0.
  size_t EndOfRawTag(size_t begin) const {
    size_t at = EndOfSpaces(source_, begin + (SignAt(begin + 2) == ' ' ? 2 : 3));
    if (!StartsWith(at, "raw")) return 0;
    at = EndOfSpaces(source_, at + 3);
    if (StartsWith(at, "-%}")) return EndOfSpaces(source_, at + 3);
    return StartsWith(at, "%}") ? at + 2 : 0;
  }

  Status LexData() {
    size_t begin = source_.find('{', position_);
    while (begin != source_.npos && !StartsWith(begin, "{%") && !StartsWith(begin, "{{") &&
           !StartsWith(begin, "{#")) {
      begin = source_.find('{', begin + 1);
    }
    if (begin == source_.npos) {
      Add(Token::kData, position_, source_.size());
      Advance(source_.size());
      return Status::Ok();
    }
    const char sign = SignAt(begin + 2);
    const bool is_variable = source_[begin + 1] == '{';
    AddData(begin, sign, is_variable);
    const size_t raw_end = source_[begin + 1] == '%' ? EndOfRawTag(begin) : 0;
    if (raw_end != 0) {
      Advance(raw_end);
      return LexRaw();
    }
    Advance(begin + (sign == ' ' ? 2 : 3));
    if (source_[begin + 1] == '#') return LexComment();
    Add(is_variable ? Token::kVariableBegin : Token::kBlockBegin, begin, position_);
    return LexTag(is_variable);
  }

  Status LexComment() {
    for (size_t at = position_; at < source_.size(); ++at) {
      const size_t end = EndOfClose(at, "#}", true);
      if (end == 0) continue;
      Advance(end);
      return Status::Ok();
    }
    return WrongSyntax(line_, "a comment has no end");
  }

  Status LexRaw() {
    for (size_t tag = source_.find("{%", position_); tag != source_.npos; tag = source_.find("{%", tag + 1)) {
      const char sign = SignAt(tag + 2);
      size_t at = EndOfSpaces(source_, tag + (sign == ' ' ? 2 : 3));
      if (!StartsWith(at, "endraw")) continue;
      at = EndOfSpaces(source_, at + 6);
      const size_t end = EndOfClose(at, "%}", true);
      if (end == 0) continue;
      AddData(tag, sign, false);
      Advance(end);
      return Status::Ok();
    }
    return WrongSyntax(line_, "{% raw %} has no end");
  }

  Status LexTag(bool is_variable) {
    std::string open;  // brackets that are to be closed
    while (position_ < source_.size()) {
      const size_t end = open.empty() ? EndOfClose(position_, is_variable ? "}}" : "%}", !is_variable) : 0;
      if (end != 0) {
        Add(is_variable ? Token::kVariableEnd : Token::kBlockEnd, position_, end);
        Advance(end);
        return Status::Ok();
      }
      const size_t after_spaces = EndOfSpaces(source_, position_);
      if (after_spaces > position_) {
        Advance(after_spaces);
        continue;
      }
      KVRUN_RETURN_IF_ERROR(LexOne(&open));
    }
    return Status::Ok();  // the parser sees that the tag has no end
  }

  Status LexOne(std::string* open) {
    size_t end = EndOfFloat(source_, position_);
    Token token = Token::kFloat;
    if (end == position_) {
      end = EndOfInteger(source_, position_);
      token = Token::kInteger;
    }
    if (end == position_) {
      while (end < source_.size() && IsNameCharacter(source_[end])) ++end;
      token = Token::kName;
    }
    if (end == position_) {
      end = EndOfString(source_, position_);
      token = Token::kString;
    }
    if (end == position_) {
      end = EndOfOperator(source_, position_);
      token = Token::kOperator;
      if (end == position_) return WrongSyntax(line_, "there is no '" + std::string(1, source_[end]) + "'");
      KVRUN_RETURN_IF_ERROR(Balance(source_[position_], open));
    }
    Add(token, position_, end);
    Advance(end);
    return Status::Ok();
  }

  Status Balance(char bracket, std::string* open) const {
    constexpr std::string_view kOpening = "([{";
    constexpr std::string_view kClosing = ")]}";
    if (kOpening.find(bracket) != kOpening.npos) open->push_back(kClosing[kOpening.find(bracket)]);
    if (kClosing.find(bracket) == kClosing.npos) return Status::Ok();
    if (open->empty() || open->back() != bracket) {
      return WrongSyntax(line_, std::string("unexpected '") + bracket + "'");
    }
    open->pop_back();
    return Status::Ok();
  }

  std::string_view source_;
  size_t position_ = 0;
  uint32_t line_ = 1;
  bool is_line_start_ = true;
  std::vector<LexedToken> tokens_;
};

}  // namespace

Status WrongSyntax(uint32_t line, std::string_view what) {
  return {StatusCode::kInvalidArgument, "line " + std::to_string(line) + ": " + std::string(what)};
}

std::string NormalisedSource(std::string_view source) {
  std::string normalised;
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r' && i + 1 < source.size() && source[i + 1] == '\n') continue;
    normalised += source[i] == '\r' ? '\n' : source[i];
  }
  if (!normalised.empty() && normalised.back() == '\n') normalised.pop_back();
  return normalised;
}

Result<std::vector<LexedToken>> Lex(std::string_view source) { return Lexer(source).Lex(); }

}  // namespace kvrun::jinja
