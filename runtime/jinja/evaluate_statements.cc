#include <algorithm>

#include "runtime/jinja/evaluate.h"

namespace kvrun::jinja {

// Elements for which the test of a `for` holds.
class Evaluator::LoopFilter : public Iterator {
 public:
  LoopFilter(Evaluator* evaluator, const Statement& statement, std::unique_ptr<Iterator> iterator)
      : evaluator_(evaluator),
        statement_(statement),
        iterator_(std::move(iterator)),
        scope_(evaluator->scope_) {}

  Result<bool> Next(Run& run, Value* element) override {
    while (true) {
      KVRUN_ASSIGN_OR_RETURN(const bool is_there, iterator_->Next(run, element));
      if (!is_there) return false;
      const InnerScope inner(evaluator_, scope_);
      KVRUN_RETURN_IF_ERROR(evaluator_->Assign(statement_.target, *element));
      KVRUN_ASSIGN_OR_RETURN(const Value test, evaluator_->Evaluate(*statement_.test));
      if (IsTrue(test)) return true;
    }
  }

 private:
  Evaluator* evaluator_;
  const Statement& statement_;
  std::unique_ptr<Iterator> iterator_;
  std::shared_ptr<Scope> scope_;
};

Evaluator::InnerScope::InnerScope(Evaluator* evaluator, std::shared_ptr<Scope> parent)
    : evaluator_(evaluator), outer_(std::move(evaluator->scope_)) {
  evaluator->scope_ = std::make_shared<Scope>();
  evaluator->scope_->parent = std::move(parent);
}

Evaluator::InnerScope::~InnerScope() {
  if (evaluator_->scope_.use_count() > 1) evaluator_->run_.Retain(std::move(evaluator_->scope_));
  evaluator_->scope_ = std::move(outer_);
}

Result<MarkedText> Evaluator::Render() {
  MarkedText text;
  KVRUN_ASSIGN_OR_RETURN(const Flow flow, Execute(tree_.body, &text));
  (void)flow;
  return text;
}

Result<Evaluator::Flow> Evaluator::Execute(const Body& body, MarkedText* out) {
  for (const std::unique_ptr<Statement>& statement : body) {
    KVRUN_RETURN_IF_ERROR(run_.Step());
    if (statement->kind == Statement::Kind::kText) {
      KVRUN_RETURN_IF_ERROR(run_.Take(statement->text.size()));
      out->Append(statement->text);
      continue;
    }
    run_.line = statement->line;
    KVRUN_ASSIGN_OR_RETURN(const Flow flow, ExecuteOne(*statement, out));
    if (flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

Status Evaluator::Write(const Value& value, MarkedText* out) {
  const size_t n_before = out->size();
  KVRUN_RETURN_IF_ERROR(AppendText(run_, value, out));
  return run_.Take(out->size() - n_before);
}

Result<Evaluator::Flow> Evaluator::ExecuteInner(const Body& body, MarkedText* out) {
  const InnerScope inner(this, scope_);
  return Execute(body, out);
}

Result<Evaluator::Flow> Evaluator::ExecuteOne(const Statement& statement, MarkedText* out) {
  const Descent descent(run_);
  KVRUN_RETURN_IF_ERROR(descent.Check());
  switch (statement.kind) {
    case Statement::Kind::kText: break;
    case Statement::Kind::kOutput: {
      KVRUN_ASSIGN_OR_RETURN(const Value value, Evaluate(*statement.expression));
      KVRUN_RETURN_IF_ERROR(Write(value, out));
      break;
    }
    case Statement::Kind::kFor: return ExecuteFor(statement, out);
    case Statement::Kind::kIf: return ExecuteIf(statement, out);
    case Statement::Kind::kSet: {
      KVRUN_ASSIGN_OR_RETURN(const Value value, Evaluate(*statement.expression));
      KVRUN_RETURN_IF_ERROR(Assign(statement.target, value));
      break;
    }
    case Statement::Kind::kSetBlock:
    case Statement::Kind::kFilter: return ExecuteBlock(statement, out);
    case Statement::Kind::kMacro: {
      KVRUN_ASSIGN_OR_RETURN(const Value macro, MakeMacro(*statement.macro));
      SetName(statement.target.name, macro);
      break;
    }
    case Statement::Kind::kCall: KVRUN_RETURN_IF_ERROR(ExecuteCall(statement, out)); break;
    case Statement::Kind::kWith: return ExecuteWith(statement, out);
    case Statement::Kind::kGeneration: {
      KVRUN_ASSIGN_OR_RETURN(const Value macro, MakeMacro(*statement.macro));
      KVRUN_ASSIGN_OR_RETURN(const Value value, CallMacro(macro.callable(), {}));
      KVRUN_RETURN_IF_ERROR(Write(value, out));
      break;
    }
    case Statement::Kind::kBreak: return Flow::kBreak;
    case Statement::Kind::kContinue: return Flow::kContinue;
  }
  return Flow::kNext;
}

Result<Evaluator::Flow> Evaluator::ExecuteIf(const Statement& statement, MarkedText* out) {
  for (const Statement::Branch& branch : statement.branches) {
    if (branch.test == nullptr) return Execute(branch.body, out);
    KVRUN_ASSIGN_OR_RETURN(const Value test, Evaluate(*branch.test));
    if (IsTrue(test)) return Execute(branch.body, out);
  }
  return Flow::kNext;
}

Result<Evaluator::Flow> Evaluator::ExecuteFor(const Statement& statement, MarkedText* out) {
  KVRUN_ASSIGN_OR_RETURN(const Value iterable, Evaluate(*statement.expression));
  run_.line = statement.line;
  return RunLoop(statement, iterable, 0, out);
}

Result<Evaluator::Flow> Evaluator::RunLoop(const Statement& statement, const Value& iterable, int64_t depth0,
                                           MarkedText* out) {
  const Descent descent(run_);
  KVRUN_RETURN_IF_ERROR(descent.Check());
  const auto loop = std::make_shared<Loop>();
  KVRUN_ASSIGN_OR_RETURN(loop->iterator, Iterate(run_, iterable));
  if (statement.test != nullptr) {
    loop->iterator = std::make_unique<LoopFilter>(this, statement, std::move(loop->iterator));
  } else {
    loop->iterable = iterable;
  }
  loop->statement = &statement;
  loop->scope = scope_;
  loop->depth0 = depth0;
  const Result<Flow> flow = RunIterations(statement, loop, out);
  // It may hold itself, or what holds it.
  loop->Clear();
  return flow;
}

Result<Evaluator::Flow> Evaluator::RunIterations(const Statement& statement,
                                                 const std::shared_ptr<Loop>& loop, MarkedText* out) {
  while (true) {
    KVRUN_RETURN_IF_ERROR(run_.Step());
    KVRUN_ASSIGN_OR_RETURN(const bool is_there, loop->Next(run_));
    if (!is_there) break;
    const InnerScope inner(this, scope_);
    KVRUN_RETURN_IF_ERROR(Assign(statement.target, loop->current));
    if (tree_.is_read[kLoopName]) SetName(kLoopName, Value(Kind::kLoop, loop));
    KVRUN_ASSIGN_OR_RETURN(const Flow flow, Execute(statement.body, out));
    if (flow == Flow::kBreak) break;
  }
  if (loop->index0 < 0 && !statement.otherwise.empty()) return ExecuteInner(statement.otherwise, out);
  return Flow::kNext;
}

// {% set x %} and {% filter x %}.
Result<Evaluator::Flow> Evaluator::ExecuteBlock(const Statement& statement, MarkedText* out) {
  MarkedText text;
  KVRUN_ASSIGN_OR_RETURN(const Flow flow, ExecuteInner(statement.body, &text));
  if (flow != Flow::kNext) return flow;
  KVRUN_ASSIGN_OR_RETURN(Value value, run_.MakeString(std::move(text)));
  if (statement.expression != nullptr) {
    filter_input_ = std::move(value);
    KVRUN_ASSIGN_OR_RETURN(value, Evaluate(*statement.expression));
  }
  if (statement.kind == Statement::Kind::kFilter) {
    KVRUN_RETURN_IF_ERROR(Write(value, out));
  } else {
    KVRUN_RETURN_IF_ERROR(Assign(statement.target, value));
  }
  return Flow::kNext;
}

Result<Evaluator::Flow> Evaluator::ExecuteWith(const Statement& statement, MarkedText* out) {
  std::vector<Value> values;
  for (const auto& [target, expression] : statement.assignments) {
    KVRUN_ASSIGN_OR_RETURN(Value value, Evaluate(*expression));
    values.push_back(std::move(value));
  }
  const InnerScope inner(this, scope_);
  for (size_t i = 0; i < values.size(); ++i) {
    KVRUN_RETURN_IF_ERROR(Assign(statement.assignments[i].first, values[i]));
  }
  return Execute(statement.body, out);
}

Status Evaluator::ExecuteCall(const Statement& statement, MarkedText* out) {
  KVRUN_ASSIGN_OR_RETURN(const Value caller, MakeMacro(*statement.macro));
  KVRUN_ASSIGN_OR_RETURN(const Value value, EvaluateCall(*statement.expression, caller));
  return Write(value, out);
}

void Evaluator::SetName(NameNumber name, Value value) {
  if (scope_ == nullptr) {
    root_[name] = std::move(value);
  } else {
    scope_->Set(name, std::move(value));
  }
}

Status Evaluator::Assign(const Target& target, const Value& value) {
  if (!target.attribute.is_missing()) return AssignAttribute(target, value);
  if (!target.is_tuple) {
    SetName(target.name, value);
    return Status::Ok();
  }
  KVRUN_ASSIGN_OR_RETURN(const std::vector<Value> elements, ElementsOf(run_, value));
  if (elements.size() != target.targets.size()) {
    return Wrong(std::to_string(elements.size()) + " values cannot be assigned to " +
                 std::to_string(target.targets.size()) + " names");
  }
  for (size_t i = 0; i < elements.size(); ++i) {
    KVRUN_RETURN_IF_ERROR(Assign(target.targets[i], elements[i]));
  }
  return Status::Ok();
}

Status Evaluator::AssignAttribute(const Target& target, const Value& value) {
  const Value object = Lookup(target.name);
  if (!object.Is(Kind::kNamespace)) {
    return Wrong("'" + tree_.names[target.name] + "' is no namespace: its attributes cannot be set");
  }
  std::vector<Pair>& attributes = object.name_space().attributes;
  KVRUN_RETURN_IF_ERROR(run_.Step(1 + attributes.size() / 8));
  const auto is_it = [&](const Pair& pair) { return pair.first.bytes() == target.attribute.bytes(); };
  const auto at = std::find_if(attributes.begin(), attributes.end(), is_it);
  if (at != attributes.end()) {
    at->second = value;
    return Status::Ok();
  }
  attributes.emplace_back(target.attribute, value);
  return run_.Take(sizeof(Pair));
}

}  // namespace kvrun::jinja
