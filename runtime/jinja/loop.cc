// The variable `loop`.
#include "runtime/jinja/evaluate.h"

namespace kvrun::jinja {
namespace {

Result<Value> CycleLoop(Run&, const Value& self, const Args& args) {
  const std::vector<Value>& values = args.positional();
  if (values.empty()) return Wrong("loop.cycle wants values");
  return values[static_cast<size_t>(self.loop().index0) % values.size()];
}

Result<Value> HasLoopChanged(Run& run, const Value& self, const Args& args) {
  Loop& loop = self.loop();
  bool is_same = loop.was_changed_called && loop.last_changed.size() == args.positional().size();
  for (size_t i = 0; is_same && i < loop.last_changed.size(); ++i) {
    KVRUN_ASSIGN_OR_RETURN(is_same, AreEqual(run, loop.last_changed[i], args.positional()[i]));
  }
  loop.was_changed_called = true;
  if (!is_same && loop.statement != nullptr) loop.last_changed = args.positional();
  return Value::Bool(!is_same);
}

constexpr FunctionDef kCycle = {"cycle", CycleLoop, "*", 0};
constexpr FunctionDef kChanged = {"changed", HasLoopChanged, "*", 0};

}  // namespace

Loop& Value::loop() const { return static_cast<Loop&>(*object_); }
Callable& Value::callable() const { return static_cast<Callable&>(*object_); }

Result<bool> Loop::LookAhead(Run& run) {
  if (!ahead.empty()) return true;
  if (iterator == nullptr) return false;
  Value element;
  KVRUN_ASSIGN_OR_RETURN(const bool is_there, iterator->Next(run, &element));
  if (is_there) ahead.push_back(std::move(element));
  return is_there;
}

Result<bool> Loop::Next(Run& run) {
  KVRUN_ASSIGN_OR_RETURN(const bool is_there, LookAhead(run));
  if (!is_there) return false;
  ++index0;
  before = std::move(current);
  current = std::move(ahead.front());
  ahead.pop_front();
  return true;
}

Result<int64_t> Loop::Length(Run& run) {
  if (!iterable.is_missing() && !iterable.Is(Kind::kGenerator)) return LengthOf(run, iterable);
  while (iterator != nullptr) {
    Value element;
    KVRUN_RETURN_IF_ERROR(run.Take(sizeof(Value)));
    KVRUN_ASSIGN_OR_RETURN(const bool is_there, iterator->Next(run, &element));
    if (!is_there) break;
    ahead.push_back(std::move(element));
  }
  iterator.reset();
  return index0 + 1 + static_cast<int64_t>(ahead.size());
}

void Loop::Clear() {
  iterator.reset();
  ahead.clear();
  before = current = Value();
  last_changed.clear();
  scope.reset();
  statement = nullptr;
}

Result<Value> LoopAttribute(Run& run, const Value& self, std::string_view name) {
  Loop& loop = self.loop();
  if (name == "index") return Value::Int(loop.index0 + 1);
  if (name == "index0") return Value::Int(loop.index0);
  if (name == "first") return Value::Bool(loop.index0 == 0);
  if (name == "depth") return Value::Int(loop.depth0 + 1);
  if (name == "depth0") return Value::Int(loop.depth0);
  if (name == "cycle") return MakeCallable(run, &kCycle, self);
  if (name == "changed") return MakeCallable(run, &kChanged, self);
  if (name == "previtem") {
    return loop.before.is_missing() ? Value::Undefined("there is no previous item") : loop.before;
  }
  if (name == "length" || name == "revindex" || name == "revindex0") {
    KVRUN_ASSIGN_OR_RETURN(const int64_t length, loop.Length(run));
    return Value::Int(name == "length" ? length : length - loop.index0 - (name == "revindex0" ? 1 : 0));
  }
  if (name == "last" || name == "nextitem") {
    KVRUN_ASSIGN_OR_RETURN(const bool is_there, loop.LookAhead(run));
    if (name == "last") return Value::Bool(!is_there);
    return is_there ? loop.ahead.front() : Value::Undefined("there is no next item");
  }
  return Value::Undefined("a loop has no attribute '" + Excerpt(name) + "'");
}

}  // namespace kvrun::jinja
