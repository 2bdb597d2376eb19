// Filters that take sequences apart and put them together.
#include <algorithm>
#include <unordered_map>

#include "runtime/jinja/attribute_path.h"
#include "runtime/jinja/unicode.h"

namespace kvrun::jinja {
namespace {

Result<Value> FilterLength(Run& run, const Value& self, const Args&) {
  KVRUN_ASSIGN_OR_RETURN(const int64_t length, LengthOf(run, self));
  return Value::Int(length);
}

Result<Value> FilterFirst(Run& run, const Value& self, const Args&) {
  KVRUN_ASSIGN_OR_RETURN(const std::unique_ptr<Iterator> iterator, Iterate(run, self));
  Value element;
  KVRUN_ASSIGN_OR_RETURN(const bool is_there, iterator->Next(run, &element));
  return is_there ? element : Value::Undefined("there is no first item");
}

Result<Value> FilterLast(Run& run, const Value& self, const Args&) {
  if (self.is_sequence() && !self.items().empty()) return self.items().back();
  if (self.Is(Kind::kGenerator)) return Wrong("a generator has no last item");
  if (self.is_string() && !self.bytes().empty()) {
    const size_t size = self.bytes().size();
    return run.MakeString(self.text().Slice(size - CharacterBefore(self.bytes(), size).n_bytes, size));
  }
  KVRUN_ASSIGN_OR_RETURN(const std::vector<Value> elements, ElementsOf(run, self));
  return elements.empty() ? Value::Undefined("there is no last item") : elements.back();
}

Result<Value> FilterJoin(Run& run, const Value& self, const Args& args) {
  KVRUN_ASSIGN_OR_RETURN(const AttributePath path, AttributePath::Of(args[1]));
  KVRUN_ASSIGN_OR_RETURN(const MarkedText between, TextOf(run, args[0]));
  KVRUN_ASSIGN_OR_RETURN(const std::unique_ptr<Iterator> iterator, Iterate(run, self));
  MarkedText joined;
  for (bool is_first = true;; is_first = false) {
    KVRUN_RETURN_IF_ERROR(run.Step());
    Value element;
    KVRUN_ASSIGN_OR_RETURN(const bool is_there, iterator->Next(run, &element));
    if (!is_there) return run.MakeString(std::move(joined));
    KVRUN_ASSIGN_OR_RETURN(element, path.In(run, std::move(element)));
    if (!is_first) joined.Append(between);
    const size_t n_before = joined.size();
    KVRUN_RETURN_IF_ERROR(AppendText(run, element, &joined));
    KVRUN_RETURN_IF_ERROR(run.Take(joined.size() - n_before + between.size()));
  }
}

Result<Value> FilterList(Run& run, const Value& self, const Args&) {
  KVRUN_ASSIGN_OR_RETURN(std::vector<Value> elements, ElementsOf(run, self));
  return MakeList(run, std::move(elements));
}

Result<std::vector<Value>> ItemPairs(Run& run, const Value& self, const Args&) {
  std::vector<Value> pairs;
  if (self.is_undefined()) return pairs;
  if (!self.Is(Kind::kDict)) return Wrong("items wants a dict, and not a " + std::string(TypeName(self)));
  for (const auto& [key, value] : self.dict().entries) {
    KVRUN_ASSIGN_OR_RETURN(Value pair, MakeTuple(run, {key, value}));
    pairs.push_back(std::move(pair));
  }
  return pairs;
}

Result<std::vector<Value>> ElementsBack(Run& run, const Value& self, const Args&) {
  KVRUN_ASSIGN_OR_RETURN(std::vector<Value> elements, ElementsOf(run, self));
  std::reverse(elements.begin(), elements.end());
  return elements;
}

Result<Value> FilterReverse(Run& run, const Value& self, const Args& args) {
  if (self.is_string()) return SliceOf(run, self, Value(), Value(), Value::Int(-1));
  if (!IsIterable(self)) return Wrong("reverse wants a sequence");
  if (!self.Is(Kind::kGenerator) && !self.Is(Kind::kLoop)) return GenerateLate<ElementsBack>(run, self, args);
  KVRUN_ASSIGN_OR_RETURN(std::vector<Value> elements, ElementsBack(run, self, args));
  return MakeList(run, std::move(elements));
}

Result<std::vector<Value>> Batches(Run& run, const Value& self, const Args& args) {
  KVRUN_ASSIGN_OR_RETURN(const int64_t size, args.Integer(0, 0));
  KVRUN_ASSIGN_OR_RETURN(const std::vector<Value> elements, ElementsOf(run, self));
  std::vector<Value> batches;
  std::vector<Value> batch;
  for (const Value& element : elements) {
    if (static_cast<int64_t>(batch.size()) == size) {
      KVRUN_ASSIGN_OR_RETURN(Value list, MakeList(run, std::exchange(batch, {})));
      batches.push_back(std::move(list));
    }
    batch.push_back(element);
  }
  if (batch.empty()) return batches;
  if (args.Has(1) && !args[1].Is(Kind::kNone) && size > static_cast<int64_t>(batch.size())) {
    if (size > int64_t{1} << 24) return Wrong("a batch is too large");
    KVRUN_RETURN_IF_ERROR(run.Take(static_cast<size_t>(size) * sizeof(Value)));
    batch.resize(static_cast<size_t>(size), args[1]);
  }
  KVRUN_ASSIGN_OR_RETURN(Value list, MakeList(run, std::move(batch)));
  batches.push_back(std::move(list));
  return batches;
}

Result<std::vector<Value>> Slices(Run& run, const Value& self, const Args& args) {
  KVRUN_ASSIGN_OR_RETURN(const int64_t n, args.Integer(0, 0));
  KVRUN_ASSIGN_OR_RETURN(const std::vector<Value> elements, ElementsOf(run, self));
  if (n == 0) return Wrong("slice wants a number of slices");
  std::vector<Value> slices;
  const auto size = static_cast<int64_t>(elements.size());
  auto next = elements.begin();
  for (int64_t i = 0; i < n; ++i) {
    KVRUN_RETURN_IF_ERROR(run.Step());
    const bool has_extra = i < size % n;
    const auto end = next + (size / n + (has_extra ? 1 : 0));
    std::vector<Value> slice(next, end);
    next = end;
    if (args.Has(1) && !args[1].Is(Kind::kNone) && !has_extra) slice.push_back(args[1]);
    KVRUN_ASSIGN_OR_RETURN(Value list, MakeList(run, std::move(slice)));
    slices.push_back(std::move(list));
  }
  return slices;
}

class UniqueIterator : public Iterator {
 public:
  UniqueIterator(Value source, const Args& args) : source_(std::move(source)), args_(args) {}

  Result<bool> Next(Run& run, Value* element) override {
    if (iterator_ == nullptr) {
      KVRUN_ASSIGN_OR_RETURN(path_, AttributePath::Of(args_[1]));
      KVRUN_ASSIGN_OR_RETURN(iterator_, Iterate(run, source_));
    }
    while (true) {
      KVRUN_RETURN_IF_ERROR(run.Step());
      KVRUN_ASSIGN_OR_RETURN(const bool is_there, iterator_->Next(run, element));
      if (!is_there) return false;
      KVRUN_ASSIGN_OR_RETURN(const bool is_new, Add(run, *element));
      if (is_new) return true;
    }
  }

 private:
  Result<bool> Add(Run& run, const Value& element) {
    KVRUN_ASSIGN_OR_RETURN(Value key, KeyOf(run, path_, element, args_.IsTrueOr(0, false)));
    KVRUN_ASSIGN_OR_RETURN(const uint64_t hash, HashOf(run, key));
    const auto [begin, end] = seen_.equal_range(hash);
    for (auto at = begin; at != end; ++at) {
      KVRUN_ASSIGN_OR_RETURN(const bool is_same, AreEqual(run, at->second, key));
      if (is_same) return false;
    }
    KVRUN_RETURN_IF_ERROR(run.Take(64));
    seen_.emplace(hash, std::move(key));
    return true;
  }

  Value source_;
  Args args_;
  AttributePath path_;
  std::unique_ptr<Iterator> iterator_;
  std::unordered_multimap<uint64_t, Value> seen_;
};

Result<Value> FilterUnique(Run& run, const Value& self, const Args& args) {
  return MakeGenerator(run, std::make_unique<UniqueIterator>(self, args), self);
}

constexpr FunctionDef kFilters[] = {
    {"length", FilterLength, "", 0},
    {"count", FilterLength, "", 0},
    {"first", FilterFirst, "", 0},
    {"last", FilterLast, "", 0},
    {"join", FilterJoin, "d,attribute", 0},
    {"list", FilterList, "", 0},
    {"items", GenerateLate<ItemPairs>, "", 0},
    {"reverse", FilterReverse, "", 0},
    {"batch", GenerateLate<Batches>, "linecount,fill_with", 1},
    {"slice", GenerateLate<Slices>, "slices,fill_with", 1},
    {"unique", FilterUnique, "case_sensitive,attribute", 0},
};

}  // namespace

std::span<const FunctionDef> SequenceFilters() { return kFilters; }

}  // namespace kvrun::jinja
