// Filters that make numbers.
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "runtime/jinja/functions.h"
#include "runtime/jinja/unicode.h"

namespace kvrun::jinja {
namespace {

std::string_view WithoutSpaces(std::string_view text) {
  while (!text.empty() && IsSpace(CharacterAt(text, 0).code))
    text.remove_prefix(CharacterAt(text, 0).n_bytes);
  while (!text.empty() && IsSpace(CharacterBefore(text, text.size()).code)) {
    text.remove_suffix(CharacterBefore(text, text.size()).n_bytes);
  }
  return text;
}

// Takes out "_" between digits; false where one stands elsewhere.
bool TakeUnderscores(std::string* digits, bool is_hex) {
  const auto is_digit = [is_hex](char c) {
    return (c >= '0' && c <= '9') || (is_hex && ((c | 0x20) >= 'a' && (c | 0x20) <= 'z'));
  };
  std::string without;
  for (size_t i = 0; i < digits->size(); ++i) {
    const char c = (*digits)[i];
    if (c != '_') {
      without += c;
    } else if (i == 0 || i + 1 == digits->size() || !is_digit((*digits)[i - 1]) ||
               !is_digit((*digits)[i + 1])) {
      return false;
    }
  }
  *digits = without;
  return true;
}

constexpr size_t kMostNumberBytes = 400;

// int() of Python; kMissing where it is none.
Result<Value> IntegerOf(std::string_view text, int64_t base) {
  std::string digits(WithoutSpaces(text));
  if (digits.size() > kMostNumberBytes || digits.empty()) return Value();
  const bool is_negative = digits[0] == '-';
  if (is_negative || digits[0] == '+') digits.erase(0, 1);
  if (digits.size() > 2 && digits[0] == '0') {
    const char mark = static_cast<char>(digits[1] | 0x20);
    const int64_t marked = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 0;
    if (marked != 0 && (base == marked || base == 0)) {
      digits.erase(0, digits[2] == '_' ? 3 : 2);
      base = marked;
    }
  }
  if (base == 0) base = 10;
  if (base < 2 || base > 36 || !TakeUnderscores(&digits, base > 10) || digits.empty()) return Value();
  const char first = digits[0];
  if (first == '-' || first == '+' || IsSpace(static_cast<uint8_t>(first))) return Value();
  errno = 0;
  char* end = nullptr;
  const std::string signed_digits = (is_negative ? "-" : "") + digits;
  const long long number = std::strtoll(signed_digits.c_str(), &end, static_cast<int>(base));
  if (*end != '\0') return Value();
  if (errno == ERANGE) return Wrong("a number is larger than 64 bits hold");
  return Value::Int(number);
}

// float() of Python; kMissing where it is none.
Value FloatOf(std::string_view text) {
  std::string digits(WithoutSpaces(text));
  if (digits.empty() || digits.size() > kMostNumberBytes || !TakeUnderscores(&digits, false)) return {};
  std::string small;
  for (const char c : digits) small += static_cast<char>(c >= 'A' && c <= 'Z' ? c | 0x20 : c);
  const std::string unsigned_text = small[0] == '-' || small[0] == '+' ? small.substr(1) : small;
  const bool is_word = unsigned_text == "inf" || unsigned_text == "infinity" || unsigned_text == "nan";
  if (!is_word && small.find_first_not_of("0123456789+-.e") != small.npos) return {};
  char* end = nullptr;
  const double number = std::strtod(small.c_str(), &end);
  return *end == '\0' && end != small.c_str() ? Value::Float(number) : Value();
}

Result<Value> Truncated(double number) {
  if (!(std::fabs(number) < 9.2e18)) return Wrong("a number is larger than 64 bits hold");
  return Value::Int(static_cast<int64_t>(number));
}

Result<Value> FilterInt(Run&, const Value& self, const Args& args) {
  const Value otherwise = args.Has(0) ? args[0] : Value::Int(0);
  if (self.is_undefined()) return Wrong(self.why_undefined());
  if (self.is_integer()) return Value::Int(self.integer());
  if (self.Is(Kind::kFloat)) {
    if (!std::isfinite(self.real())) return otherwise;
    return Truncated(self.real());
  }
  if (!self.is_string()) return otherwise;
  KVRUN_ASSIGN_OR_RETURN(const int64_t base, args.Integer(1, 10));
  KVRUN_ASSIGN_OR_RETURN(Value number, IntegerOf(self.bytes(), base));
  if (!number.is_missing()) return number;
  number = FloatOf(self.bytes());
  if (number.is_missing() || !std::isfinite(number.real())) return otherwise;
  return Truncated(number.real());
}

Result<Value> FilterFloat(Run&, const Value& self, const Args& args) {
  if (self.is_undefined()) return Wrong(self.why_undefined());
  if (self.is_number()) return Value::Float(self.real());
  Value number = self.is_string() ? FloatOf(self.bytes()) : Value();
  if (!number.is_missing()) return number;
  return args.Has(0) ? args[0] : Value::Float(0);
}

Result<Value> FilterAbs(Run&, const Value& self, const Args&) {
  if (self.Is(Kind::kFloat)) return Value::Float(std::fabs(self.real()));
  if (self.is_undefined()) return Wrong(self.why_undefined());
  if (!self.is_integer() || self.integer() == INT64_MIN) return Wrong("abs wants a number");
  return Value::Int(std::abs(self.integer()));
}

// To the nearest, and to an even digit where two are as near.
double RoundedTo(double value, int64_t precision) {
  if (!std::isfinite(value) || precision > 320) return value;
  if (precision < 0) {
    const double unit = std::pow(10.0, static_cast<double>(std::min<int64_t>(-precision, 400)));
    return std::isinf(unit) ? 0.0 * value : std::nearbyint(value / unit) * unit;
  }
  char digits[800];
  std::snprintf(digits, sizeof(digits), "%.*f", static_cast<int>(precision), value);
  return std::strtod(digits, nullptr);
}

Result<Value> RoundedInteger(int64_t value, int64_t precision) {
  if (precision >= 0) return Value::Int(value);
  if (precision < -18) return Value::Int(0);
  int64_t unit = 1;
  for (int64_t i = precision; i < 0; ++i) unit *= 10;
  const int64_t rest = (value % unit + unit) % unit;
  const int64_t low = value - rest;
  const bool goes_up = rest > unit / 2 || (rest == unit / 2 && (low / unit) % 2 != 0);
  return Value::Int(goes_up ? low + unit : low);
}

Result<Value> FilterRound(Run&, const Value& self, const Args& args) {
  const std::string_view method = args.Has(1) && args[1].is_string() ? args[1].bytes()
                                  : args.Has(1)                      ? ""
                                                                     : "common";
  if (method != "common" && method != "ceil" && method != "floor")
    return Wrong("round knows common, ceil and floor");
  if (self.is_undefined()) return Wrong(self.why_undefined());
  if (!self.is_number()) return Wrong("round wants a number, and not a " + std::string(TypeName(self)));
  KVRUN_ASSIGN_OR_RETURN(const int64_t precision, args.Integer(0, 0));
  if (method == "common") {
    if (self.is_integer()) return RoundedInteger(self.integer(), precision);
    return Value::Float(RoundedTo(self.real(), precision));
  }
  const double unit = std::pow(10.0, static_cast<double>(precision));
  const double scaled = self.real() * unit;
  if (!std::isfinite(scaled) || unit == 0) return Wrong("a number cannot be rounded");
  return Value::Float((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / unit);
}

constexpr FunctionDef kFilters[] = {
    {"int", FilterInt, "default,base", 0},
    {"float", FilterFloat, "default", 0},
    {"abs", FilterAbs, "", 0},
    {"round", FilterRound, "precision,method", 0},
};

}  // namespace

std::span<const FunctionDef> NumberFilters() { return kFilters; }

}  // namespace kvrun::jinja
