// Methods of str that split it or say what it consists of.
#include "runtime/jinja/text_edit.h"
#include "runtime/jinja/text_search.h"
#include "runtime/jinja/unicode.h"

namespace kvrun::jinja {
namespace {

// Words between spaces: at most `most` splits, from the left or the right.
Result<std::vector<Value>> WordsOf(Run& run, const MarkedText& text, int64_t most, bool from_right) {
  const std::string_view bytes = text.bytes();
  KVRUN_RETURN_IF_ERROR(run.Step(bytes.size() / 16));
  std::vector<std::pair<size_t, size_t>> words;
  for (size_t position = 0; position < bytes.size();) {
    const Character character = CharacterAt(bytes, position);
    const bool goes_on = !words.empty() && words.back().second == position;
    if (!IsSpace(character.code) && !goes_on) {
      KVRUN_RETURN_IF_ERROR(run.Take(16));
      words.emplace_back(position, position);
    }
    position += character.n_bytes;
    if (!IsSpace(character.code)) words.back().second = position;
  }
  const size_t n = most < 0 ? words.size() : std::min(words.size(), static_cast<size_t>(most) + 1);
  std::vector<Value> values;
  for (size_t i = 0; i < n; ++i) {
    auto [begin, end] = words[from_right ? words.size() - n + i : i];
    // What is not split keeps the spaces at its far end.
    const bool is_rest = most >= 0 && n == static_cast<size_t>(most) + 1 && i == (from_right ? 0 : n - 1);
    if (is_rest && from_right) begin = 0;
    if (is_rest && !from_right) end = bytes.size();
    KVRUN_ASSIGN_OR_RETURN(Value value, run.MakeString(text.Slice(begin, end)));
    values.push_back(std::move(value));
  }
  return values;
}

template <bool from_right>
Result<Value> SplitText(Run& run, const Value& self, const Args& args) {
  KVRUN_ASSIGN_OR_RETURN(const int64_t most, args.Integer(1, -1));
  if (!args.Has(0) || args[0].Is(Kind::kNone)) {
    KVRUN_ASSIGN_OR_RETURN(std::vector<Value> words, WordsOf(run, self.text(), most, from_right));
    return MakeList(run, std::move(words));
  }
  KVRUN_ASSIGN_OR_RETURN(const MarkedText* const separator, StringOf(args[0]));
  if (separator->empty()) return Wrong("split() wants a separator that is not empty");
  const auto find = from_right ? FindAllFromRight : FindAll;
  KVRUN_ASSIGN_OR_RETURN(const std::vector<size_t> places, find(run, self.bytes(), separator->bytes(), most));
  std::vector<Value> parts;
  size_t begin = 0;
  for (size_t i = 0; i <= places.size(); ++i) {
    const size_t end = i < places.size() ? places[i] : self.bytes().size();
    KVRUN_ASSIGN_OR_RETURN(Value part, run.MakeString(self.text().Slice(begin, end)));
    parts.push_back(std::move(part));
    begin = end + separator->size();
  }
  return MakeList(run, std::move(parts));
}

template <bool from_right>
Result<Value> PartitionText(Run& run, const Value& self, const Args& args) {
  KVRUN_ASSIGN_OR_RETURN(const MarkedText* const separator, StringOf(args[0]));
  if (separator->empty()) return Wrong("partition() wants a separator that is not empty");
  const auto find = from_right ? FindAllFromRight : FindAll;
  KVRUN_ASSIGN_OR_RETURN(const std::vector<size_t> places, find(run, self.bytes(), separator->bytes(), 1));
  const Value nothing = Value::String(self.text().Slice(0, 0));
  if (places.empty()) {
    return from_right ? MakeTuple(run, {nothing, nothing, self}) : MakeTuple(run, {self, nothing, nothing});
  }
  const size_t end = places[0] + separator->size();
  KVRUN_ASSIGN_OR_RETURN(Value before, run.MakeString(self.text().Slice(0, places[0])));
  KVRUN_ASSIGN_OR_RETURN(Value after, run.MakeString(self.text().Slice(end, self.bytes().size())));
  return MakeTuple(run, {std::move(before), args[0], std::move(after)});
}

Result<Value> SplitLines(Run& run, const Value& self, const Args& args) {
  KVRUN_ASSIGN_OR_RETURN(std::vector<Value> lines, LinesOf(run, self.text(), args.IsTrueOr(0, false)));
  return MakeList(run, std::move(lines));
}

template <bool (*holds)(uint32_t)>
Result<Value> AreAll(Run& run, const Value& self, const Args&) {
  KVRUN_RETURN_IF_ERROR(run.Step(self.bytes().size() / 16));
  const std::string_view bytes = self.bytes();
  for (size_t position = 0; position < bytes.size();) {
    const Character character = CharacterAt(bytes, position);
    if (!holds(character.code)) return Value::Bool(false);
    position += character.n_bytes;
  }
  return Value::Bool(!bytes.empty());
}

bool IsAlnum(uint32_t code) { return IsAlpha(code) || IsDigit(code); }
bool IsAscii(uint32_t code) { return code < 0x80; }

// At least one cased letter, and none of the other case.
template <bool (*wanted)(uint32_t), bool (*unwanted)(uint32_t)>
Result<Value> HasCase(Run& run, const Value& self, const Args&) {
  KVRUN_RETURN_IF_ERROR(run.Step(self.bytes().size() / 16));
  const std::string_view bytes = self.bytes();
  bool is_there = false;
  for (size_t position = 0; position < bytes.size();) {
    const Character character = CharacterAt(bytes, position);
    if (unwanted(character.code)) return Value::Bool(false);
    is_there = is_there || wanted(character.code);
    position += character.n_bytes;
  }
  return Value::Bool(is_there);
}

Result<Value> HasOnlyAscii(Run& run, const Value& self, const Args& args) {
  return self.bytes().empty() ? Value::Bool(true) : AreAll<IsAscii>(run, self, args);
}

Result<Value> HasTitleCase(Run& run, const Value& self, const Args&) {
  KVRUN_RETURN_IF_ERROR(run.Step(self.bytes().size() / 16));
  const std::string_view bytes = self.bytes();
  bool in_word = false;
  bool is_there = false;
  for (size_t position = 0; position < bytes.size();) {
    const Character character = CharacterAt(bytes, position);
    if ((in_word && IsUpper(character.code)) || (!in_word && IsLower(character.code)))
      return Value::Bool(false);
    in_word = IsUpper(character.code) || IsLower(character.code);
    is_there = is_there || in_word;
    position += character.n_bytes;
  }
  return Value::Bool(is_there);
}

constexpr FunctionDef kSplits[] = {
    {"split", SplitText<false>, "sep,maxsplit", 0}, {"rsplit", SplitText<true>, "sep,maxsplit", 0},
    {"partition", PartitionText<false>, "/sep", 1}, {"rpartition", PartitionText<true>, "/sep", 1},
    {"splitlines", SplitLines, "keepends", 0},
};

constexpr FunctionDef kQuestions[] = {
    {"isdigit", AreAll<IsDigit>, "", 0},
    {"isdecimal", AreAll<IsDecimal>, "", 0},
    {"isnumeric", AreAll<IsDigit>, "", 0},
    {"isalpha", AreAll<IsAlpha>, "", 0},
    {"isalnum", AreAll<IsAlnum>, "", 0},
    {"isspace", AreAll<IsSpace>, "", 0},
    {"isascii", HasOnlyAscii, "", 0},
    {"isupper", HasCase<IsUpper, IsLower>, "", 0},
    {"islower", HasCase<IsLower, IsUpper>, "", 0},
    {"istitle", HasTitleCase, "", 0},
};

}  // namespace

std::span<const FunctionDef> SplitMethods() { return kSplits; }
std::span<const FunctionDef> StringTestMethods() { return kQuestions; }

}  // namespace kvrun::jinja
