#include "runtime/jinja/text_edit.h"

#include <algorithm>

#include "runtime/jinja/text_search.h"
#include "runtime/jinja/unicode.h"

namespace kvrun::jinja {
namespace {

bool IsCased(uint32_t code) { return IsUpper(code) || IsLower(code); }

// Σ at the end of a word is ς.
bool IsFinalSigma(std::string_view bytes, size_t position) {
  size_t before = position;
  Character character;
  do {
    if (before == 0) return false;
    character = CharacterBefore(bytes, before);
    before -= character.n_bytes;
  } while (character.code == '\'' || character.code == '.' || character.code == 0xad);
  if (!IsCased(character.code)) return false;
  for (size_t after = position + 2; after < bytes.size(); after += character.n_bytes) {
    character = CharacterAt(bytes, after);
    if (character.code != '\'' && character.code != '.' && character.code != 0xad)
      return !IsCased(character.code);
  }
  return true;
}

void AppendLower(std::string_view bytes, size_t position, uint32_t code, std::string* text) {
  if (code == 0x3a3 && IsFinalSigma(bytes, position)) {
    AppendUtf8(0x3c2, text);
  } else if (code == 0x130) {
    *text += "i\xcc\x87";
  } else {
    AppendUtf8(ToLower(code), text);
  }
}

// The character at `position` in the case that it has there.
void AppendCased(std::string_view bytes, size_t position, uint32_t code, Case to, bool begins_word,
                 std::string* text) {
  switch (to) {
    case Case::kUpper: AppendUpper(code, text); break;
    case Case::kLower: AppendLower(bytes, position, code, text); break;
    case Case::kFolded:
      if (code == 0xdf) {
        *text += "ss";
      } else {
        AppendUtf8(code == 0x3c2 ? 0x3c3 : ToLower(code), text);
      }
      break;
    case Case::kSwapped:
      if (IsUpper(code)) {
        AppendLower(bytes, position, code, text);
      } else if (IsLower(code)) {
        AppendUpper(code, text);
      } else {
        AppendUtf8(code, text);
      }
      break;
    case Case::kCapitalised:
    case Case::kTitle:
      if (begins_word) {
        AppendTitle(code, text);
      } else {
        AppendLower(bytes, position, code, text);
      }
  }
}

bool IsWordBorder(uint32_t code) {
  return IsSpace(code) ||
         (code < 0x80 && std::string_view("-({[<").find(static_cast<char>(code)) != std::string_view::npos);
}

Result<MarkedText> WithBetween(Run& run, const MarkedText& text, const MarkedText& by, int64_t most) {
  const size_t n = CountCharacters(text.bytes()) + 1;
  const size_t n_places = most < 0 ? n : std::min(n, static_cast<size_t>(most));
  KVRUN_RETURN_IF_ERROR(run.Take(text.size() + n_places * by.size()));
  MarkedText result;
  size_t position = 0;
  for (size_t i = 0; i < n_places; ++i) {
    result.Append(by);
    const size_t end =
        position == text.size() ? position : position + CharacterAt(text.bytes(), position).n_bytes;
    result.Append(text, position, end);
    position = end;
  }
  result.Append(text, position, text.size());
  return result;
}

}  // namespace

MarkedText WithCase(const MarkedText& text, Case to) {
  const std::string_view bytes = text.bytes();
  MarkedText result = text.Slice(0, 0);
  bool begins_word = true;
  std::string changed;
  for (size_t position = 0; position < bytes.size();) {
    const bool is_content = text.IsContent(position);
    changed.clear();
    while (position < bytes.size() && text.IsContent(position) == is_content) {
      const Character character = CharacterAt(bytes, position);
      if (character.code < 0x80 || character.n_bytes > 1) {
        AppendCased(bytes, position, character.code, to, begins_word, &changed);
      } else {
        changed += bytes[position];
      }
      begins_word = to == Case::kTitle && !IsCased(character.code);
      position += character.n_bytes;
    }
    result.Append(changed, is_content);
  }
  return result;
}

MarkedText WithTitleWords(const MarkedText& text) {
  const std::string_view bytes = text.bytes();
  MarkedText result = text.Slice(0, 0);
  for (size_t begin = 0; begin < bytes.size();) {
    size_t end = begin;
    const bool is_border = IsWordBorder(CharacterAt(bytes, begin).code);
    while (end < bytes.size() && IsWordBorder(CharacterAt(bytes, end).code) == is_border) {
      end += CharacterAt(bytes, end).n_bytes;
    }
    const size_t second = begin + CharacterAt(bytes, begin).n_bytes;
    result.Append(WithCase(text.Slice(begin, second), Case::kUpper));
    result.Append(WithCase(text.Slice(second, end), Case::kLower));
    begin = end;
  }
  return result;
}

Result<MarkedText> Stripped(Run& run, const MarkedText& text, const MarkedText* characters, Side side) {
  const std::string_view bytes = text.bytes();
  const auto is_out = [&](size_t position, const Character& character) {
    if (characters == nullptr) return IsSpace(character.code);
    return characters->bytes().find(bytes.substr(position, character.n_bytes)) != std::string_view::npos;
  };
  const uint64_t cost = characters == nullptr ? 0 : characters->size() / 64;
  size_t begin = 0;
  size_t end = bytes.size();
  while (side != Side::kRight && begin < end) {
    const Character character = CharacterAt(bytes, begin);
    KVRUN_RETURN_IF_ERROR(run.Step(cost));
    if (!is_out(begin, character)) break;
    begin += character.n_bytes;
  }
  while (side != Side::kLeft && begin < end) {
    const Character character = CharacterBefore(bytes, end);
    KVRUN_RETURN_IF_ERROR(run.Step(cost));
    if (!is_out(end - character.n_bytes, character)) break;
    end -= character.n_bytes;
  }
  return text.Slice(begin, end);
}

Result<MarkedText> Replaced(Run& run, const MarkedText& text, const MarkedText& old, const MarkedText& by,
                            int64_t most) {
  if (old.empty()) return WithBetween(run, text, by, most);
  KVRUN_ASSIGN_OR_RETURN(const std::vector<size_t> places, FindAll(run, text.bytes(), old.bytes(), most));
  if (places.empty()) return text;
  KVRUN_RETURN_IF_ERROR(run.Take(text.size() + places.size() * by.size()));
  MarkedText result = text.Slice(0, 0);
  size_t begin = 0;
  for (const size_t place : places) {
    result.Append(text, begin, place);
    result.Append(by);
    begin = place + old.size();
  }
  result.Append(text, begin, text.size());
  return result;
}

Result<std::vector<Value>> LinesOf(Run& run, const MarkedText& text, bool keeps_ends) {
  const std::string_view bytes = text.bytes();
  KVRUN_RETURN_IF_ERROR(run.Step(bytes.size() / 16));
  std::vector<Value> lines;
  for (size_t begin = 0; begin < bytes.size();) {
    size_t end = begin;
    while (end < bytes.size() && !IsLineBreak(CharacterAt(bytes, end).code)) {
      end += CharacterAt(bytes, end).n_bytes;
    }
    size_t next = end;
    if (end < bytes.size()) {
      next += bytes.substr(end, 2) == "\r\n" ? 2 : CharacterAt(bytes, end).n_bytes;
    }
    KVRUN_ASSIGN_OR_RETURN(Value line, run.MakeString(text.Slice(begin, keeps_ends ? next : end)));
    lines.push_back(std::move(line));
    begin = next;
  }
  return lines;
}

}  // namespace kvrun::jinja
