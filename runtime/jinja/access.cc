// Attributes, items and slices of values.
#include <algorithm>

#include "runtime/jinja/evaluate.h"
#include "runtime/jinja/unicode.h"

namespace kvrun::jinja {
namespace {

Value NoSuch(const Value& self, std::string_view what, const Value& key) {
  std::string name = key.is_string() ? "'" + Excerpt(key.bytes()) + "'" : "of this kind";
  if (key.is_integer()) name = std::to_string(key.integer());
  return Value::Undefined("a " + std::string(TypeName(self)) + " has no " + std::string(what) + " " + name);
}

// What Python finds as an attribute of the object itself; kMissing where there is none.
Result<Value> OwnAttribute(Run& run, const Value& self, std::string_view name) {
  if (self.Is(Kind::kNamespace)) {
    for (const Pair& attribute : self.name_space().attributes) {
      if (attribute.first.bytes() == name) return attribute.second;
    }
    return Value();
  }
  if (self.Is(Kind::kLoop)) return LoopAttribute(run, self, name);
  if (self.Is(Kind::kCycler) && name == "current") return self.cycler().items[self.cycler().position];
  if (self.Is(Kind::kTuple) && static_cast<const Sequence*>(self.object())->is_group) {
    if (name == "grouper") return self.items()[0];
    if (name == "list") return self.items()[1];
  }
  if (self.Is(Kind::kCallable) && self.callable().macro != nullptr && name == "name") {
    return self.callable().macro->name;
  }
  if (IsMutator(self, name)) {
    return Value::Undefined("'" + std::string(name) + "' changes a " + std::string(TypeName(self)) +
                            ", which the sandbox refuses");
  }
  const FunctionDef* const method = FindMethod(self, name);
  return method == nullptr ? Result<Value>(Value()) : MakeCallable(run, method, self);
}

// Offset of each character, and of the end.
Result<std::vector<size_t>> OffsetsOf(Run& run, std::string_view text) {
  KVRUN_RETURN_IF_ERROR(run.Take(text.size() * 8));
  std::vector<size_t> offsets;
  for (size_t position = 0; position < text.size(); position += CharacterAt(text, position).n_bytes) {
    offsets.push_back(position);
  }
  offsets.push_back(text.size());
  return offsets;
}

Result<Value> CharacterOf(Run& run, const Value& self, int64_t index, const Value& key) {
  const std::string_view text = self.bytes();
  KVRUN_RETURN_IF_ERROR(run.Step(text.size() / 64));
  if (index < 0) index += static_cast<int64_t>(CountCharacters(text));
  const size_t begin = index < 0 ? text.size() : OffsetOfCharacter(text, static_cast<size_t>(index));
  if (begin == text.size()) return NoSuch(self, "element", key);
  return run.MakeString(self.text().Slice(begin, begin + CharacterAt(text, begin).n_bytes));
}

Result<Value> ElementAt(Run& run, const Value& self, const Value& key) {
  int64_t index = key.integer();
  if (self.is_string()) return CharacterOf(run, self, index, key);
  const int64_t n = self.is_sequence() ? static_cast<int64_t>(self.items().size()) : self.range().n;
  if (index < 0) index += n;
  if (index < 0 || index >= n) return NoSuch(self, "element", key);
  return self.is_sequence() ? self.items()[static_cast<size_t>(index)] : Value::Int(self.range().at(index));
}

struct SliceBounds {
  int64_t start = 0;
  int64_t stop = 0;
  int64_t step = 1;
  int64_t n = 0;
};

Result<int64_t> Bound(const Value& value, int64_t otherwise) {
  if (value.is_missing() || value.Is(Kind::kNone)) return otherwise;
  if (value.is_integer()) return value.integer();
  if (value.is_undefined()) return Wrong(value.why_undefined());
  return Wrong("bounds of a slice are numbers, and not a " + std::string(TypeName(value)));
}

Result<SliceBounds> BoundsOf(int64_t n, const Value& start, const Value& stop, const Value& step) {
  SliceBounds bounds;
  KVRUN_ASSIGN_OR_RETURN(bounds.step, Bound(step, 1));
  if (bounds.step == 0) return Wrong("the step of a slice is 0");
  bounds.step = std::max<int64_t>(bounds.step, -INT64_MAX);
  const bool is_back = bounds.step < 0;
  const int64_t low = is_back ? -1 : 0;
  const int64_t high = is_back ? n - 1 : n;
  const auto inside = [&](int64_t at) { return std::clamp(at < 0 ? at + n : at, low, high); };
  KVRUN_ASSIGN_OR_RETURN(bounds.start, Bound(start, 0));
  KVRUN_ASSIGN_OR_RETURN(bounds.stop, Bound(stop, 0));
  bounds.start = start.is_missing() || start.Is(Kind::kNone) ? (is_back ? high : low) : inside(bounds.start);
  bounds.stop = stop.is_missing() || stop.Is(Kind::kNone) ? (is_back ? low : high) : inside(bounds.stop);
  const int64_t distance = is_back ? bounds.start - bounds.stop : bounds.stop - bounds.start;
  const int64_t width = is_back ? -bounds.step : bounds.step;
  bounds.n = distance > 0 ? (distance - 1) / width + 1 : 0;
  return bounds;
}

Result<Value> SliceOfString(Run& run, const Value& self, const SliceBounds& bounds) {
  const std::string_view text = self.bytes();
  if (bounds.n == 0) return run.MakeString(self.text().Slice(0, 0));
  if (bounds.step == 1) {
    const size_t begin = OffsetOfCharacter(text, static_cast<size_t>(bounds.start));
    const size_t size = OffsetOfCharacter(text.substr(begin), static_cast<size_t>(bounds.n));
    return run.MakeString(self.text().Slice(begin, begin + size));
  }
  KVRUN_ASSIGN_OR_RETURN(const std::vector<size_t> offsets, OffsetsOf(run, text));
  MarkedText slice = self.text().Slice(0, 0);
  for (int64_t i = 0; i < bounds.n; ++i) {
    const auto at = static_cast<size_t>(bounds.start + i * bounds.step);
    slice.Append(self.text(), offsets[at], offsets[at + 1]);
  }
  return run.MakeString(std::move(slice));
}

}  // namespace

Result<Value> AttributeOf(Run& run, const Value& self, const Value& name) {
  if (self.is_undefined()) return Wrong(self.why_undefined());
  KVRUN_ASSIGN_OR_RETURN(Value value, OwnAttribute(run, self, name.bytes()));
  if (!value.is_missing()) return value;
  if (self.Is(Kind::kDict)) {
    KVRUN_RETURN_IF_ERROR(run.Step());
    if (const Value* const item = FindKey(self.dict(), name.bytes()); item != nullptr) return *item;
  }
  return NoSuch(self, "attribute", name);
}

Result<Value> ItemOf(Run& run, const Value& self, const Value& key) {
  if (self.is_undefined()) return Wrong(self.why_undefined());
  if (self.Is(Kind::kDict)) {
    // What can be no key is not found either.
    const Result<const Value*> item = FindKey(run, self.dict(), key);
    if (item.ok() && *item != nullptr) return **item;
  }
  if (key.is_integer() && (self.is_sequence() || self.is_string() || self.Is(Kind::kRange))) {
    return ElementAt(run, self, key);
  }
  if (!key.is_string()) return NoSuch(self, "element", key);
  KVRUN_ASSIGN_OR_RETURN(Value value, OwnAttribute(run, self, key.bytes()));
  return value.is_missing() ? NoSuch(self, "element", key) : value;
}

Result<Value> SliceOf(Run& run, const Value& self, const Value& start, const Value& stop, const Value& step) {
  if (self.is_undefined()) return Wrong(self.why_undefined());
  if (!self.is_sequence() && !self.is_string() && !self.Is(Kind::kRange)) {
    return Wrong("a " + std::string(TypeName(self)) + " has no slices");
  }
  KVRUN_ASSIGN_OR_RETURN(const int64_t n, LengthOf(run, self));
  KVRUN_ASSIGN_OR_RETURN(const SliceBounds bounds, BoundsOf(n, start, stop, step));
  if (self.is_string()) return SliceOfString(run, self, bounds);
  if (self.Is(Kind::kRange)) {
    const Range& range = self.range();
    Range slice = range;
    slice.start = range.at(bounds.start);
    slice.stop = range.at(bounds.stop);
    slice.n = bounds.n;
    if (__builtin_mul_overflow(range.step, bounds.step, &slice.step))
      return Wrong("a range's step is too large");
    return MakeRange(slice);
  }
  KVRUN_RETURN_IF_ERROR(run.Step(static_cast<uint64_t>(bounds.n)));
  KVRUN_RETURN_IF_ERROR(run.Take(static_cast<size_t>(bounds.n) * sizeof(Value)));
  std::vector<Value> items;
  for (int64_t i = 0; i < bounds.n; ++i) {
    items.push_back(self.items()[static_cast<size_t>(bounds.start + i * bounds.step)]);
  }
  return self.Is(Kind::kList) ? MakeList(run, std::move(items)) : MakeTuple(run, std::move(items));
}

}  // namespace kvrun::jinja
