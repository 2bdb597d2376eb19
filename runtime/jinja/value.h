// Values of a template's run, as Python has them. Internal to the templates' interpreter.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "platform/base/status.h"
#include "runtime/jinja/marked_text.h"

namespace kvrun::jinja {

class Run;

enum class Kind : uint8_t {
  kMissing,    // no value at all: an argument that was not given, a name that is not set
  kUndefined,  // Jinja's Undefined
  kNone,
  kBool,
  kInt,
  kFloat,
  kString,
  kList,
  kTuple,
  kDict,
  kView,  // what keys(), values() and items() give
  kRange,
  kGenerator,
  kNamespace,
  kLoop,
  kCallable,
  kCycler,
};

struct Text;
struct Sequence;
struct Dict;
struct View;
struct Range;
struct Generator;
struct Namespace;
struct Loop;
struct Callable;
struct Cycler;

struct Object {
  // How many objects stand one in the other; a leaf has 0.
  uint32_t depth = 0;
};

class Value {
 public:
  Value() = default;
  static Value None() { return Value(Kind::kNone); }
  static Value Bool(bool value);
  static Value Int(int64_t value);
  static Value Float(double value);
  static Value String(MarkedText text);
  static Value Form(std::string_view text) { return String(MarkedText::Form(text)); }
  // `why`: what an attempt to use it is told.
  static Value Undefined(std::string why);
  Value(Kind kind, std::shared_ptr<Object> object) : kind_(kind), object_(std::move(object)) {}

  Kind kind() const { return kind_; }
  bool Is(Kind kind) const { return kind_ == kind; }
  bool is_missing() const { return kind_ == Kind::kMissing; }
  bool is_undefined() const { return kind_ == Kind::kUndefined; }
  bool is_string() const { return kind_ == Kind::kString; }
  bool is_number() const { return kind_ >= Kind::kBool && kind_ <= Kind::kFloat; }
  bool is_integer() const { return kind_ == Kind::kBool || kind_ == Kind::kInt; }
  bool is_sequence() const { return kind_ == Kind::kList || kind_ == Kind::kTuple; }

  // Each for its kind alone.
  bool boolean() const { return number_.integer != 0; }
  int64_t integer() const { return number_.integer; }  // kBool: 0 or 1
  double real() const { return kind_ == Kind::kFloat ? number_.real : static_cast<double>(number_.integer); }
  const MarkedText& text() const;
  std::string_view bytes() const { return text().bytes(); }
  const std::string& why_undefined() const;
  const std::vector<Value>& items() const;  // kList, kTuple
  const Dict& dict() const;
  const View& view() const;
  const Range& range() const;
  Generator& generator() const;
  Namespace& name_space() const;
  Loop& loop() const;
  Callable& callable() const;
  Cycler& cycler() const;
  const Object* object() const { return object_.get(); }
  const std::shared_ptr<Object>& shared() const { return object_; }
  uint32_t depth() const { return object_ ? object_->depth : 0; }

 private:
  explicit Value(Kind kind) : kind_(kind) {}

  Kind kind_ = Kind::kMissing;
  union {
    int64_t integer = 0;
    double real;
  } number_;
  std::shared_ptr<Object> object_;
};

using Pair = std::pair<Value, Value>;

struct Text : Object {
  MarkedText text;
};
struct Reason : Object {
  std::string why;
};
struct Sequence : Object {
  std::vector<Value> items;
  bool is_group = false;  // of groupby: its two items have names
};

struct Dict : Object {
  std::vector<Pair> entries;
  // Hash and index of each entry, sorted, where there are many.
  std::vector<std::pair<uint64_t, size_t>> index;
};

struct View : Object {
  enum class Part : uint8_t { kKeys, kValues, kItems };
  std::shared_ptr<Object> dict;
  Part part = Part::kKeys;

  const std::vector<Pair>& entries() const { return static_cast<const Dict&>(*dict).entries; }
};

struct Range : Object {
  int64_t start = 0;
  int64_t stop = 0;
  int64_t step = 1;
  int64_t n = 0;

  int64_t at(int64_t index) const { return start + index * step; }
};

class Iterator {
 public:
  virtual ~Iterator() = default;
  // False where there is none left.
  virtual Result<bool> Next(Run& run, Value* element) = 0;
};

struct Generator : Object {
  std::unique_ptr<Iterator> iterator;
};

struct Namespace : Object {
  std::vector<Pair> attributes;
};

struct Cycler : Object {
  std::vector<Value> items;
  size_t position = 0;
};

// The kind's name in Python, for messages: "list".
std::string_view TypeName(const Value& value);

bool IsTrue(const Value& value);
// `==` of Python. It costs steps, as values may be large.
Result<bool> AreEqual(Run& run, const Value& a, const Value& b);
// a < b; an error for kinds that have no order.
Result<bool> IsLess(Run& run, const Value& a, const Value& b);
// An error for what cannot be a key.
Result<uint64_t> HashOf(Run& run, const Value& value);

Result<Value> MakeList(Run& run, std::vector<Value> items);
Result<Value> MakeTuple(Run& run, std::vector<Value> items);
// Keys that are equal: the first key, the last value.
Result<Value> MakeDict(Run& run, const std::vector<Pair>& entries);
Result<Value> MakeGenerator(Run& run, std::unique_ptr<Iterator> iterator, const Value& source);
Value MakeRange(const Range& range);

// Null where there is no such key.
Result<const Value*> FindKey(Run& run, const Dict& dict, const Value& key);
const Value* FindKey(const Dict& dict, std::string_view key);

// An error for what is no iterable.
Result<std::unique_ptr<Iterator>> Iterate(Run& run, const Value& value);
bool IsIterable(const Value& value);
Result<std::vector<Value>> ElementsOf(Run& run, const Value& value);
// len(); an error for what has none.
Result<int64_t> LengthOf(Run& run, const Value& value);
// `element in container`.
Result<bool> Contains(Run& run, const Value& container, const Value& element);

}  // namespace kvrun::jinja
