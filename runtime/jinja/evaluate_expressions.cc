#include "runtime/jinja/evaluate.h"

namespace kvrun::jinja {

using ExpressionKind = Expression::Kind;

Evaluator::Evaluator(Run& run, const SyntaxTree& tree, std::vector<Value> context)
    : run_(run), tree_(tree), context_(std::move(context)), root_(tree.names.size()) {}

Value Evaluator::Lookup(NameNumber name) const {
  for (const Scope* scope = scope_.get(); scope != nullptr; scope = scope->parent.get()) {
    if (const Value* const value = scope->Find(name); value != nullptr) return *value;
  }
  const Value& value = root_[name].is_missing() ? context_[name] : root_[name];
  return value.is_missing() ? Value::Undefined("'" + tree_.names[name] + "' is undefined") : value;
}

Result<Value> Evaluator::Evaluate(const Expression& expression) {
  KVRUN_RETURN_IF_ERROR(run_.Step());
  if (expression.kind == ExpressionKind::kConstant) return expression.value;
  if (expression.kind == ExpressionKind::kName) {
    run_.line = expression.line;
    return Lookup(expression.name);
  }
  const Descent descent(run_);
  KVRUN_RETURN_IF_ERROR(descent.Check());
  if (expression.kind == ExpressionKind::kAttribute) {
    KVRUN_ASSIGN_OR_RETURN(const Value object, EvaluatePart(expression, 0));
    return AttributeOf(run_, object, expression.value);
  }
  return EvaluateOther(expression);
}

// The line of errors is then that of the whole expression.
Result<Value> Evaluator::EvaluatePart(const Expression& expression, size_t i) {
  Result<Value> value = Evaluate(*expression.parts[i]);
  if (value.ok()) run_.line = expression.line;
  return value;
}

Result<Value> Evaluator::EvaluateOther(const Expression& expression) {
  switch (expression.kind) {
    case ExpressionKind::kItem: {
      KVRUN_ASSIGN_OR_RETURN(const Value object, EvaluatePart(expression, 0));
      KVRUN_ASSIGN_OR_RETURN(const Value key, EvaluatePart(expression, 1));
      return ItemOf(run_, object, key);
    }
    case ExpressionKind::kSlice: return EvaluateSlice(expression);
    case ExpressionKind::kCall: return EvaluateCall(expression, Value());
    case ExpressionKind::kFilter: return EvaluateFilter(expression);
    case ExpressionKind::kTest: return EvaluateTest(expression);
    case ExpressionKind::kList:
    case ExpressionKind::kTuple: return EvaluateElements(expression);
    case ExpressionKind::kDict: return EvaluateDict(expression);
    case ExpressionKind::kNot: {
      KVRUN_ASSIGN_OR_RETURN(const Value value, EvaluatePart(expression, 0));
      return Value::Bool(!IsTrue(value));
    }
    case ExpressionKind::kNegative:
    case ExpressionKind::kPositive: {
      KVRUN_ASSIGN_OR_RETURN(const Value value, EvaluatePart(expression, 0));
      return Negated(value, expression.kind == ExpressionKind::kNegative);
    }
    case ExpressionKind::kAnd:
    case ExpressionKind::kOr: return EvaluateLogic(expression);
    case ExpressionKind::kConcat: return EvaluateConcat(expression);
    case ExpressionKind::kArithmetic: return EvaluateArithmetic(expression);
    case ExpressionKind::kCompare: return EvaluateCompare(expression);
    default: return EvaluateConditional(expression);
  }
}

Result<Value> Evaluator::EvaluateSlice(const Expression& expression) {
  KVRUN_ASSIGN_OR_RETURN(const Value object, EvaluatePart(expression, 0));
  Value bounds[3];
  for (size_t i = 0; i < 3; ++i) {
    if (expression.parts[i + 1] == nullptr) continue;
    KVRUN_ASSIGN_OR_RETURN(bounds[i], EvaluatePart(expression, i + 1));
  }
  return SliceOf(run_, object, bounds[0], bounds[1], bounds[2]);
}

Result<Value> Evaluator::EvaluateFilter(const Expression& expression) {
  Value input = filter_input_;
  if (!expression.parts.empty()) {
    KVRUN_ASSIGN_OR_RETURN(input, EvaluatePart(expression, 0));
  }
  if (expression.function == nullptr) return Wrong(std::string(expression.value.bytes()));
  KVRUN_ASSIGN_OR_RETURN(Arguments arguments, EvaluateArguments(expression.arguments.get()));
  run_.line = expression.line;
  return CallFunction(run_, *expression.function, input, std::move(arguments));
}

Result<Value> Evaluator::EvaluateTest(const Expression& expression) {
  KVRUN_ASSIGN_OR_RETURN(const Value input, EvaluatePart(expression, 0));
  if (expression.function == nullptr) return Wrong(std::string(expression.value.bytes()));
  KVRUN_ASSIGN_OR_RETURN(Arguments arguments, EvaluateArguments(expression.arguments.get()));
  run_.line = expression.line;
  return CallFunction(run_, *expression.function, input, std::move(arguments));
}

Result<Value> Evaluator::EvaluateElements(const Expression& expression) {
  std::vector<Value> items;
  for (size_t i = 0; i < expression.parts.size(); ++i) {
    KVRUN_ASSIGN_OR_RETURN(Value item, EvaluatePart(expression, i));
    items.push_back(std::move(item));
  }
  return expression.kind == ExpressionKind::kList ? MakeList(run_, std::move(items))
                                                  : MakeTuple(run_, std::move(items));
}

Result<Value> Evaluator::EvaluateDict(const Expression& expression) {
  std::vector<Pair> entries;
  for (size_t i = 0; i + 1 < expression.parts.size(); i += 2) {
    KVRUN_ASSIGN_OR_RETURN(Value key, EvaluatePart(expression, i));
    KVRUN_ASSIGN_OR_RETURN(Value value, EvaluatePart(expression, i + 1));
    entries.emplace_back(std::move(key), std::move(value));
  }
  return MakeDict(run_, entries);
}

Result<Value> Evaluator::EvaluateLogic(const Expression& expression) {
  Value value;
  for (size_t i = 0; i < expression.parts.size(); ++i) {
    KVRUN_ASSIGN_OR_RETURN(value, EvaluatePart(expression, i));
    if (IsTrue(value) == (expression.kind == ExpressionKind::kOr)) break;
  }
  return value;
}

Result<Value> Evaluator::EvaluateConcat(const Expression& expression) {
  MarkedText text;
  for (size_t i = 0; i < expression.parts.size(); ++i) {
    KVRUN_ASSIGN_OR_RETURN(const Value value, EvaluatePart(expression, i));
    KVRUN_RETURN_IF_ERROR(AppendText(run_, value, &text));
  }
  return run_.MakeString(std::move(text));
}

Result<Value> Evaluator::EvaluateArithmetic(const Expression& expression) {
  KVRUN_ASSIGN_OR_RETURN(Value result, EvaluatePart(expression, 0));
  for (size_t i = 0; i < expression.operators.size(); ++i) {
    KVRUN_ASSIGN_OR_RETURN(const Value next, EvaluatePart(expression, i + 1));
    KVRUN_ASSIGN_OR_RETURN(result, ApplyOperator(run_, expression.operators[i], result, next));
  }
  return result;
}

Result<Value> Evaluator::EvaluateCompare(const Expression& expression) {
  KVRUN_ASSIGN_OR_RETURN(Value left, EvaluatePart(expression, 0));
  for (size_t i = 0; i < expression.operators.size(); ++i) {
    KVRUN_ASSIGN_OR_RETURN(Value right, EvaluatePart(expression, i + 1));
    KVRUN_ASSIGN_OR_RETURN(const bool holds, Compare(run_, expression.operators[i], left, right));
    if (!holds) return Value::Bool(false);
    left = std::move(right);
  }
  return Value::Bool(true);
}

Result<Value> Evaluator::EvaluateConditional(const Expression& expression) {
  KVRUN_ASSIGN_OR_RETURN(const Value test, EvaluatePart(expression, 1));
  if (IsTrue(test)) return EvaluatePart(expression, 0);
  if (expression.parts[2] != nullptr) return EvaluatePart(expression, 2);
  return Value::Undefined("an inline if is false and has no else");
}

}  // namespace kvrun::jinja
