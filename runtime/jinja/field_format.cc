#include "runtime/jinja/field_format.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "runtime/jinja/unicode.h"

namespace kvrun::jinja {
namespace {

constexpr int64_t kMostDigits = 4096;

std::string Digits(uint64_t value, unsigned base, bool is_upper) {
  const std::string_view alphabet = is_upper ? "0123456789ABCDEF" : "0123456789abcdef";
  std::string digits;
  do {
    digits += alphabet[value % base];
    value /= base;
  } while (value > 0);
  std::reverse(digits.begin(), digits.end());
  return digits;
}

std::string Grouped(const std::string& digits, char separator, size_t n) {
  const size_t n_whole = std::min(digits.find_first_not_of("0123456789abcdefABCDEF"), digits.size());
  std::string grouped;
  for (size_t i = 0; i < n_whole; ++i) {
    if (i > 0 && (n_whole - i) % n == 0) grouped += separator;
    grouped += digits[i];
  }
  return grouped + digits.substr(n_whole);
}

// Sign, "0x", fill and digits.
Result<MarkedText> NumberField(Run& run, bool is_negative, const std::string& prefix,
                               const std::string& digits, const FieldFormat& format) {
  std::string front = is_negative ? "-" : format.sign == '-' ? "" : std::string(1, format.sign);
  front += prefix;
  if (format.align != '=') return Padded(run, MarkedText::Form(front + digits), format, '>');
  FieldFormat rest = format;
  rest.width = std::max<int64_t>(0, format.width - static_cast<int64_t>(front.size()));
  KVRUN_ASSIGN_OR_RETURN(const MarkedText padded, Padded(run, MarkedText::Form(digits), rest, '>'));
  MarkedText field = MarkedText::Form(front);
  field.Append(padded);
  return field;
}

void AppendRepeated(const MarkedText& fill, size_t n, MarkedText* to) {
  std::string all;
  for (size_t i = 0; i < n; ++i) all += fill.bytes();
  to->Append(all, fill.has_content());
}

std::string WithPrecision(double value, const char* format, int64_t precision) {
  std::string digits(static_cast<size_t>(precision) + 350, '\0');
  const int n = std::snprintf(digits.data(), digits.size(), format, static_cast<int>(precision), value);
  digits.resize(static_cast<size_t>(std::max(n, 0)));
  return digits;
}

}  // namespace

Result<MarkedText> Padded(Run& run, const MarkedText& text, const FieldFormat& format, char usual_align) {
  KVRUN_RETURN_IF_ERROR(run.Step(text.size() / 32));
  const auto size = static_cast<int64_t>(CountCharacters(text.bytes()));
  if (format.width <= size) return text;
  const auto n_fill = static_cast<size_t>(format.width - size);
  KVRUN_RETURN_IF_ERROR(run.Take(text.size() + n_fill * format.fill.size()));
  const char align = format.align == 0 ? usual_align : format.align;
  const size_t n_left = align == '<' ? 0 : align == '^' ? n_fill / 2 : n_fill;
  MarkedText padded;
  AppendRepeated(format.fill, n_left, &padded);
  padded.Append(text);
  AppendRepeated(format.fill, n_fill - n_left, &padded);
  return padded;
}

Result<MarkedText> IntegerField(Run& run, int64_t value, const FieldFormat& format) {
  if (format.type == 'c') {
    if (value < 0 || value > 0x10ffff) return Wrong("a number is no character's");
    // Whoever chose the number may stand outside of the template.
    std::string character;
    AppendUtf8(static_cast<uint32_t>(value), &character);
    return Padded(run, MarkedText(character, true), format, '<');
  }
  const unsigned base = format.type == 'b'            ? 2
                        : format.type == 'o'          ? 8
                        : (format.type | 0x20) == 'x' ? 16
                                                      : 10;
  const uint64_t size = value < 0 ? 0 - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
  std::string digits = Digits(size, base, format.type == 'X');
  if (format.precision > kMostDigits) return Wrong("the precision of a number is too large");
  if (format.precision > static_cast<int64_t>(digits.size())) {
    digits.insert(0, static_cast<size_t>(format.precision) - digits.size(), '0');
  }
  if (format.grouping != 0) digits = Grouped(digits, format.grouping, base == 10 ? 3 : 4);
  const std::string prefix = format.is_alternate && base != 10 ? std::string("0") + format.type : "";
  return NumberField(run, value < 0, prefix, digits, format);
}

Result<MarkedText> FloatField(Run& run, double value, const FieldFormat& format) {
  if (format.precision > kMostDigits) return Wrong("the precision of a number is too large");
  const int64_t precision = format.precision < 0 ? 6 : format.precision;
  const double size = std::fabs(value);
  std::string digits;
  switch (format.type) {
    case 'e': digits = WithPrecision(size, format.is_alternate ? "%#.*e" : "%.*e", precision); break;
    case 'E': digits = WithPrecision(size, format.is_alternate ? "%#.*E" : "%.*E", precision); break;
    case 'f': digits = WithPrecision(size, format.is_alternate ? "%#.*f" : "%.*f", precision); break;
    case 'F': digits = WithPrecision(size, format.is_alternate ? "%#.*F" : "%.*F", precision); break;
    case 'G': digits = WithPrecision(size, format.is_alternate ? "%#.*G" : "%.*G", precision); break;
    case '%': digits = WithPrecision(size * 100, "%.*f", precision) + "%"; break;
    case 'g': digits = WithPrecision(size, format.is_alternate ? "%#.*g" : "%.*g", precision); break;
    default:
      digits = format.precision < 0 ? FloatText(size) : WithPrecision(size, "%.*g", precision);
      if (std::isfinite(size) && digits.find_first_of(".e") == digits.npos) digits += ".0";
  }
  if (format.grouping != 0) digits = Grouped(digits, format.grouping, 3);
  return NumberField(run, std::signbit(value) && !std::isnan(value), "", digits, format);
}

}  // namespace kvrun::jinja
