// "text" % values.
#include <algorithm>

#include "runtime/jinja/field_format.h"
#include "runtime/jinja/unicode.h"

namespace kvrun::jinja {
namespace {

class PercentFormatter {
 public:
  PercentFormatter(Run& run, const MarkedText& format, const Value& values)
      : run_(run), format_(format), bytes_(format.bytes()), values_(values) {}

  Result<Value> Format() {
    MarkedText text;
    while (position_ < bytes_.size()) {
      const size_t next = std::min(bytes_.find('%', position_), bytes_.size());
      KVRUN_RETURN_IF_ERROR(run_.Take(next - position_));
      text.Append(format_, position_, next);
      position_ = next;
      if (next == bytes_.size()) break;
      KVRUN_ASSIGN_OR_RETURN(const MarkedText field, Field());
      text.Append(field);
    }
    const bool is_mapping = values_.Is(Kind::kDict) || values_.Is(Kind::kList) || values_.Is(Kind::kRange) ||
                            values_.Is(Kind::kUndefined);
    if (!is_mapping && next_ < Count()) return Wrong("a format with % does not use all values");
    text.is_markup = format_.is_markup;
    return run_.MakeString(std::move(text));
  }

 private:
  size_t Count() const { return values_.Is(Kind::kTuple) ? values_.items().size() : 1; }

  Result<Value> NextValue() {
    if (next_ >= Count()) return Wrong("a format with % has too few values");
    return values_.Is(Kind::kTuple) ? values_.items()[next_++] : (++next_, values_);
  }

  char Here() const { return position_ < bytes_.size() ? bytes_[position_] : '\0'; }

  // (name) of a dict's value.
  Result<Value> NamedValue() {
    const size_t begin = ++position_;
    size_t n_open = 1;
    for (; position_ < bytes_.size() && n_open > 0; ++position_) {
      n_open += bytes_[position_] == '(' ? 1 : 0;
      n_open -= bytes_[position_] == ')' ? 1 : 0;
    }
    if (n_open > 0) return Wrong("a format with % has an open bracket");
    if (!values_.Is(Kind::kDict)) return Wrong("a format with % wants a dict");
    const std::string_view name = bytes_.substr(begin, position_ - 1 - begin);
    const Value* const value = FindKey(values_.dict(), name);
    if (value == nullptr) return Wrong("a format with % wants '" + Excerpt(name) + "', which the dict lacks");
    next_ = Count();
    return *value;
  }

  Result<int64_t> Number() {
    if (Here() == '*') {
      ++position_;
      KVRUN_ASSIGN_OR_RETURN(const Value value, NextValue());
      if (!value.Is(Kind::kInt)) return Wrong("* in a format wants a number");
      return std::abs(value.real()) <= kMostWidth ? Result<int64_t>(value.integer()) : TooWide();
    }
    int64_t number = 0;
    for (; Here() >= '0' && Here() <= '9'; ++position_) {
      number = number * 10 + (Here() - '0');
      if (number > kMostWidth) return TooWide();
    }
    return number;
  }

  static Status TooWide() { return Wrong("a width or precision of a format is too large"); }

  Status Flags(FieldFormat* field) {
    bool has_zero = false;
    for (; std::string_view("-+ #0").find(Here()) != std::string_view::npos && Here() != '\0'; ++position_) {
      if (Here() == '-') field->align = '<';
      if (Here() == '+' || (Here() == ' ' && field->sign != '+')) field->sign = Here();
      if (Here() == '#') field->is_alternate = true;
      if (Here() == '0') has_zero = true;
    }
    KVRUN_ASSIGN_OR_RETURN(field->width, Number());
    if (field->width < 0) field->align = '<';
    field->width = std::abs(field->width);
    if (Here() == '.') {
      ++position_;
      KVRUN_ASSIGN_OR_RETURN(field->precision, Number());
      field->precision = std::max<int64_t>(field->precision, 0);
    }
    while (Here() == 'l' || Here() == 'h' || Here() == 'L') ++position_;
    if (has_zero && field->align == 0) is_zero_filled_ = true;
    return Status::Ok();
  }

  Result<MarkedText> Field() {
    const size_t begin = position_++;
    if (Here() == '%') {
      ++position_;
      return format_.Slice(begin, begin + 1);
    }
    FieldFormat field;
    Value value;
    is_zero_filled_ = false;
    if (Here() == '(') {
      KVRUN_ASSIGN_OR_RETURN(value, NamedValue());
    }
    KVRUN_RETURN_IF_ERROR(Flags(&field));
    field.type = Here();
    ++position_;
    if (std::string_view("sradiuoxXeEfFgGc").find(field.type) == std::string_view::npos ||
        field.type == '\0') {
      return Wrong("a format with % has a field that is not known");
    }
    if (value.is_missing()) {
      KVRUN_ASSIGN_OR_RETURN(value, NextValue());
    }
    if (std::string_view("sra").find(field.type) != std::string_view::npos) return TextField(value, field);
    return NumberField(value, field);
  }

  Result<MarkedText> TextField(const Value& value, const FieldFormat& field) {
    MarkedText text;
    if (field.type == 's' && format_.is_markup) {
      KVRUN_RETURN_IF_ERROR(AppendEscaped(run_, value, &text));
    } else {
      KVRUN_RETURN_IF_ERROR(field.type == 's' ? AppendText(run_, value, &text)
                                              : AppendRepr(run_, value, &text));
    }
    KVRUN_RETURN_IF_ERROR(run_.Take(text.size()));
    if (field.precision >= 0) {
      text = text.Slice(0, OffsetOfCharacter(text.bytes(), static_cast<size_t>(field.precision)));
    }
    return Padded(run_, text, field, '>');
  }

  Result<MarkedText> NumberField(const Value& value, FieldFormat field) {
    if (is_zero_filled_ && field.type != 'c') {
      field.fill = MarkedText::Form("0");
      field.align = '=';
    }
    if (field.type == 'c' && value.is_string() && CountCharacters(value.bytes()) == 1) {
      return Padded(run_, value.text(), field, '>');
    }
    if (value.is_undefined()) return Wrong(value.why_undefined());
    if (!value.is_number())
      return Wrong("a format with % wants a number, and not a " + std::string(TypeName(value)));
    if (std::string_view("eEfFgG").find(field.type) != std::string_view::npos) {
      return FloatField(run_, value.real(), field);
    }
    if (std::string_view("diu").find(field.type) != std::string_view::npos) {
      field.type = 'd';
    } else if (!value.is_integer()) {
      return Wrong("a format with % wants a whole number");
    } else if (field.type == 'c') {
      field.align = field.align == 0 ? '>' : field.align;
    }
    if (!(std::abs(value.real()) < 9.2e18)) return Wrong("a number is larger than 64 bits hold");
    return IntegerField(run_, value.is_integer() ? value.integer() : static_cast<int64_t>(value.real()),
                        field);
  }

  Run& run_;
  const MarkedText& format_;
  std::string_view bytes_;
  const Value& values_;
  size_t position_ = 0;
  size_t next_ = 0;
  bool is_zero_filled_ = false;
};

}  // namespace

Result<Value> PercentFormat(Run& run, const MarkedText& text, const Value& value) {
  return PercentFormatter(run, text, value).Format();
}

}  // namespace kvrun::jinja
