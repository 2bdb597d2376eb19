// Walks a syntax tree: expressions to values, statements to text. Internal to the templates' interpreter.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/jinja/functions.h"
#include "runtime/jinja/run.h"
#include "runtime/jinja/syntax_tree.h"

namespace kvrun::jinja {

// A macro with the names that it sees, or a function with the value that it belongs to.
struct Callable : Object {
  const Macro* macro = nullptr;
  std::shared_ptr<Scope> scope;
  const FunctionDef* function = nullptr;
  Value self;
};

// The variable `loop`.
struct Loop : Object {
  std::unique_ptr<Iterator> iterator;
  Value iterable;           // kMissing where it is filtered: its length is not known
  std::deque<Value> ahead;  // elements that were looked at before their turn
  int64_t index0 = -1;
  Value before;
  Value current;
  std::vector<Value> last_changed;
  bool was_changed_called = false;
  const Statement* statement = nullptr;
  std::shared_ptr<Scope> scope;  // outside of the loop
  int64_t depth0 = 0;

  Result<bool> LookAhead(Run& run);
  Result<bool> Next(Run& run);
  Result<int64_t> Length(Run& run);
  void Clear();
};

Result<Value> MakeCallable(Run& run, const FunctionDef* function, const Value& self);
Result<Value> LoopAttribute(Run& run, const Value& self, std::string_view name);

Result<Value> ApplyOperator(Run& run, Operator op, const Value& a, const Value& b);
Result<bool> Compare(Run& run, Operator op, const Value& a, const Value& b);
Result<Value> Negated(const Value& value, bool is_minus);

class Evaluator {
 public:
  // `context`: a value for each name of the tree, or kMissing.
  Evaluator(Run& run, const SyntaxTree& tree, std::vector<Value> context);

  Result<MarkedText> Render();

 private:
  enum class Flow : uint8_t { kNext, kBreak, kContinue };
  class InnerScope;
  class LoopFilter;

  // evaluate_expressions.cc
  Result<Value> Evaluate(const Expression& expression);
  Result<Value> EvaluatePart(const Expression& expression, size_t i);
  Result<Value> EvaluateOther(const Expression& expression);
  Value Lookup(NameNumber name) const;
  Result<Value> EvaluateSlice(const Expression& expression);
  Result<Value> EvaluateFilter(const Expression& expression);
  Result<Value> EvaluateTest(const Expression& expression);
  Result<Value> EvaluateElements(const Expression& expression);
  Result<Value> EvaluateDict(const Expression& expression);
  Result<Value> EvaluateLogic(const Expression& expression);
  Result<Value> EvaluateConcat(const Expression& expression);
  Result<Value> EvaluateArithmetic(const Expression& expression);
  Result<Value> EvaluateCompare(const Expression& expression);
  Result<Value> EvaluateConditional(const Expression& expression);

  // evaluate_calls.cc
  Result<Value> EvaluateCall(const Expression& expression, const Value& caller);
  Result<Arguments> EvaluateArguments(const CallArguments* arguments);
  Status AddAllNamed(const Value& all, Arguments* to);
  Result<Value> MakeMacro(const Macro& macro) const;
  Result<Value> CallMacro(const Callable& callable, Arguments arguments);
  Status BindParameters(const Callable& callable, Arguments* arguments);
  Result<Value> CallLoop(Loop& loop, const Arguments& arguments);

  // evaluate_statements.cc
  Result<Flow> Execute(const Body& body, MarkedText* out);
  Result<Flow> ExecuteOne(const Statement& statement, MarkedText* out);
  Result<Flow> ExecuteInner(const Body& body, MarkedText* out);
  Status Write(const Value& value, MarkedText* out);
  Result<Flow> ExecuteIf(const Statement& statement, MarkedText* out);
  Result<Flow> ExecuteFor(const Statement& statement, MarkedText* out);
  Result<Flow> RunLoop(const Statement& statement, const Value& iterable, int64_t depth0, MarkedText* out);
  Result<Flow> RunIterations(const Statement& statement, const std::shared_ptr<Loop>& loop, MarkedText* out);
  Result<Flow> ExecuteBlock(const Statement& statement, MarkedText* out);
  Result<Flow> ExecuteWith(const Statement& statement, MarkedText* out);
  Status ExecuteCall(const Statement& statement, MarkedText* out);
  void SetName(NameNumber name, Value value);
  Status Assign(const Target& target, const Value& value);
  Status AssignAttribute(const Target& target, const Value& value);

  Run& run_;
  const SyntaxTree& tree_;
  std::vector<Value> context_;
  std::vector<Value> root_;       // what the template's outermost part has set
  std::shared_ptr<Scope> scope_;  // null: the outermost part
  Value filter_input_;            // the body of a filter block
};

// For a time, names are set and found in another scope.
class Evaluator::InnerScope {
 public:
  InnerScope(Evaluator* evaluator, std::shared_ptr<Scope> parent);
  ~InnerScope();
  InnerScope(const InnerScope&) = delete;
  InnerScope& operator=(const InnerScope&) = delete;

 private:
  Evaluator* evaluator_;
  std::shared_ptr<Scope> outer_;
};

}  // namespace kvrun::jinja
