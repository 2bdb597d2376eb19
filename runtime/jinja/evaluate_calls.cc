#include "runtime/jinja/evaluate.h"

namespace kvrun::jinja {

Result<Value> MakeCallable(Run& run, const FunctionDef* function, const Value& self) {
  auto callable = std::make_shared<Callable>();
  callable->function = function;
  callable->self = self;
  callable->depth = self.depth() + 1;
  KVRUN_RETURN_IF_ERROR(run.Take(sizeof(Callable)));
  if (callable->depth > run.limits().max_depth) return Wrong("values stand too deep in each other");
  return Value(Kind::kCallable, std::move(callable));
}

Result<Value> Evaluator::MakeMacro(const Macro& macro) const {
  KVRUN_ASSIGN_OR_RETURN(Value value, MakeCallable(run_, nullptr, Value()));
  value.callable().macro = &macro;
  value.callable().scope = scope_;
  return value;
}

Result<Arguments> Evaluator::EvaluateArguments(const CallArguments* arguments) {
  Arguments result;
  if (arguments == nullptr) return result;
  for (const ExpressionPtr& argument : arguments->positional) {
    KVRUN_ASSIGN_OR_RETURN(Value value, Evaluate(*argument));
    result.positional.push_back(std::move(value));
  }
  if (arguments->all_positional != nullptr) {
    KVRUN_ASSIGN_OR_RETURN(const Value all, Evaluate(*arguments->all_positional));
    KVRUN_ASSIGN_OR_RETURN(const std::vector<Value> elements, ElementsOf(run_, all));
    result.positional.insert(result.positional.end(), elements.begin(), elements.end());
  }
  for (const auto& [name, argument] : arguments->named) {
    KVRUN_ASSIGN_OR_RETURN(Value value, Evaluate(*argument));
    for (const Pair& other : result.named) {
      if (other.first.bytes() == name.bytes()) return Wrong("a named argument is given twice");
    }
    result.named.emplace_back(name, std::move(value));
  }
  if (arguments->all_named != nullptr) {
    KVRUN_ASSIGN_OR_RETURN(const Value all, Evaluate(*arguments->all_named));
    KVRUN_RETURN_IF_ERROR(AddAllNamed(all, &result));
  }
  return result;
}

Status Evaluator::AddAllNamed(const Value& all, Arguments* to) {
  if (!all.Is(Kind::kDict)) return Wrong("** wants a dict, and not a " + std::string(TypeName(all)));
  const size_t n_before = to->named.size();
  for (const auto& [name, value] : all.dict().entries) {
    if (!name.is_string()) return Wrong("names of arguments are texts");
    for (size_t i = 0; i < n_before; ++i) {
      if (to->named[i].first.bytes() == name.bytes()) return Wrong("a named argument is given twice");
    }
    KVRUN_RETURN_IF_ERROR(run_.Step(1 + n_before));
    to->named.emplace_back(name, value);
  }
  return Status::Ok();
}

// `caller`: what a call block adds, or kMissing.
Result<Value> Evaluator::EvaluateCall(const Expression& expression, const Value& caller) {
  KVRUN_ASSIGN_OR_RETURN(const Value callee, EvaluatePart(expression, 0));
  KVRUN_ASSIGN_OR_RETURN(Arguments arguments, EvaluateArguments(expression.arguments.get()));
  if (!caller.is_missing()) arguments.named.emplace_back(Value::Form("caller"), caller);
  run_.line = expression.line;
  if (callee.is_undefined()) return Wrong(callee.why_undefined());
  if (callee.Is(Kind::kLoop)) return CallLoop(callee.loop(), arguments);
  if (!callee.Is(Kind::kCallable)) return Wrong("a " + std::string(TypeName(callee)) + " cannot be called");
  const Callable& callable = callee.callable();
  if (callable.macro != nullptr) return CallMacro(callable, std::move(arguments));
  return CallFunction(run_, *callable.function, callable.self, std::move(arguments));
}

// Sets the macro's parameters, and `caller`, `kwargs` and `varargs`, in the scope here.
Status Evaluator::BindParameters(const Callable& callable, Arguments* arguments) {
  const Macro& macro = *callable.macro;
  const auto take_named = [&](std::string_view name) {
    for (auto at = arguments->named.begin(); at != arguments->named.end(); ++at) {
      if (at->first.bytes() != name) continue;
      Value value = std::move(at->second);
      arguments->named.erase(at);
      return value;
    }
    return Value();
  };
  bool has_caller = false;
  std::vector<Value> values;
  for (size_t i = 0; i < macro.parameters.size(); ++i) {
    has_caller = has_caller || macro.parameters[i].text.bytes() == "caller";
    values.push_back(i < arguments->positional.size() ? arguments->positional[i]
                                                      : take_named(macro.parameters[i].text.bytes()));
  }
  if (macro.takes_caller && !has_caller) {
    Value caller = take_named("caller");
    SetName(kCallerName, caller.is_missing() ? Value::Undefined("no caller is defined") : std::move(caller));
  }
  if (macro.takes_kwargs) {
    KVRUN_ASSIGN_OR_RETURN(Value named, MakeDict(run_, arguments->named));
    SetName(kKwargsName, std::move(named));
  } else if (!arguments->named.empty()) {
    return Wrong("a macro takes no argument named '" + Excerpt(arguments->named[0].first.bytes()) + "'");
  }
  const size_t n_used = std::min(macro.parameters.size(), arguments->positional.size());
  std::vector<Value> rest(arguments->positional.begin() + static_cast<ptrdiff_t>(n_used),
                          arguments->positional.end());
  if (macro.takes_varargs) {
    KVRUN_ASSIGN_OR_RETURN(Value others, MakeTuple(run_, std::move(rest)));
    SetName(kVarargsName, std::move(others));
  } else if (!rest.empty()) {
    return Wrong("a macro takes at most " + std::to_string(macro.parameters.size()) + " arguments");
  }
  for (size_t i = 0; i < values.size(); ++i) {
    const Parameter& parameter = macro.parameters[i];
    if (values[i].is_missing() && parameter.otherwise != nullptr) {
      KVRUN_ASSIGN_OR_RETURN(values[i], Evaluate(*parameter.otherwise));
    }
    SetName(parameter.name,
            values[i].is_missing()
                ? Value::Undefined("the parameter '" + tree_.names[parameter.name] + "' was not given")
                : std::move(values[i]));
  }
  return Status::Ok();
}

Result<Value> Evaluator::CallMacro(const Callable& callable, Arguments arguments) {
  const Descent descent(run_);
  KVRUN_RETURN_IF_ERROR(descent.Check());
  const InnerScope inner(this, callable.scope);
  KVRUN_RETURN_IF_ERROR(BindParameters(callable, &arguments));
  MarkedText text;
  KVRUN_ASSIGN_OR_RETURN(const Flow flow, Execute(callable.macro->body, &text));
  (void)flow;
  return run_.MakeString(std::move(text));
}

Result<Value> Evaluator::CallLoop(Loop& loop, const Arguments& arguments) {
  if (loop.statement == nullptr || !loop.statement->is_recursive) {
    return Wrong("a loop can be called where it is marked as recursive");
  }
  if (arguments.positional.size() != 1 || !arguments.named.empty()) return Wrong("loop() takes one argument");
  const Statement& statement = *loop.statement;
  std::shared_ptr<Scope> outer = std::exchange(scope_, loop.scope);
  MarkedText text;
  const Result<Flow> flow = RunLoop(statement, arguments.positional[0], loop.depth0 + 1, &text);
  scope_ = std::move(outer);
  if (!flow.ok()) return flow.status();
  return run_.MakeString(std::move(text));
}

}  // namespace kvrun::jinja
