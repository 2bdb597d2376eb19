// Methods of str that give another text or a place in one.
#include <algorithm>

#include "runtime/jinja/field_format.h"
#include "runtime/jinja/text_edit.h"
#include "runtime/jinja/text_search.h"
#include "runtime/jinja/unicode.h"

namespace kvrun::jinja {
namespace {

template <Case to>
Result<Value> ChangeCase(Run& run, const Value& self, const Args&) {
  KVRUN_RETURN_IF_ERROR(run.Step(self.bytes().size() / 16));
  return run.MakeString(WithCase(self.text(), to));
}

template <Side side>
Result<Value> StripSide(Run& run, const Value& self, const Args& args) {
  const MarkedText* characters = nullptr;
  if (args.Has(0) && !args[0].Is(Kind::kNone)) {
    KVRUN_ASSIGN_OR_RETURN(characters, StringOf(args[0]));
  }
  KVRUN_ASSIGN_OR_RETURN(MarkedText text, Stripped(run, self.text(), characters, side));
  return run.MakeString(std::move(text));
}

Result<Value> ReplaceText(Run& run, const Value& self, const Args& args) {
  KVRUN_ASSIGN_OR_RETURN(const MarkedText* const old, StringOf(args[0]));
  KVRUN_ASSIGN_OR_RETURN(const MarkedText* const by, StringOf(args[1]));
  KVRUN_ASSIGN_OR_RETURN(const int64_t most, args.Integer(2, -1));
  KVRUN_ASSIGN_OR_RETURN(MarkedText text, Replaced(run, self.text(), *old, *by, most));
  return run.MakeString(std::move(text));
}

Result<Value> JoinText(Run& run, const Value& self, const Args& args) {
  KVRUN_ASSIGN_OR_RETURN(const std::vector<Value> parts, ElementsOf(run, args[0]));
  MarkedText text = self.text().Slice(0, 0);
  for (size_t i = 0; i < parts.size(); ++i) {
    if (!parts[i].is_string())
      return Wrong("join() wants texts, and not a " + std::string(TypeName(parts[i])));
    KVRUN_RETURN_IF_ERROR(run.Take(self.bytes().size() + parts[i].bytes().size()));
    if (i > 0) text.Append(self.text());
    if (text.is_markup) {
      KVRUN_RETURN_IF_ERROR(AppendEscaped(run, parts[i], &text));
    } else {
      text.Append(parts[i].text());
    }
  }
  return run.MakeString(std::move(text));
}

// The part of the text that start and stop, in characters, leave.
struct Part {
  size_t begin = 0;
  size_t end = 0;
  bool is_there = true;  // false where it would begin after the text
};

Result<Part> PartOf(Run& run, std::string_view text, const Args& args) {
  Part part{0, text.size(), true};
  const auto given = [&](size_t i) { return args.Has(i) && !args[i].Is(Kind::kNone); };
  if (!given(1) && !given(2)) return part;
  KVRUN_RETURN_IF_ERROR(run.Step(text.size() / 32));
  const auto n = static_cast<int64_t>(CountCharacters(text));
  KVRUN_ASSIGN_OR_RETURN(int64_t start, given(1) ? args.Integer(1, 0) : Result<int64_t>(int64_t{0}));
  KVRUN_ASSIGN_OR_RETURN(int64_t stop, given(2) ? args.Integer(2, n) : Result<int64_t>(n));
  start = std::max<int64_t>(start < 0 ? start + n : start, 0);
  stop = std::clamp<int64_t>(stop < 0 ? stop + n : stop, 0, n);
  part.is_there = start <= n && start <= stop;
  part.begin = OffsetOfCharacter(text, static_cast<size_t>(std::min(start, n)));
  part.end = std::max(part.begin, OffsetOfCharacter(text, static_cast<size_t>(stop)));
  return part;
}

enum class Place : uint8_t { kFirst, kLast };

// In characters; -1 where there is none.
Result<int64_t> FindPlace(Run& run, const Value& self, const Args& args, Place which) {
  KVRUN_ASSIGN_OR_RETURN(const MarkedText* const wanted, StringOf(args[0]));
  KVRUN_ASSIGN_OR_RETURN(const Part part, PartOf(run, self.bytes(), args));
  if (!part.is_there) return int64_t{-1};
  const std::string_view text = self.bytes().substr(part.begin, part.end - part.begin);
  KVRUN_RETURN_IF_ERROR(run.Step(1 + (text.size() + wanted->size()) / 32));
  size_t place = TextSearch(wanted->bytes()).Find(text, 0);
  if (which == Place::kLast) {
    if (wanted->empty()) {
      place = text.size();
    } else {
      KVRUN_ASSIGN_OR_RETURN(const std::vector<size_t> places,
                             FindAllFromRight(run, text, wanted->bytes(), 1));
      place = places.empty() ? text.npos : places[0];
    }
  }
  if (place == text.npos) return int64_t{-1};
  return static_cast<int64_t>(CountCharacters(self.bytes().substr(0, part.begin + place)));
}

template <Place which>
Result<Value> FindText(Run& run, const Value& self, const Args& args) {
  KVRUN_ASSIGN_OR_RETURN(const int64_t place, FindPlace(run, self, args, which));
  return Value::Int(place);
}

template <Place which>
Result<Value> IndexOfText(Run& run, const Value& self, const Args& args) {
  KVRUN_ASSIGN_OR_RETURN(const int64_t place, FindPlace(run, self, args, which));
  return place < 0 ? Result<Value>(Wrong("index(): the text is not there")) : Value::Int(place);
}

Result<Value> CountText(Run& run, const Value& self, const Args& args) {
  KVRUN_ASSIGN_OR_RETURN(const MarkedText* const wanted, StringOf(args[0]));
  KVRUN_ASSIGN_OR_RETURN(const Part part, PartOf(run, self.bytes(), args));
  const std::string_view text = self.bytes().substr(part.begin, part.end - part.begin);
  if (!part.is_there) return Value::Int(0);
  if (wanted->empty()) return Value::Int(static_cast<int64_t>(CountCharacters(text)) + 1);
  KVRUN_ASSIGN_OR_RETURN(const std::vector<size_t> places, FindAll(run, text, wanted->bytes(), -1));
  return Value::Int(static_cast<int64_t>(places.size()));
}

bool HasSide(std::string_view text, std::string_view part, Side side) {
  if (part.size() > text.size()) return false;
  return text.substr(side == Side::kLeft ? 0 : text.size() - part.size(), part.size()) == part;
}

template <Side side>
Result<Value> HasTextAt(Run& run, const Value& self, const Args& args) {
  KVRUN_ASSIGN_OR_RETURN(const Part part, PartOf(run, self.bytes(), args));
  const std::string_view text = self.bytes().substr(part.begin, part.end - part.begin);
  const std::vector<Value> one = {args[0]};
  for (const Value& wanted : args[0].Is(Kind::kTuple) ? args[0].items() : one) {
    KVRUN_ASSIGN_OR_RETURN(const MarkedText* const string, StringOf(wanted));
    KVRUN_RETURN_IF_ERROR(run.Step(1 + string->size() / 256));
    if (part.is_there && HasSide(text, string->bytes(), side)) return Value::Bool(true);
  }
  return Value::Bool(false);
}

template <Side side>
Result<Value> RemoveSide(Run& run, const Value& self, const Args& args) {
  KVRUN_ASSIGN_OR_RETURN(const MarkedText* const part, StringOf(args[0]));
  const size_t size = self.bytes().size();
  if (!HasSide(self.bytes(), part->bytes(), side)) return self;
  const size_t begin = side == Side::kLeft ? part->size() : 0;
  return run.MakeString(self.text().Slice(begin, begin + size - part->size()));
}

template <char align>
Result<Value> PadText(Run& run, const Value& self, const Args& args) {
  FieldFormat format;
  KVRUN_ASSIGN_OR_RETURN(format.width, args.Integer(0, 0));
  if (args.Has(1)) {
    KVRUN_ASSIGN_OR_RETURN(const MarkedText* const fill, StringOf(args[1]));
    if (CountCharacters(fill->bytes()) != 1) return Wrong("a fill is one character");
    format.fill = *fill;
  }
  KVRUN_RETURN_IF_ERROR(run.Step(self.bytes().size() / 32));
  const auto size = static_cast<int64_t>(CountCharacters(self.bytes()));
  if (align == '^' && format.width > size && ((format.width - size) & format.width & 1) != 0) {
    // Python puts the odd one on the left where the width is odd.
    FieldFormat one = format;
    one.width = size + 1;
    KVRUN_ASSIGN_OR_RETURN(const MarkedText longer, Padded(run, self.text(), one, '>'));
    KVRUN_ASSIGN_OR_RETURN(MarkedText odd, Padded(run, longer, format, align));
    return run.MakeString(std::move(odd));
  }
  KVRUN_ASSIGN_OR_RETURN(MarkedText text, Padded(run, self.text(), format, align));
  return run.MakeString(std::move(text));
}

Result<Value> FillWithZeros(Run& run, const Value& self, const Args& args) {
  FieldFormat format;
  KVRUN_ASSIGN_OR_RETURN(format.width, args.Integer(0, 0));
  format.fill = MarkedText::Form("0");
  const bool has_sign = !self.bytes().empty() && (self.bytes()[0] == '-' || self.bytes()[0] == '+');
  format.width -= has_sign ? 1 : 0;
  KVRUN_ASSIGN_OR_RETURN(const MarkedText digits,
                         Padded(run, self.text().Slice(has_sign ? 1 : 0, self.bytes().size()), format, '>'));
  MarkedText text = self.text().Slice(0, has_sign ? 1 : 0);
  text.Append(digits);
  return run.MakeString(std::move(text));
}

Result<Value> NotKnown(Run&, const Value&, const Args&) {
  return Status(StatusCode::kUnsupported, "a method of str that no chat template uses is not known");
}

constexpr FunctionDef kMethods[] = {
    {"upper", ChangeCase<Case::kUpper>, "", 0},
    {"lower", ChangeCase<Case::kLower>, "", 0},
    {"capitalize", ChangeCase<Case::kCapitalised>, "", 0},
    {"title", ChangeCase<Case::kTitle>, "", 0},
    {"swapcase", ChangeCase<Case::kSwapped>, "", 0},
    {"casefold", ChangeCase<Case::kFolded>, "", 0},
    {"strip", StripSide<Side::kBoth>, "/chars", 0},
    {"lstrip", StripSide<Side::kLeft>, "/chars", 0},
    {"rstrip", StripSide<Side::kRight>, "/chars", 0},
    {"replace", ReplaceText, "/old,new,count", 2},
    {"join", JoinText, "/iterable", 1},
    {"find", FindText<Place::kFirst>, "/sub,start,end", 1},
    {"rfind", FindText<Place::kLast>, "/sub,start,end", 1},
    {"index", IndexOfText<Place::kFirst>, "/sub,start,end", 1},
    {"rindex", IndexOfText<Place::kLast>, "/sub,start,end", 1},
    {"count", CountText, "/sub,start,end", 1},
    {"startswith", HasTextAt<Side::kLeft>, "/prefix,start,end", 1},
    {"endswith", HasTextAt<Side::kRight>, "/suffix,start,end", 1},
    {"removeprefix", RemoveSide<Side::kLeft>, "/prefix", 1},
    {"removesuffix", RemoveSide<Side::kRight>, "/suffix", 1},
    {"ljust", PadText<'<'>, "/width,fillchar", 1},
    {"rjust", PadText<'>'>, "/width,fillchar", 1},
    {"center", PadText<'^'>, "/width,fillchar", 1},
    {"zfill", FillWithZeros, "/width", 1},
    {"format", BraceFormat, "*", 0},
    {"encode", NotKnown, "*", 0},
    {"expandtabs", NotKnown, "*", 0},
    {"format_map", NotKnown, "*", 0},
    {"isidentifier", NotKnown, "*", 0},
    {"isprintable", NotKnown, "*", 0},
    {"maketrans", NotKnown, "*", 0},
    {"translate", NotKnown, "*", 0},
};

}  // namespace

std::span<const FunctionDef> StringMethods() { return kMethods; }

}  // namespace kvrun::jinja
