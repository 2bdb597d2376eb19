// Filters that make texts.
#include <algorithm>

#include "runtime/jinja/field_format.h"
#include "runtime/jinja/text_edit.h"
#include "runtime/jinja/unicode.h"

namespace kvrun::jinja {
namespace {

// str() that leaves Markup what it is.
Result<MarkedText> SoftText(Run& run, const Value& value) {
  if (value.is_string()) return value.text();
  return TextOf(run, value);
}

template <Case to>
Result<Value> FilterCase(Run& run, const Value& self, const Args&) {
  KVRUN_ASSIGN_OR_RETURN(const MarkedText text, SoftText(run, self));
  KVRUN_RETURN_IF_ERROR(run.Step(text.size() / 16));
  return run.MakeString(WithCase(text, to));
}

Result<Value> FilterTitle(Run& run, const Value& self, const Args&) {
  KVRUN_ASSIGN_OR_RETURN(const MarkedText text, SoftText(run, self));
  KVRUN_RETURN_IF_ERROR(run.Step(text.size() / 8));
  MarkedText title = WithTitleWords(text);
  title.is_markup = false;
  return run.MakeString(std::move(title));
}

Result<Value> FilterTrim(Run& run, const Value& self, const Args& args) {
  KVRUN_ASSIGN_OR_RETURN(const MarkedText text, SoftText(run, self));
  const MarkedText* characters = nullptr;
  if (args.Has(0) && !args[0].Is(Kind::kNone)) {
    KVRUN_ASSIGN_OR_RETURN(characters, StringOf(args[0]));
  }
  KVRUN_ASSIGN_OR_RETURN(MarkedText trimmed, Stripped(run, text, characters, Side::kBoth));
  return run.MakeString(std::move(trimmed));
}

Result<Value> FilterString(Run& run, const Value& self, const Args&) {
  if (self.is_string()) return self;
  KVRUN_ASSIGN_OR_RETURN(MarkedText text, TextOf(run, self));
  return run.MakeString(std::move(text));
}

Result<Value> FilterReplace(Run& run, const Value& self, const Args& args) {
  KVRUN_ASSIGN_OR_RETURN(MarkedText text, TextOf(run, self));
  text.is_markup = false;
  KVRUN_ASSIGN_OR_RETURN(const MarkedText old, TextOf(run, args[0]));
  KVRUN_ASSIGN_OR_RETURN(const MarkedText by, TextOf(run, args[1]));
  const bool has_count = args.Has(2) && !args[2].Is(Kind::kNone);
  KVRUN_ASSIGN_OR_RETURN(const int64_t most, has_count ? args.Integer(2, -1) : Result<int64_t>(int64_t{-1}));
  KVRUN_ASSIGN_OR_RETURN(MarkedText replaced, Replaced(run, text, old, by, most));
  return run.MakeString(std::move(replaced));
}

// What stands before each line but the first.
Result<MarkedText> Indention(Run& run, const Args& args) {
  if (args.Has(0) && args[0].is_string()) return args[0].text();
  KVRUN_ASSIGN_OR_RETURN(const int64_t width, args.Integer(0, 4));
  if (width > kMostWidth) return Wrong("an indention is too wide");
  KVRUN_RETURN_IF_ERROR(run.Take(static_cast<size_t>(std::max<int64_t>(width, 0))));
  return MarkedText::Form(std::string(static_cast<size_t>(std::max<int64_t>(width, 0)), ' '));
}

Result<Value> FilterIndent(Run& run, const Value& self, const Args& args) {
  KVRUN_ASSIGN_OR_RETURN(const MarkedText indention, Indention(run, args));
  KVRUN_ASSIGN_OR_RETURN(const MarkedText* const string, StringOf(self));
  MarkedText text = *string;
  text.AppendForm("\n");
  KVRUN_ASSIGN_OR_RETURN(const std::vector<Value> lines, LinesOf(run, text, false));
  MarkedText indented;
  if (args.IsTrueOr(1, false)) indented.Append(indention);
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) {
      indented.AppendForm("\n");
      if (args.IsTrueOr(2, false) || !lines[i].bytes().empty()) {
        KVRUN_RETURN_IF_ERROR(run.Take(indention.size()));
        indented.Append(indention);
      }
    }
    indented.Append(lines[i].text());
  }
  indented.is_markup = string->is_markup;
  return run.MakeString(std::move(indented));
}

Result<Value> FilterCenter(Run& run, const Value& self, const Args& args) {
  KVRUN_ASSIGN_OR_RETURN(Value text, FilterString(run, self, args));
  KVRUN_ASSIGN_OR_RETURN(const int64_t width, args.Integer(0, 80));
  return CallFunction(run, *FindMethod(text, "center"), text, {{Value::Int(width)}, {}});
}

Result<Value> FilterSafe(Run& run, const Value& self, const Args&) {
  KVRUN_ASSIGN_OR_RETURN(MarkedText text, TextOf(run, self));
  text.is_markup = true;
  return run.MakeString(std::move(text));
}

void AppendHtml(const MarkedText& text, MarkedText* to) {
  const std::string_view bytes = text.bytes();
  size_t begin = 0;
  for (size_t i = 0; i <= bytes.size(); ++i) {
    const size_t which = i < bytes.size() ? std::string_view("&<>'\"").find(bytes[i]) : 0;
    if (which == std::string_view::npos) continue;
    to->Append(text, begin, i);
    begin = i + 1;
    constexpr const char* kNames[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
    if (i < bytes.size()) to->Append(kNames[which], text.IsContent(i));
  }
}

Result<Value> FilterEscape(Run& run, const Value& self, const Args&) {
  MarkedText escaped;
  KVRUN_RETURN_IF_ERROR(AppendEscaped(run, self, &escaped));
  escaped.is_markup = true;
  return run.MakeString(std::move(escaped));
}

Result<Value> FilterForceEscape(Run& run, const Value& self, const Args&) {
  KVRUN_ASSIGN_OR_RETURN(const MarkedText text, TextOf(run, self));
  KVRUN_RETURN_IF_ERROR(run.Take(text.size() * 6));
  MarkedText escaped;
  AppendHtml(text, &escaped);
  escaped.is_markup = true;
  return run.MakeString(std::move(escaped));
}

Result<Value> FilterWordCount(Run& run, const Value& self, const Args&) {
  KVRUN_ASSIGN_OR_RETURN(const MarkedText text, TextOf(run, self));
  KVRUN_RETURN_IF_ERROR(run.Step(text.size() / 16));
  int64_t n = 0;
  bool in_word = false;
  for (size_t position = 0; position < text.size();) {
    const Character character = CharacterAt(text.bytes(), position);
    const bool is_word = IsAlpha(character.code) || IsDigit(character.code) || character.code == '_';
    n += is_word && !in_word ? 1 : 0;
    in_word = is_word;
    position += character.n_bytes;
  }
  return Value::Int(n);
}

Result<Value> FilterFormat(Run& run, const Value& self, const Args& args) {
  KVRUN_ASSIGN_OR_RETURN(const MarkedText text, SoftText(run, self));
  if (!args.positional().empty() && !args.named().empty())
    return Wrong("format takes values or named values");
  KVRUN_ASSIGN_OR_RETURN(const Value values, args.named().empty() ? MakeTuple(run, args.positional())
                                                                  : MakeDict(run, args.named()));
  return PercentFormat(run, text, values);
}

// Percent encoding: `keeps` besides letters, digits and "_.-~".
Status AppendQuotedUrl(Run& run, const MarkedText& text, bool is_query, MarkedText* to) {
  KVRUN_RETURN_IF_ERROR(run.Take(text.size() * 3));
  KVRUN_RETURN_IF_ERROR(run.Step(text.size() / 4));
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text.bytes()[i];
    const bool is_kept = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                         std::string_view("_.-~").find(c) != std::string_view::npos ||
                         (c == '/' && !is_query);
    if (is_query && c == ' ') {
      to->Append("+", text.IsContent(i));
    } else {
      constexpr const char* kDigits = "0123456789ABCDEF";
      const char quoted[] = {'%', kDigits[static_cast<uint8_t>(c) >> 4],
                             kDigits[static_cast<uint8_t>(c) & 15]};
      to->Append(is_kept ? std::string_view(&c, 1) : std::string_view(quoted, 3), text.IsContent(i));
    }
  }
  return Status::Ok();
}

Result<Value> FilterUrlEncode(Run& run, const Value& self, const Args&) {
  MarkedText encoded;
  if (self.is_string() || !IsIterable(self)) {
    KVRUN_ASSIGN_OR_RETURN(const MarkedText text, TextOf(run, self));
    KVRUN_RETURN_IF_ERROR(AppendQuotedUrl(run, text, false, &encoded));
    return run.MakeString(std::move(encoded));
  }
  std::vector<Pair> pairs = self.Is(Kind::kDict) ? self.dict().entries : std::vector<Pair>();
  if (!self.Is(Kind::kDict)) {
    KVRUN_ASSIGN_OR_RETURN(const std::vector<Value> elements, ElementsOf(run, self));
    for (const Value& element : elements) {
      KVRUN_ASSIGN_OR_RETURN(const std::vector<Value> pair, ElementsOf(run, element));
      if (pair.size() != 2) return Wrong("urlencode wants pairs");
      pairs.emplace_back(pair[0], pair[1]);
    }
  }
  for (const auto& [key, value] : pairs) {
    if (!encoded.empty()) encoded.AppendForm("&");
    KVRUN_ASSIGN_OR_RETURN(const MarkedText name, TextOf(run, key));
    KVRUN_ASSIGN_OR_RETURN(const MarkedText text, TextOf(run, value));
    KVRUN_RETURN_IF_ERROR(AppendQuotedUrl(run, name, true, &encoded));
    encoded.AppendForm("=");
    KVRUN_RETURN_IF_ERROR(AppendQuotedUrl(run, text, true, &encoded));
  }
  return run.MakeString(std::move(encoded));
}

Result<Value> FilterTruncate(Run& run, const Value& self, const Args& args) {
  KVRUN_ASSIGN_OR_RETURN(const MarkedText* const text, StringOf(self));
  KVRUN_ASSIGN_OR_RETURN(const int64_t length, args.Integer(0, 255));
  const MarkedText end = args.Has(2) && args[2].is_string() ? args[2].text() : MarkedText::Form("...");
  const bool has_leeway = args.Has(3) && !args[3].Is(Kind::kNone);
  KVRUN_ASSIGN_OR_RETURN(const int64_t leeway, has_leeway ? args.Integer(3, 5) : Result<int64_t>(int64_t{5}));
  const auto end_length = static_cast<int64_t>(CountCharacters(end.bytes()));
  KVRUN_RETURN_IF_ERROR(run.Step(text->size() / 32));
  if (length < end_length || leeway < 0) return Wrong("truncate's length is shorter than its end");
  if (static_cast<int64_t>(CountCharacters(text->bytes())) - leeway <= length) return self;
  MarkedText cut = text->Slice(0, OffsetOfCharacter(text->bytes(), static_cast<size_t>(length - end_length)));
  if (!args.IsTrueOr(1, false)) cut = cut.Slice(0, std::min(cut.bytes().rfind(' '), cut.size()));
  cut.Append(end);
  return run.MakeString(std::move(cut));
}

constexpr FunctionDef kFilters[] = {
    {"upper", FilterCase<Case::kUpper>, "", 0},
    {"lower", FilterCase<Case::kLower>, "", 0},
    {"capitalize", FilterCase<Case::kCapitalised>, "", 0},
    {"title", FilterTitle, "", 0},
    {"trim", FilterTrim, "chars", 0},
    {"string", FilterString, "", 0},
    {"replace", FilterReplace, "old,new,count", 2},
    {"indent", FilterIndent, "width,first,blank", 0},
    {"center", FilterCenter, "width", 0},
    {"safe", FilterSafe, "", 0},
    {"escape", FilterEscape, "", 0},
    {"e", FilterEscape, "", 0},
    {"forceescape", FilterForceEscape, "", 0},
    {"wordcount", FilterWordCount, "", 0},
    {"format", FilterFormat, "*", 0},
    {"urlencode", FilterUrlEncode, "", 0},
    {"truncate", FilterTruncate, "length,killwords,end,leeway", 0},
    {"tojson", ToJson, "ensure_ascii,indent,separators,sort_keys", 0},
};

}  // namespace

std::span<const FunctionDef> TextFilters() { return kFilters; }

Status AppendEscaped(Run& run, const Value& value, MarkedText* text) {
  if (value.is_string() && value.text().is_markup) {
    text->Append(value.text());
    return Status::Ok();
  }
  KVRUN_ASSIGN_OR_RETURN(const MarkedText plain, TextOf(run, value));
  KVRUN_RETURN_IF_ERROR(run.Take(plain.size() * 5));
  AppendHtml(plain, text);
  return Status::Ok();
}

}  // namespace kvrun::jinja
