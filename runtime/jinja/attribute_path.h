// Values that filters look up in each element: attribute="function.name". Internal to the templates'
// interpreter.
#pragma once

#include <vector>

#include "runtime/jinja/functions.h"

namespace kvrun::jinja {

class AttributePath {
 public:
  // kMissing or None: the element itself.
  static Result<AttributePath> Of(const Value& attribute);
  // Several, with commas between.
  static Result<std::vector<AttributePath>> AllOf(const Value& attribute);

  // `otherwise`: for what is undefined, or kMissing.
  Result<Value> In(Run& run, Value element, const Value& otherwise = Value()) const;

 private:
  std::vector<Value> parts_;
};

// Texts in small letters; other values as they are.
Result<Value> WithoutCase(Run& run, const Value& value);

// The element's value at the path, without regard to case unless `is_case_sensitive`.
Result<Value> KeyOf(Run& run, const AttributePath& path, const Value& element, bool is_case_sensitive);

// A list that is made when its first element is asked for.
class LateList : public Iterator {
 public:
  using Make = Result<std::vector<Value>> (*)(Run& run, const Value& self, const Args& args);
  LateList(Make make, Value self, Args args) : make_(make), self_(std::move(self)), args_(std::move(args)) {}

  Result<bool> Next(Run& run, Value* element) override;

 private:
  Make make_;
  Value self_;
  Args args_;
  bool is_made_ = false;
  std::vector<Value> elements_;
  size_t next_ = 0;
};

template <LateList::Make make>
Result<Value> GenerateLate(Run& run, const Value& self, const Args& args) {
  return MakeGenerator(run, std::make_unique<LateList>(make, self, args), self);
}

}  // namespace kvrun::jinja
