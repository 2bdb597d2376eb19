// "text".format(values).
#include <algorithm>

#include "runtime/jinja/field_format.h"
#include "runtime/jinja/unicode.h"

namespace kvrun::jinja {
namespace {

class BraceFormatter {
 public:
  BraceFormatter(Run& run, const Args& args, bool is_markup)
      : run_(run), args_(args), is_markup_(is_markup) {}

  // Fields within the format of a field are `depth` 1.
  Result<MarkedText> Format(const MarkedText& format, int depth) {
    const std::string_view bytes = format.bytes();
    MarkedText text;
    for (size_t position = 0; position < bytes.size();) {
      const size_t next = std::min(bytes.find_first_of("{}", position), bytes.size());
      KVRUN_RETURN_IF_ERROR(run_.Take(next - position + 8));
      text.Append(format, position, next);
      position = next;
      if (next == bytes.size()) break;
      if (bytes.substr(next + 1, 1) == bytes.substr(next, 1)) {
        text.Append(format, next, next + 1);
        position += 2;
        continue;
      }
      if (bytes[next] == '}') return Wrong("a format has a '}' without a '{'");
      KVRUN_ASSIGN_OR_RETURN(const size_t end, EndOfField(bytes, next));
      KVRUN_ASSIGN_OR_RETURN(const MarkedText field, Field(format.Slice(next + 1, end), depth));
      text.Append(field);
      position = end + 1;
    }
    return text;
  }

 private:
  static Result<size_t> EndOfField(std::string_view bytes, size_t begin) {
    size_t n_open = 0;
    for (size_t i = begin; i < bytes.size(); ++i) {
      if (bytes[i] == '{') ++n_open;
      if (bytes[i] == '}' && --n_open == 0) return i;
    }
    return Wrong("a format has a '{' without a '}'");
  }

  Result<MarkedText> Field(const MarkedText& field, int depth) {
    if (depth > 1) return Wrong("fields of a format are nested too deeply");
    const std::string_view bytes = field.bytes();
    // A "!" or ":" within [] belongs to the name.
    size_t name_end = 0;
    for (bool in_key = false; name_end < bytes.size(); ++name_end) {
      const char c = bytes[name_end];
      in_key = c == '[' || (in_key && c != ']');
      if (!in_key && (c == '!' || c == ':')) break;
    }
    KVRUN_ASSIGN_OR_RETURN(Value value, Named(bytes.substr(0, name_end)));
    size_t at = name_end;
    if (at < bytes.size() && bytes[at] == '!') {
      const char conversion = at + 1 < bytes.size() ? bytes[at + 1] : ' ';
      if (conversion != 'r' && conversion != 's' && conversion != 'a')
        return Wrong("a format's ! wants r, s or a");
      MarkedText text;
      KVRUN_RETURN_IF_ERROR(conversion == 's' ? AppendText(run_, value, &text)
                                              : AppendRepr(run_, value, &text));
      KVRUN_ASSIGN_OR_RETURN(value, run_.MakeString(std::move(text)));
      at += 2;
      if (at < bytes.size() && bytes[at] != ':') return Wrong("a format wants ':' after its conversion");
    }
    MarkedText spec;
    if (at < bytes.size()) {
      KVRUN_ASSIGN_OR_RETURN(spec, Format(field.Slice(at + 1, bytes.size()), depth + 1));
    }
    return Formatted(value, spec);
  }

  static bool IsNumber(std::string_view text) {
    return !text.empty() && text.find_first_not_of("0123456789") == text.npos;
  }

  Result<Value> Positional(std::string_view name) {
    if ((name.empty() && next_ < 0) || (!name.empty() && next_ > 0)) {
      return Wrong("a format numbers some of its fields and not others");
    }
    size_t index = 0;
    for (const char c : name) index = std::min<size_t>(index * 10 + static_cast<size_t>(c - '0'), 1U << 30);
    if (name.empty()) index = static_cast<size_t>(next_++);
    if (!name.empty()) next_ = -1;
    if (index >= args_.positional().size()) return Wrong("a format has too few values");
    return args_.positional()[index];
  }

  // name, name.attribute, name[key].
  Result<Value> Named(std::string_view path) {
    const std::string_view first = path.substr(0, path.find_first_of(".["));
    path.remove_prefix(first.size());
    Value value;
    if (first.empty() || IsNumber(first)) {
      KVRUN_ASSIGN_OR_RETURN(value, Positional(first));
    } else {
      const auto& named = args_.named();
      const auto at =
          std::find_if(named.begin(), named.end(), [&](const Pair& p) { return p.first.bytes() == first; });
      if (at == named.end()) return Wrong("a format has no value named '" + Excerpt(first) + "'");
      value = at->second;
    }
    while (!path.empty()) {
      const bool is_key = path[0] == '[';
      path.remove_prefix(1);
      const std::string_view part = path.substr(0, path.find_first_of(is_key ? "]" : ".["));
      if (part.empty() || (is_key && part.size() == path.size()))
        return Wrong("a format's field has a wrong name");
      path.remove_prefix(part.size() + (is_key ? 1 : 0));
      const Value key = is_key && IsNumber(part) && part.size() < 10
                            ? Value::Int(std::stoi(std::string(part)))
                            : Value::Form(part);
      KVRUN_ASSIGN_OR_RETURN(value, is_key ? ItemOf(run_, value, key) : AttributeOf(run_, value, key));
    }
    return value;
  }

  Result<MarkedText> Formatted(const Value& value, const MarkedText& spec) {
    if (is_markup_ && spec.empty()) {
      MarkedText text;
      KVRUN_RETURN_IF_ERROR(AppendEscaped(run_, value, &text));
      return text;
    }
    if (value.is_string() || spec.empty()) {
      KVRUN_ASSIGN_OR_RETURN(const MarkedText text, TextOf(run_, value));
      KVRUN_RETURN_IF_ERROR(run_.Take(text.size()));
      return spec.empty() ? text : StringField(text, spec);
    }
    if (!value.is_number()) return Wrong("a " + std::string(TypeName(value)) + " takes no format");
    KVRUN_ASSIGN_OR_RETURN(FieldFormat field, Parse(spec, true));
    if (field.type == 'n') field.type = value.Is(Kind::kFloat) ? 'g' : 'd';
    const bool is_float_type = std::string_view("eEfFgG%").find(field.type) != std::string_view::npos;
    if (is_float_type && field.type != 0) return FloatField(run_, value.real(), field);
    if (value.Is(Kind::kFloat)) return field.type == 0 ? FloatField(run_, value.real(), field) : BadType();
    if (std::string_view("dboxXc").find(field.type) == std::string_view::npos && field.type != 0)
      return BadType();
    if (field.precision >= 0) return Wrong("a whole number takes no precision");
    return IntegerField(run_, value.integer(), field);
  }

  static Status BadType() { return Wrong("a format has a type that its value does not take"); }

  Result<MarkedText> StringField(MarkedText text, const MarkedText& spec) {
    KVRUN_ASSIGN_OR_RETURN(const FieldFormat field, Parse(spec, false));
    if (field.type != 0 && field.type != 's') return BadType();
    if (field.sign != '-' || field.align == '=' || field.grouping != 0) return BadType();
    if (field.precision >= 0) {
      text = text.Slice(0, OffsetOfCharacter(text.bytes(), static_cast<size_t>(field.precision)));
    }
    return Padded(run_, text, field, '<');
  }

  static Result<int64_t> Number(std::string_view spec, size_t* at, int64_t otherwise) {
    const size_t begin = *at;
    int64_t number = 0;
    for (; *at < spec.size() && spec[*at] >= '0' && spec[*at] <= '9'; ++*at) {
      number = number * 10 + (spec[*at] - '0');
      if (number > kMostWidth) return Wrong("a width or precision is too large");
    }
    return *at == begin ? otherwise : number;
  }

  // [[fill]align][sign][#][0][width][grouping][.precision][type]
  static Result<FieldFormat> Parse(const MarkedText& spec, bool is_number) {
    const std::string_view bytes = spec.bytes();
    FieldFormat field;
    size_t at = 0;
    const auto here = [&] { return at < bytes.size() ? bytes[at] : '\0'; };
    const auto is_align = [&](size_t i) {
      return i < bytes.size() && std::string_view("<>=^").find(bytes[i]) != std::string_view::npos;
    };
    if (const size_t n = bytes.empty() ? 0 : CharacterAt(bytes, 0).n_bytes; n > 0 && is_align(n)) {
      field.fill = spec.Slice(0, n);
      at = n;
    }
    if (is_align(at)) field.align = bytes[at++];
    if (here() == '+' || here() == '-' || here() == ' ') field.sign = bytes[at++];
    if (here() == '#') field.is_alternate = (++at, true);
    if (here() == '0') {
      ++at;
      if (field.fill.bytes() == " " && at < 3) field.fill = spec.Slice(at - 1, at);
      if (field.align == 0 && is_number) field.align = '=';
      if (field.align == 0) field.align = '<';
    }
    KVRUN_ASSIGN_OR_RETURN(field.width, Number(bytes, &at, 0));
    if (here() == ',' || here() == '_') field.grouping = bytes[at++];
    if (here() == '.') {
      ++at;
      KVRUN_ASSIGN_OR_RETURN(field.precision, Number(bytes, &at, -1));
      if (field.precision < 0) return Wrong("a format lacks its precision");
    }
    if (at < bytes.size()) field.type = bytes[at++];
    if (at < bytes.size()) return Wrong("a format '" + Excerpt(bytes) + "' is not known");
    return field;
  }

  Run& run_;
  const Args& args_;
  bool is_markup_;
  int64_t next_ = 0;
};

}  // namespace

Result<Value> BraceFormat(Run& run, const Value& self, const Args& args) {
  KVRUN_ASSIGN_OR_RETURN(MarkedText text,
                         BraceFormatter(run, args, self.text().is_markup).Format(self.text(), 0));
  text.is_markup = self.text().is_markup;
  return run.MakeString(std::move(text));
}

}  // namespace kvrun::jinja
