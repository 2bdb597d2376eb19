#include "runtime/jinja/functions.h"

#include <algorithm>

#include "runtime/jinja/evaluate.h"

namespace kvrun::jinja {
namespace {

const FunctionDef* FindIn(std::span<const FunctionDef> table, std::string_view name) {
  const auto at =
      std::find_if(table.begin(), table.end(), [&](const FunctionDef& f) { return f.name == name; });
  return at == table.end() ? nullptr : &*at;
}

const FunctionDef* FindInAll(std::initializer_list<std::span<const FunctionDef>> tables,
                             std::string_view name) {
  for (const std::span<const FunctionDef> table : tables) {
    if (const FunctionDef* const found = FindIn(table, name); found != nullptr) return found;
  }
  return nullptr;
}

Status WrongArguments(const FunctionDef& function, std::string_view why) {
  return Wrong("the arguments of " + std::string(function.name) + "() are wrong: " + std::string(why));
}

// Puts arguments at their parameters' places.
Result<Args> Bind(const FunctionDef& function, Arguments arguments) {
  std::string_view names = function.parameters;
  const bool by_position = !names.empty() && names.front() == '/';
  if (by_position) names.remove_prefix(1);
  std::vector<Value> values = std::move(arguments.positional);
  const size_t n_parameters =
      names.empty() ? 0 : 1 + static_cast<size_t>(std::count(names.begin(), names.end(), ','));
  if (values.size() > n_parameters) return WrongArguments(function, "there are too many");
  values.resize(n_parameters);
  for (Pair& named : arguments.named) {
    std::string_view rest = names;
    size_t i = 0;
    for (; i < n_parameters; ++i) {
      const std::string_view parameter = rest.substr(0, rest.find(','));
      if (!by_position && parameter == named.first.bytes()) break;
      rest.remove_prefix(std::min(rest.size(), parameter.size() + 1));
    }
    if (i == n_parameters) {
      return WrongArguments(function, "none is named '" + Excerpt(named.first.bytes()) + "'");
    }
    if (!values[i].is_missing()) return WrongArguments(function, "one is given twice");
    values[i] = std::move(named.second);
  }
  for (size_t i = 0; i < function.n_required; ++i) {
    if (values[i].is_missing()) return WrongArguments(function, "there are too few");
  }
  return Args({std::move(values), {}});
}

Result<Value> CountItem(Run& run, const Value& self, const Args& args) {
  int64_t n = 0;
  for (const Value& item : self.items()) {
    KVRUN_ASSIGN_OR_RETURN(const bool is_it, AreEqual(run, item, args[0]));
    n += is_it ? 1 : 0;
  }
  return Value::Int(n);
}

Result<Value> IndexOfItem(Run& run, const Value& self, const Args& args) {
  const auto n = static_cast<int64_t>(self.items().size());
  KVRUN_ASSIGN_OR_RETURN(int64_t start, args.Integer(1, 0));
  KVRUN_ASSIGN_OR_RETURN(int64_t stop, args.Integer(2, n));
  start = std::clamp<int64_t>(start < 0 ? start + n : start, 0, n);
  stop = std::clamp<int64_t>(stop < 0 ? stop + n : stop, 0, n);
  for (int64_t i = start; i < stop; ++i) {
    KVRUN_ASSIGN_OR_RETURN(const bool is_it, AreEqual(run, self.items()[static_cast<size_t>(i)], args[0]));
    if (is_it) return Value::Int(i);
  }
  return Wrong("index(): the value is not in the list");
}

Result<Value> GetItem(Run& run, const Value& self, const Args& args) {
  KVRUN_ASSIGN_OR_RETURN(const Value* const value, FindKey(run, self.dict(), args[0]));
  if (value != nullptr) return *value;
  return args.Has(1) ? args[1] : Value::None();
}

Value ViewOf(const Value& self, View::Part part) {
  auto view = std::make_shared<View>();
  view->dict = self.shared();
  view->part = part;
  view->depth = self.depth() + 1;
  return {Kind::kView, std::move(view)};
}

Result<Value> KeysOf(Run&, const Value& self, const Args&) { return ViewOf(self, View::Part::kKeys); }
Result<Value> ValuesOf(Run&, const Value& self, const Args&) { return ViewOf(self, View::Part::kValues); }
Result<Value> ItemsOf(Run&, const Value& self, const Args&) { return ViewOf(self, View::Part::kItems); }
Result<Value> CopyOf(Run&, const Value& self, const Args&) { return self; }

constexpr FunctionDef kListMethods[] = {
    {"count", CountItem, "/value", 1},
    {"index", IndexOfItem, "/value,start,stop", 1},
    {"copy", CopyOf, "", 0},
};
constexpr FunctionDef kDictMethods[] = {
    {"get", GetItem, "/key,default", 1}, {"items", ItemsOf, "", 0}, {"keys", KeysOf, "", 0},
    {"values", ValuesOf, "", 0},         {"copy", CopyOf, "", 0},
};

}  // namespace

Result<int64_t> Args::Integer(size_t i, int64_t otherwise) const {
  const Value& value = (*this)[i];
  if (value.is_missing()) return otherwise;
  if (value.is_integer()) return value.integer();
  if (value.is_undefined()) return Wrong(value.why_undefined());
  return Wrong("a number is wanted, and not a " + std::string(TypeName(value)));
}

Result<const MarkedText*> StringOf(const Value& value) {
  if (value.is_string()) return &value.text();
  if (value.is_undefined()) return Wrong(value.why_undefined());
  return Wrong("a str is wanted, and not a " + std::string(TypeName(value)));
}

const FunctionDef* FindFilter(std::string_view name) {
  return FindInAll({TextFilters(), SequenceFilters(), OrderFilters(), ChoiceFilters(), NumberFilters()},
                   name);
}

const FunctionDef* FindTest(std::string_view name) { return FindIn(Tests(), name); }
const FunctionDef* FindGlobal(std::string_view name) { return FindIn(Globals(), name); }

const FunctionDef* FindMethod(const Value& self, std::string_view name) {
  switch (self.kind()) {
    case Kind::kString: return FindInAll({StringMethods(), StringTestMethods(), SplitMethods()}, name);
    case Kind::kList: return FindIn(kListMethods, name);
    case Kind::kTuple:
    case Kind::kRange: return name == "copy" || self.Is(Kind::kRange) ? nullptr : FindIn(kListMethods, name);
    case Kind::kDict: return FindIn(kDictMethods, name);
    case Kind::kCycler: return FindIn(CyclerMethods(), name);
    default: return nullptr;
  }
}

bool IsMutator(const Value& self, std::string_view name) {
  const auto is_one_of = [name](std::initializer_list<std::string_view> names) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  if (self.Is(Kind::kList)) {
    return is_one_of({"append", "clear", "pop", "reverse", "insert", "sort", "extend", "remove"});
  }
  return self.Is(Kind::kDict) && is_one_of({"clear", "pop", "popitem", "setdefault", "update"});
}

Result<Value> CallFunction(Run& run, const FunctionDef& function, const Value& self, Arguments arguments) {
  KVRUN_RETURN_IF_ERROR(run.Step());
  if (function.parameters == "*") return function.call(run, self, Args(std::move(arguments)));
  KVRUN_ASSIGN_OR_RETURN(const Args args, Bind(function, std::move(arguments)));
  return function.call(run, self, args);
}

}  // namespace kvrun::jinja
