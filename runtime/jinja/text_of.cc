// str() and repr() of Python, as marked text.
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "runtime/jinja/evaluate.h"
#include "runtime/jinja/unicode.h"

namespace kvrun::jinja {
namespace {

void AppendEscape(uint32_t code, std::string* text) {
  char escape[16];
  const char* const form = code < 0x100 ? "\\x%02x" : code < 0x10000 ? "\\u%04x" : "\\U%08x";
  std::snprintf(escape, sizeof(escape), form, code);
  *text += escape;
}

// The characters of a quoted text keep their marks; the quotes are form.
Status AppendQuoted(Run& run, const MarkedText& string, MarkedText* text) {
  const std::string_view bytes = string.bytes();
  KVRUN_RETURN_IF_ERROR(run.Take(bytes.size()));
  const bool has_single = bytes.find('\'') != bytes.npos;
  const char quote = has_single && bytes.find('"') == bytes.npos ? '"' : '\'';
  text->AppendForm({&quote, 1});
  for (size_t position = 0; position < bytes.size();) {
    const Character character = CharacterAt(bytes, position);
    const bool is_content = string.IsContent(position);
    const auto c = static_cast<char>(character.code);
    std::string escaped;
    if (character.code == '\n' || character.code == '\r' || character.code == '\t') {
      escaped = c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t";
    } else if (character.code == '\\' || (character.code < 0x80 && c == quote)) {
      escaped = {'\\', c};
    } else if (!IsPrintable(character.code)) {
      AppendEscape(character.code, &escaped);
    } else {
      escaped = bytes.substr(position, character.n_bytes);
    }
    text->Append(escaped, is_content);
    position += character.n_bytes;
  }
  text->AppendForm({&quote, 1});
  return Status::Ok();
}

Status AppendItems(Run& run, const std::vector<Value>& items, MarkedText* text) {
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) text->AppendForm(", ");
    KVRUN_RETURN_IF_ERROR(AppendRepr(run, items[i], text));
  }
  return Status::Ok();
}

Status AppendEntries(Run& run, const std::vector<Pair>& entries, MarkedText* text) {
  text->AppendForm("{");
  for (size_t i = 0; i < entries.size(); ++i) {
    if (i > 0) text->AppendForm(", ");
    KVRUN_RETURN_IF_ERROR(AppendRepr(run, entries[i].first, text));
    text->AppendForm(": ");
    KVRUN_RETURN_IF_ERROR(AppendRepr(run, entries[i].second, text));
  }
  text->AppendForm("}");
  return Status::Ok();
}

Status AppendView(Run& run, const View& view, MarkedText* text) {
  const bool has_keys = view.part != View::Part::kValues;
  const bool has_values = view.part != View::Part::kKeys;
  text->AppendForm(!has_values ? "dict_keys([" : !has_keys ? "dict_values([" : "dict_items([");
  for (size_t i = 0; i < view.entries().size(); ++i) {
    const auto& [key, value] = view.entries()[i];
    if (i > 0) text->AppendForm(", ");
    if (has_keys && has_values) text->AppendForm("(");
    if (has_keys) KVRUN_RETURN_IF_ERROR(AppendRepr(run, key, text));
    if (has_keys && has_values) text->AppendForm(", ");
    if (has_values) KVRUN_RETURN_IF_ERROR(AppendRepr(run, value, text));
    if (has_keys && has_values) text->AppendForm(")");
  }
  text->AppendForm("])");
  return Status::Ok();
}

void AppendRange(const Range& range, MarkedText* text) {
  text->AppendForm("range(" + std::to_string(range.start) + ", " + std::to_string(range.stop));
  text->AppendForm(range.step == 1 ? ")" : ", " + std::to_string(range.step) + ")");
}

void AppendCallable(const Callable& callable, MarkedText* text) {
  if (callable.macro == nullptr) {
    text->AppendForm("<function " + std::string(callable.function->name) + ">");
  } else if (callable.macro->name.is_missing()) {
    text->AppendForm("<Macro anonymous>");
  } else {
    text->AppendForm("<Macro '" + std::string(callable.macro->name.bytes()) + "'>");
  }
}

}  // namespace

// The fewest digits that give the same number, as Python writes them.
std::string FloatText(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char digits[40];
  for (int n = 14; n <= 16; ++n) {
    std::snprintf(digits, sizeof(digits), "%.*e", n, value);
    if (std::strtod(digits, nullptr) == value) break;
  }
  std::string mantissa(digits);
  const size_t e = mantissa.find('e');
  const int exponent = std::atoi(mantissa.c_str() + e + 1);
  mantissa.resize(e);
  const std::string sign = mantissa[0] == '-' ? "-" : "";
  std::string number = mantissa.substr(sign.size(), 1) + mantissa.substr(sign.size() + 2);
  number.erase(number.find_last_not_of('0') == number.npos ? 1 : number.find_last_not_of('0') + 1);
  const auto n_digits = static_cast<int>(number.size());
  if (exponent < -4 || exponent >= 16) {
    if (n_digits > 1) number.insert(1, ".");
    char tail[16];
    std::snprintf(tail, sizeof(tail), "e%c%02d", exponent < 0 ? '-' : '+', std::abs(exponent));
    return sign + number + tail;
  }
  if (exponent < 0) return sign + "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + number;
  if (n_digits <= exponent + 1)
    return sign + number + std::string(static_cast<size_t>(exponent + 1 - n_digits), '0') + ".0";
  return sign + number.insert(static_cast<size_t>(exponent + 1), ".");
}

Status AppendRepr(Run& run, const Value& value, MarkedText* text) {
  const Descent descent(run);
  KVRUN_RETURN_IF_ERROR(descent.Check());
  KVRUN_RETURN_IF_ERROR(run.Step());
  KVRUN_RETURN_IF_ERROR(run.Take(16));
  switch (value.kind()) {
    case Kind::kUndefined: text->AppendForm("Undefined"); return Status::Ok();
    case Kind::kString:
      if (!value.text().is_markup) return AppendQuoted(run, value.text(), text);
      text->AppendForm("Markup(");
      KVRUN_RETURN_IF_ERROR(AppendQuoted(run, value.text(), text));
      break;
    case Kind::kList:
      text->AppendForm("[");
      KVRUN_RETURN_IF_ERROR(AppendItems(run, value.items(), text));
      text->AppendForm("]");
      return Status::Ok();
    case Kind::kTuple:
      text->AppendForm("(");
      KVRUN_RETURN_IF_ERROR(AppendItems(run, value.items(), text));
      if (value.items().size() == 1) text->AppendForm(",");
      break;
    case Kind::kDict: return AppendEntries(run, value.dict().entries, text);
    case Kind::kView: return AppendView(run, value.view(), text);
    case Kind::kNamespace:
      text->AppendForm("<Namespace ");
      KVRUN_RETURN_IF_ERROR(AppendEntries(run, value.name_space().attributes, text));
      text->AppendForm(">");
      return Status::Ok();
    default: return AppendText(run, value, text);
  }
  text->AppendForm(")");
  return Status::Ok();
}

Status AppendText(Run& run, const Value& value, MarkedText* text) {
  switch (value.kind()) {
    case Kind::kMissing:
    case Kind::kUndefined: return Status::Ok();
    case Kind::kNone: text->AppendForm("None"); return Status::Ok();
    case Kind::kBool: text->AppendForm(value.boolean() ? "True" : "False"); return Status::Ok();
    case Kind::kInt: text->AppendForm(std::to_string(value.integer())); return Status::Ok();
    case Kind::kFloat: text->AppendForm(FloatText(value.real())); return Status::Ok();
    case Kind::kString: text->Append(value.text()); return Status::Ok();
    case Kind::kRange: AppendRange(value.range(), text); return Status::Ok();
    case Kind::kCallable: AppendCallable(value.callable(), text); return Status::Ok();
    case Kind::kGenerator: text->AppendForm("<generator object>"); return Status::Ok();
    case Kind::kCycler: text->AppendForm("<Cycler object>"); return Status::Ok();
    case Kind::kLoop: {
      KVRUN_ASSIGN_OR_RETURN(const int64_t length, value.loop().Length(run));
      text->AppendForm("<LoopContext " + std::to_string(value.loop().index0 + 1) + "/" +
                       std::to_string(length) + ">");
      return Status::Ok();
    }
    default: return AppendRepr(run, value, text);
  }
}

Result<MarkedText> TextOf(Run& run, const Value& value) {
  MarkedText text;
  KVRUN_RETURN_IF_ERROR(AppendText(run, value, &text));
  return text;
}

}  // namespace kvrun::jinja
