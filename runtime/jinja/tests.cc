// What stands after "is".
#include "runtime/jinja/evaluate.h"

namespace kvrun::jinja {
namespace {

template <bool (*holds)(const Value&)>
Result<Value> IsKind(Run&, const Value& self, const Args&) {
  return Value::Bool(holds(self));
}

bool IsDefined(const Value& v) { return !v.is_undefined(); }
bool IsUndefinedValue(const Value& v) { return v.is_undefined(); }
bool IsNone(const Value& v) { return v.Is(Kind::kNone); }
bool IsBoolean(const Value& v) { return v.Is(Kind::kBool); }
bool IsFalse(const Value& v) { return v.Is(Kind::kBool) && !v.boolean(); }
bool IsTrueValue(const Value& v) { return v.Is(Kind::kBool) && v.boolean(); }
bool IsInteger(const Value& v) { return v.Is(Kind::kInt); }
bool IsFloat(const Value& v) { return v.Is(Kind::kFloat); }
bool IsNumber(const Value& v) { return v.is_number(); }
bool IsString(const Value& v) { return v.is_string(); }
bool IsMapping(const Value& v) { return v.Is(Kind::kDict); }
bool IsEscaped(const Value& v) { return v.is_string() && v.text().is_markup; }
bool IsCallable(const Value& v) { return v.Is(Kind::kCallable) || v.Is(Kind::kLoop) || v.is_undefined(); }
bool IsSequence(const Value& v) {
  return v.is_sequence() || v.is_string() || v.Is(Kind::kDict) || v.Is(Kind::kRange) || v.is_undefined();
}
bool CanIterate(const Value& v) { return IsIterable(v); }

Result<bool> IsMultiple(Run& run, const Value& value, const Value& of, int64_t rest) {
  KVRUN_ASSIGN_OR_RETURN(const Value remainder, ApplyOperator(run, Operator::kModulo, value, of));
  return AreEqual(run, remainder, Value::Int(rest));
}

template <int64_t rest>
Result<Value> HasRest(Run& run, const Value& self, const Args&) {
  KVRUN_ASSIGN_OR_RETURN(const bool holds, IsMultiple(run, self, Value::Int(2), rest));
  return Value::Bool(holds);
}

Result<Value> IsDivisible(Run& run, const Value& self, const Args& args) {
  KVRUN_ASSIGN_OR_RETURN(const bool holds, IsMultiple(run, self, args[0], 0));
  return Value::Bool(holds);
}

template <Operator op>
Result<Value> Holds(Run& run, const Value& self, const Args& args) {
  KVRUN_ASSIGN_OR_RETURN(const bool holds, Compare(run, op, self, args[0]));
  return Value::Bool(holds);
}

// Numbers are the same where Python keeps one of each.
Result<Value> IsSame(Run&, const Value& self, const Args& args) {
  const Value& other = args[0];
  if (!self.Is(other.kind())) return Value::Bool(false);
  if (self.is_integer()) {
    const bool is_kept = self.integer() >= -5 && self.integer() <= 256;
    return Value::Bool(is_kept && self.integer() == other.integer());
  }
  if (self.Is(Kind::kNone)) return Value::Bool(true);
  if (self.is_string() && self.bytes().size() <= 1) return Value::Bool(self.bytes() == other.bytes());
  return Value::Bool(self.object() != nullptr && self.object() == other.object());
}

template <bool is_upper>
Result<Value> HasCaseOf(Run& run, const Value& self, const Args&) {
  KVRUN_ASSIGN_OR_RETURN(MarkedText text, TextOf(run, self));
  KVRUN_ASSIGN_OR_RETURN(const Value string, run.MakeString(std::move(text)));
  return CallFunction(run, *FindMethod(string, is_upper ? "isupper" : "islower"), string, {});
}

template <const FunctionDef* (*find)(std::string_view)>
Result<Value> IsNameOf(Run&, const Value& self, const Args&) {
  return Value::Bool(self.is_string() && find(self.bytes()) != nullptr);
}

constexpr FunctionDef kTests[] = {
    {"defined", IsKind<IsDefined>, "", 0},
    {"undefined", IsKind<IsUndefinedValue>, "", 0},
    {"none", IsKind<IsNone>, "", 0},
    {"boolean", IsKind<IsBoolean>, "", 0},
    {"false", IsKind<IsFalse>, "", 0},
    {"true", IsKind<IsTrueValue>, "", 0},
    {"integer", IsKind<IsInteger>, "", 0},
    {"float", IsKind<IsFloat>, "", 0},
    {"number", IsKind<IsNumber>, "", 0},
    {"string", IsKind<IsString>, "", 0},
    {"mapping", IsKind<IsMapping>, "", 0},
    {"sequence", IsKind<IsSequence>, "", 0},
    {"iterable", IsKind<CanIterate>, "", 0},
    {"callable", IsKind<IsCallable>, "", 0},
    {"escaped", IsKind<IsEscaped>, "", 0},
    {"odd", HasRest<1>, "", 0},
    {"even", HasRest<0>, "", 0},
    {"divisibleby", IsDivisible, "num", 1},
    {"sameas", IsSame, "other", 1},
    {"lower", HasCaseOf<false>, "", 0},
    {"upper", HasCaseOf<true>, "", 0},
    {"in", Holds<Operator::kIn>, "seq", 1},
    {"filter", IsNameOf<FindFilter>, "", 0},
    {"test", IsNameOf<FindTest>, "", 0},
    {"==", Holds<Operator::kEqual>, "/b", 1},
    {"eq", Holds<Operator::kEqual>, "/b", 1},
    {"equalto", Holds<Operator::kEqual>, "/b", 1},
    {"!=", Holds<Operator::kNotEqual>, "/b", 1},
    {"ne", Holds<Operator::kNotEqual>, "/b", 1},
    {">", Holds<Operator::kGreater>, "/b", 1},
    {"gt", Holds<Operator::kGreater>, "/b", 1},
    {"greaterthan", Holds<Operator::kGreater>, "/b", 1},
    {">=", Holds<Operator::kGreaterOrEqual>, "/b", 1},
    {"ge", Holds<Operator::kGreaterOrEqual>, "/b", 1},
    {"<", Holds<Operator::kLess>, "/b", 1},
    {"lt", Holds<Operator::kLess>, "/b", 1},
    {"lessthan", Holds<Operator::kLess>, "/b", 1},
    {"<=", Holds<Operator::kLessOrEqual>, "/b", 1},
    {"le", Holds<Operator::kLessOrEqual>, "/b", 1},
};

}  // namespace

std::span<const FunctionDef> Tests() { return kTests; }

}  // namespace kvrun::jinja
