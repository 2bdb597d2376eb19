// What values are made of: iteration, length, `in`.
#include "runtime/jinja/evaluate.h"
#include "runtime/jinja/text_search.h"
#include "runtime/jinja/unicode.h"
#include "runtime/jinja/value.h"

namespace kvrun::jinja {
namespace {

class SequenceIterator : public Iterator {
 public:
  explicit SequenceIterator(Value sequence) : sequence_(std::move(sequence)) {}
  Result<bool> Next(Run&, Value* element) override {
    if (next_ == sequence_.items().size()) return false;
    *element = sequence_.items()[next_++];
    return true;
  }

 private:
  Value sequence_;
  size_t next_ = 0;
};

class RangeIterator : public Iterator {
 public:
  explicit RangeIterator(const Range& range) : range_(range) {}
  Result<bool> Next(Run&, Value* element) override {
    if (next_ == range_.n) return false;
    *element = Value::Int(range_.at(next_++));
    return true;
  }

 private:
  Range range_;
  int64_t next_ = 0;
};

class CharacterIterator : public Iterator {
 public:
  explicit CharacterIterator(Value string) : string_(std::move(string)) {}
  Result<bool> Next(Run& run, Value* element) override {
    if (next_ == string_.bytes().size()) return false;
    const size_t end = next_ + CharacterAt(string_.bytes(), next_).n_bytes;
    MarkedText character = string_.text().Slice(next_, end);
    character.is_markup = false;
    KVRUN_ASSIGN_OR_RETURN(*element, run.MakeString(std::move(character)));
    next_ = end;
    return true;
  }

 private:
  Value string_;
  size_t next_ = 0;
};

class DictIterator : public Iterator {
 public:
  DictIterator(std::shared_ptr<Object> dict, View::Part part) : dict_(std::move(dict)), part_(part) {}
  Result<bool> Next(Run& run, Value* element) override {
    const std::vector<Pair>& entries = static_cast<const Dict&>(*dict_).entries;
    if (next_ == entries.size()) return false;
    const auto& [key, value] = entries[next_++];
    if (part_ == View::Part::kItems) {
      KVRUN_ASSIGN_OR_RETURN(*element, MakeTuple(run, {key, value}));
    } else {
      *element = part_ == View::Part::kKeys ? key : value;
    }
    return true;
  }

 private:
  std::shared_ptr<Object> dict_;
  View::Part part_;
  size_t next_ = 0;
};

class GeneratorIterator : public Iterator {
 public:
  explicit GeneratorIterator(Value generator) : generator_(std::move(generator)) {}
  Result<bool> Next(Run& run, Value* element) override {
    // Generators may stand one in the other.
    const Descent descent(run);
    KVRUN_RETURN_IF_ERROR(descent.Check());
    return generator_.generator().iterator->Next(run, element);
  }

 private:
  Value generator_;
};

// What a loop has left, each element with the loop itself: whoever takes them takes them from the loop.
class LoopIterator : public Iterator {
 public:
  explicit LoopIterator(Value loop) : loop_(std::move(loop)) {}
  Result<bool> Next(Run& run, Value* element) override {
    KVRUN_ASSIGN_OR_RETURN(const bool is_there, loop_.loop().Next(run));
    if (!is_there) return false;
    KVRUN_ASSIGN_OR_RETURN(*element, MakeTuple(run, {loop_.loop().current, loop_}));
    return true;
  }

 private:
  Value loop_;
};

class NoIterator : public Iterator {
 public:
  Result<bool> Next(Run&, Value*) override { return false; }
};

std::unique_ptr<Iterator> IteratorOf(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined: return std::make_unique<NoIterator>();
    case Kind::kString: return std::make_unique<CharacterIterator>(value);
    case Kind::kList:
    case Kind::kTuple: return std::make_unique<SequenceIterator>(value);
    case Kind::kDict: return std::make_unique<DictIterator>(value.shared(), View::Part::kKeys);
    case Kind::kView: return std::make_unique<DictIterator>(value.view().dict, value.view().part);
    case Kind::kRange: return std::make_unique<RangeIterator>(value.range());
    case Kind::kGenerator: return std::make_unique<GeneratorIterator>(value);
    case Kind::kLoop: return std::make_unique<LoopIterator>(value);
    default: return nullptr;
  }
}

}  // namespace

bool IsIterable(const Value& value) {
  return value.is_undefined() || value.Is(Kind::kLoop) ||
         (value.kind() >= Kind::kString && value.kind() <= Kind::kGenerator);
}

Result<std::unique_ptr<Iterator>> Iterate(Run& run, const Value& value) {
  KVRUN_RETURN_IF_ERROR(run.Step());
  std::unique_ptr<Iterator> iterator = IteratorOf(value);
  if (iterator == nullptr) return Wrong("a " + std::string(TypeName(value)) + " has no elements");
  return iterator;
}

Result<std::vector<Value>> ElementsOf(Run& run, const Value& value) {
  KVRUN_ASSIGN_OR_RETURN(const std::unique_ptr<Iterator> iterator, Iterate(run, value));
  std::vector<Value> elements;
  while (true) {
    KVRUN_RETURN_IF_ERROR(run.Step());
    Value element;
    KVRUN_ASSIGN_OR_RETURN(const bool is_there, iterator->Next(run, &element));
    if (!is_there) return elements;
    KVRUN_RETURN_IF_ERROR(run.Take(sizeof(Value)));
    elements.push_back(std::move(element));
  }
}

Result<int64_t> LengthOf(Run& run, const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined: return int64_t{0};
    case Kind::kString:
      KVRUN_RETURN_IF_ERROR(run.Step(value.bytes().size() / 64));
      return static_cast<int64_t>(CountCharacters(value.bytes()));
    case Kind::kList:
    case Kind::kTuple: return static_cast<int64_t>(value.items().size());
    case Kind::kDict: return static_cast<int64_t>(value.dict().entries.size());
    case Kind::kView: return static_cast<int64_t>(value.view().entries().size());
    case Kind::kRange: return value.range().n;
    case Kind::kLoop: return value.loop().Length(run);
    default: return Wrong("a " + std::string(TypeName(value)) + " has no length");
  }
}

Result<bool> Contains(Run& run, const Value& container, const Value& element) {
  if (container.is_string()) {
    if (element.is_undefined()) return Wrong(element.why_undefined());
    if (!element.is_string()) {
      return Wrong("a str can hold a str alone, and not a " + std::string(TypeName(element)));
    }
    return HasText(run, container.bytes(), element.bytes());
  }
  if (container.Is(Kind::kDict)) {
    KVRUN_ASSIGN_OR_RETURN(const Value* const value, FindKey(run, container.dict(), element));
    return value != nullptr;
  }
  if (!IsIterable(container)) return Wrong("a " + std::string(TypeName(container)) + " has no elements");
  KVRUN_ASSIGN_OR_RETURN(const std::unique_ptr<Iterator> iterator, Iterate(run, container));
  while (true) {
    Value other;
    KVRUN_ASSIGN_OR_RETURN(const bool is_there, iterator->Next(run, &other));
    if (!is_there) return false;
    KVRUN_ASSIGN_OR_RETURN(const bool is_it, AreEqual(run, other, element));
    if (is_it) return true;
  }
}

}  // namespace kvrun::jinja
