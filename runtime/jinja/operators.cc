// Arithmetic and comparisons of Python.
#include <cmath>
#include <limits>

#include "runtime/jinja/evaluate.h"

namespace kvrun::jinja {
namespace {

Status NoOperator(const char* op, const Value& a, const Value& b) {
  for (const Value* value : {&a, &b}) {
    if (value->is_undefined()) return Wrong(value->why_undefined());
  }
  return Wrong("there is no " + std::string(TypeName(a)) + " " + op + " " + std::string(TypeName(b)));
}

Status TooLarge() { return Wrong("a number is larger than 64 bits hold"); }

Result<Value> Repeat(Run& run, const Value& value, int64_t n) {
  n = std::max<int64_t>(n, 0);
  const auto count = static_cast<size_t>(n);
  const size_t size = value.is_string() ? value.bytes().size() : value.items().size() * sizeof(Value);
  if (size != 0 && count > run.limits().max_bytes / size)
    return run.Take(std::numeric_limits<size_t>::max() / 2);
  KVRUN_RETURN_IF_ERROR(run.Take(size * count));
  if (value.is_string()) {
    MarkedText text = value.text().Slice(0, 0);
    for (size_t i = 0; size != 0 && i < count; ++i) text.Append(value.text());
    return Value::String(std::move(text));
  }
  KVRUN_RETURN_IF_ERROR(run.Step(value.items().size() * count));
  std::vector<Value> items;
  for (size_t i = 0; size != 0 && i < count; ++i) {
    items.insert(items.end(), value.items().begin(), value.items().end());
  }
  return value.Is(Kind::kList) ? MakeList(run, std::move(items)) : MakeTuple(run, std::move(items));
}

Result<Value> Product(Run& run, const Value& a, const Value& b) {
  if (a.is_integer() && b.is_integer()) {
    int64_t product = 0;
    return __builtin_mul_overflow(a.integer(), b.integer(), &product) ? Result<Value>(TooLarge())
                                                                      : Value::Int(product);
  }
  if (a.is_number() && b.is_number()) return Value::Float(a.real() * b.real());
  if ((a.is_string() || a.is_sequence()) && b.is_integer()) return Repeat(run, a, b.integer());
  if ((b.is_string() || b.is_sequence()) && a.is_integer()) return Repeat(run, b, a.integer());
  return NoOperator("*", a, b);
}

Result<Value> Difference(const Value& a, const Value& b) {
  if (a.is_integer() && b.is_integer()) {
    int64_t difference = 0;
    return __builtin_sub_overflow(a.integer(), b.integer(), &difference) ? Result<Value>(TooLarge())
                                                                         : Value::Int(difference);
  }
  if (a.is_number() && b.is_number()) return Value::Float(a.real() - b.real());
  return NoOperator("-", a, b);
}

// The remainder has the sign of b.
double Remainder(double a, double b) {
  double remainder = std::fmod(a, b);
  if (remainder != 0 ? (b < 0) != (remainder < 0) : false) remainder += b;
  return remainder == 0 ? std::copysign(0.0, b) : remainder;
}

double FlooredQuotient(double a, double b) {
  const double remainder = std::fmod(a, b);
  double quotient = (a - remainder) / b;
  if (remainder != 0 && (b < 0) != (remainder < 0)) quotient -= 1;
  if (quotient == 0) return std::copysign(0.0, a / b);
  const double floored = std::floor(quotient);
  return quotient - floored > 0.5 ? floored + 1 : floored;
}

Result<Value> Quotient(Operator op, const Value& a, const Value& b) {
  if (!a.is_number() || !b.is_number()) return NoOperator(op == Operator::kModulo ? "%" : "/", a, b);
  if (b.real() == 0) return Wrong("division by zero");
  if (op == Operator::kDivide) return Value::Float(a.real() / b.real());
  if (!a.is_integer() || !b.is_integer()) {
    const bool is_remainder = op == Operator::kModulo;
    return Value::Float(is_remainder ? Remainder(a.real(), b.real()) : FlooredQuotient(a.real(), b.real()));
  }
  const int64_t x = a.integer();
  const int64_t y = b.integer();
  if (y == -1) return op == Operator::kModulo ? Value::Int(0) : Negated(a, true);
  const int64_t remainder = x % y;
  const bool is_adjusted = remainder != 0 && (remainder < 0) != (y < 0);
  if (op == Operator::kModulo) return Value::Int(is_adjusted ? remainder + y : remainder);
  return Value::Int(x / y - (is_adjusted ? 1 : 0));
}

Result<Value> Power(const Value& a, const Value& b) {
  if (!a.is_number() || !b.is_number()) return NoOperator("**", a, b);
  if (!a.is_integer() || !b.is_integer() || b.integer() < 0) {
    if (a.real() == 0 && b.real() < 0) return Wrong("0 to a negative power");
    const double power = std::pow(a.real(), b.real());
    if (std::isnan(power) && !std::isnan(a.real()) && !std::isnan(b.real())) {
      return Wrong("a root of a negative number is not known");
    }
    if (std::isinf(power) && std::isfinite(a.real()) && std::isfinite(b.real())) return TooLarge();
    return Value::Float(power);
  }
  int64_t result = 1;
  int64_t base = a.integer();
  for (int64_t rest = b.integer(); rest > 0; rest >>= 1) {
    if ((rest & 1) != 0 && __builtin_mul_overflow(result, base, &result)) return TooLarge();
    if (rest > 1 && __builtin_mul_overflow(base, base, &base)) return TooLarge();
  }
  return Value::Int(result);
}

}  // namespace

Result<Value> Negated(const Value& value, bool is_minus) {
  if (value.Is(Kind::kFloat)) return Value::Float(is_minus ? -value.real() : value.real());
  if (value.is_undefined()) return Wrong(value.why_undefined());
  if (!value.is_integer()) return Wrong("a " + std::string(TypeName(value)) + " has no sign");
  if (is_minus && value.integer() == INT64_MIN) return TooLarge();
  return Value::Int(is_minus ? -value.integer() : value.integer());
}

Result<Value> Sum(Run& run, const Value& a, const Value& b) {
  if (a.is_integer() && b.is_integer()) {
    int64_t sum = 0;
    return __builtin_add_overflow(a.integer(), b.integer(), &sum) ? Result<Value>(TooLarge())
                                                                  : Value::Int(sum);
  }
  if (a.is_number() && b.is_number()) return Value::Float(a.real() + b.real());
  if (a.is_string() && b.is_string()) {
    KVRUN_RETURN_IF_ERROR(run.Take(a.bytes().size() + b.bytes().size() + 32));
    MarkedText text;
    if (a.text().is_markup || b.text().is_markup) {
      text.is_markup = true;
      KVRUN_RETURN_IF_ERROR(AppendEscaped(run, a, &text));
      KVRUN_RETURN_IF_ERROR(AppendEscaped(run, b, &text));
    } else {
      text.Append(a.text());
      text.Append(b.text());
    }
    return Value::String(std::move(text));
  }
  if (a.is_sequence() && a.Is(b.kind())) {
    KVRUN_RETURN_IF_ERROR(run.Step(a.items().size() + b.items().size()));
    std::vector<Value> items = a.items();
    items.insert(items.end(), b.items().begin(), b.items().end());
    return a.Is(Kind::kList) ? MakeList(run, std::move(items)) : MakeTuple(run, std::move(items));
  }
  return NoOperator("+", a, b);
}

Result<Value> ApplyOperator(Run& run, Operator op, const Value& a, const Value& b) {
  switch (op) {
    case Operator::kAdd: return Sum(run, a, b);
    case Operator::kSubtract: return Difference(a, b);
    case Operator::kMultiply: return Product(run, a, b);
    case Operator::kModulo:
      if (a.is_string()) return PercentFormat(run, a.text(), b);
      return Quotient(op, a, b);
    case Operator::kDivide:
    case Operator::kFloorDivide: return Quotient(op, a, b);
    default: return Power(a, b);
  }
}

Result<bool> Compare(Run& run, Operator op, const Value& a, const Value& b) {
  switch (op) {
    case Operator::kEqual: return AreEqual(run, a, b);
    case Operator::kNotEqual: {
      KVRUN_ASSIGN_OR_RETURN(const bool is_same, AreEqual(run, a, b));
      return !is_same;
    }
    case Operator::kLess: return IsLess(run, a, b);
    case Operator::kGreater: return IsLess(run, b, a);
    case Operator::kIn: return Contains(run, b, a);
    case Operator::kNotIn: {
      KVRUN_ASSIGN_OR_RETURN(const bool is_there, Contains(run, b, a));
      return !is_there;
    }
    default: break;
  }
  const bool is_less_or_equal = op == Operator::kLessOrEqual;
  KVRUN_ASSIGN_OR_RETURN(const bool is_less, is_less_or_equal ? IsLess(run, a, b) : IsLess(run, b, a));
  if (is_less) return true;
  return AreEqual(run, a, b);
}

}  // namespace kvrun::jinja
