// Filters that choose elements or replace each: select, reject, map, default.
#include "runtime/jinja/attribute_path.h"

namespace kvrun::jinja {
namespace {

// map: another value for each element.
class MapIterator : public Iterator {
 public:
  MapIterator(Value source, const Args& args)
      : source_(std::move(source)), arguments_{args.positional(), args.named()} {}

  Result<bool> Next(Run& run, Value* element) override {
    if (!IsTrue(source_)) return false;
    if (iterator_ == nullptr) KVRUN_RETURN_IF_ERROR(SetUp(run));
    KVRUN_RETURN_IF_ERROR(run.Step());
    Value item;
    KVRUN_ASSIGN_OR_RETURN(const bool is_there, iterator_->Next(run, &item));
    if (!is_there) return false;
    if (filter_ != nullptr) {
      KVRUN_ASSIGN_OR_RETURN(*element, CallFunction(run, *filter_, item, arguments_));
    } else {
      KVRUN_ASSIGN_OR_RETURN(*element, path_.In(run, std::move(item), otherwise_));
    }
    return true;
  }

 private:
  Status SetUp(Run& run) {
    bool is_attribute = false;
    for (const auto& [name, value] : arguments_.named)
      is_attribute = is_attribute || name.bytes() == "attribute";
    if (arguments_.positional.empty() && is_attribute) {
      KVRUN_RETURN_IF_ERROR(SetUpAttribute());
    } else {
      if (arguments_.positional.empty()) return Wrong("map wants a filter");
      KVRUN_ASSIGN_OR_RETURN(const MarkedText* const name, StringOf(arguments_.positional[0]));
      filter_ = FindFilter(name->bytes());
      if (filter_ == nullptr) return Wrong("there is no filter named '" + Excerpt(name->bytes()) + "'");
      arguments_.positional.erase(arguments_.positional.begin());
    }
    KVRUN_ASSIGN_OR_RETURN(iterator_, Iterate(run, source_));
    return Status::Ok();
  }

  Status SetUpAttribute() {
    for (const auto& [name, value] : arguments_.named) {
      if (name.bytes() == "attribute") {
        KVRUN_ASSIGN_OR_RETURN(path_, AttributePath::Of(value));
      } else if (name.bytes() == "default") {
        otherwise_ = value.Is(Kind::kNone) ? Value() : value;
      } else {
        return Wrong("map takes no '" + Excerpt(name.bytes()) + "'");
      }
    }
    return Status::Ok();
  }

  Value source_;
  Arguments arguments_;
  const FunctionDef* filter_ = nullptr;
  AttributePath path_;
  Value otherwise_;
  std::unique_ptr<Iterator> iterator_;
};

struct Choice {
  bool wants = true;          // elements for which the test holds
  bool by_attribute = false;  // the test is of an attribute, which the first argument names
};

class ChoiceIterator : public Iterator {
 public:
  ChoiceIterator(Value source, const Args& args, Choice choice)
      : source_(std::move(source)), arguments_{args.positional(), args.named()}, choice_(choice) {}

  Result<bool> Next(Run& run, Value* element) override {
    if (!IsTrue(source_)) return false;
    if (iterator_ == nullptr) KVRUN_RETURN_IF_ERROR(SetUp(run));
    while (true) {
      KVRUN_RETURN_IF_ERROR(run.Step());
      KVRUN_ASSIGN_OR_RETURN(const bool is_there, iterator_->Next(run, element));
      if (!is_there) return false;
      KVRUN_ASSIGN_OR_RETURN(Value value, path_.In(run, *element));
      if (test_ != nullptr) {
        KVRUN_ASSIGN_OR_RETURN(value, CallFunction(run, *test_, value, arguments_));
      }
      if (IsTrue(value) == choice_.wants) return true;
    }
  }

 private:
  Status SetUp(Run& run) {
    std::vector<Value>& positional = arguments_.positional;
    if (choice_.by_attribute) {
      if (positional.empty()) return Wrong("selectattr and rejectattr want an attribute's name");
      KVRUN_ASSIGN_OR_RETURN(path_, AttributePath::Of(positional[0]));
      positional.erase(positional.begin());
    }
    if (!positional.empty()) {
      KVRUN_ASSIGN_OR_RETURN(const MarkedText* const name, StringOf(positional[0]));
      test_ = FindTest(name->bytes());
      if (test_ == nullptr) return Wrong("there is no test named '" + Excerpt(name->bytes()) + "'");
      positional.erase(positional.begin());
    }
    KVRUN_ASSIGN_OR_RETURN(iterator_, Iterate(run, source_));
    return Status::Ok();
  }

  Value source_;
  Arguments arguments_;
  Choice choice_;
  const FunctionDef* test_ = nullptr;
  AttributePath path_;
  std::unique_ptr<Iterator> iterator_;
};

template <bool wants, bool by_attribute>
Result<Value> FilterChoice(Run& run, const Value& self, const Args& args) {
  return MakeGenerator(run, std::make_unique<ChoiceIterator>(self, args, Choice{wants, by_attribute}), self);
}

Result<Value> FilterMap(Run& run, const Value& self, const Args& args) {
  return MakeGenerator(run, std::make_unique<MapIterator>(self, args), self);
}

Result<Value> FilterDefault(Run&, const Value& self, const Args& args) {
  const bool is_replaced = self.is_undefined() || (args.IsTrueOr(1, false) && !IsTrue(self));
  if (!is_replaced) return self;
  return args.Has(0) ? args[0] : Value::Form("");
}

constexpr FunctionDef kFilters[] = {
    {"map", FilterMap, "*", 0},
    {"select", FilterChoice<true, false>, "*", 0},
    {"reject", FilterChoice<false, false>, "*", 0},
    {"selectattr", FilterChoice<true, true>, "*", 0},
    {"rejectattr", FilterChoice<false, true>, "*", 0},
    {"default", FilterDefault, "default_value,boolean", 0},
    {"d", FilterDefault, "default_value,boolean", 0},
};

}  // namespace

std::span<const FunctionDef> ChoiceFilters() { return kFilters; }

}  // namespace kvrun::jinja
