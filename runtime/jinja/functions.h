// Filters, tests, methods and global functions: how they are found and called. Internal to the templates'
// interpreter.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/jinja/run.h"

namespace kvrun::jinja {

struct Arguments {
  std::vector<Value> positional;
  std::vector<Pair> named;
};

// What a function gets: a value for each of its parameters, kMissing where none is given.
class Args {
 public:
  explicit Args(Arguments arguments) : arguments_(std::move(arguments)) {}

  const Value& operator[](size_t i) const { return arguments_.positional[i]; }
  bool Has(size_t i) const { return !(*this)[i].is_missing(); }
  // Of a function that takes any.
  const std::vector<Value>& positional() const { return arguments_.positional; }
  const std::vector<Pair>& named() const { return arguments_.named; }

  // The argument, or what stands for one that is not given; an error where it is of another kind.
  Result<int64_t> Integer(size_t i, int64_t otherwise) const;
  bool IsTrueOr(size_t i, bool otherwise) const { return Has(i) ? IsTrue((*this)[i]) : otherwise; }

 private:
  Arguments arguments_;
};

// `self`: the value before "|", "is" or ".".
using Function = Result<Value> (*)(Run& run, const Value& self, const Args& args);

struct FunctionDef {
  std::string_view name;
  Function call = nullptr;
  // Names of parameters with commas between. "/": by position alone. "*": any number of any names.
  std::string_view parameters;
  size_t n_required = 0;
};

// Null where there is none.
const FunctionDef* FindFilter(std::string_view name);
const FunctionDef* FindTest(std::string_view name);
const FunctionDef* FindGlobal(std::string_view name);
// Of str, list, tuple, dict.
const FunctionDef* FindMethod(const Value& self, std::string_view name);
// Whether the sandbox refuses the method, as it changes the value.
bool IsMutator(const Value& self, std::string_view name);

Result<Value> CallFunction(Run& run, const FunctionDef& function, const Value& self, Arguments arguments);

// The parts of the tables.
std::span<const FunctionDef> TextFilters();
std::span<const FunctionDef> SequenceFilters();
std::span<const FunctionDef> OrderFilters();
std::span<const FunctionDef> ChoiceFilters();
std::span<const FunctionDef> NumberFilters();
std::span<const FunctionDef> StringMethods();
std::span<const FunctionDef> StringTestMethods();
std::span<const FunctionDef> SplitMethods();
std::span<const FunctionDef> CyclerMethods();
std::span<const FunctionDef> Tests();
std::span<const FunctionDef> Globals();

// Text of a value: str() of Python.
Status AppendText(Run& run, const Value& value, MarkedText* text);
Result<MarkedText> TextOf(Run& run, const Value& value);
// repr() of Python.
Status AppendRepr(Run& run, const Value& value, MarkedText* text);
std::string FloatText(double value);
// A str, or an error which says what the value is.
Result<const MarkedText*> StringOf(const Value& value);

// self.name of a template, self['name'] of a template.
Result<Value> AttributeOf(Run& run, const Value& self, const Value& name);
Result<Value> ItemOf(Run& run, const Value& self, const Value& key);
Result<Value> SliceOf(Run& run, const Value& self, const Value& start, const Value& stop, const Value& step);

// "text % value" and "text.format(...)".
Result<Value> PercentFormat(Run& run, const MarkedText& text, const Value& value);
Result<Value> BraceFormat(Run& run, const Value& self, const Args& args);
Result<Value> ToJson(Run& run, const Value& self, const Args& args);
Result<Value> FormattedTime(Run& run, const MarkedText& format);

// a + b.
Result<Value> Sum(Run& run, const Value& a, const Value& b);
// The order in which `keys` ascend, or descend; equal ones stay as they stand.
Result<std::vector<size_t>> SortedOrder(Run& run, const std::vector<Value>& keys, bool descends);
// As what is added to Markup is.
Status AppendEscaped(Run& run, const Value& value, MarkedText* text);

}  // namespace kvrun::jinja
