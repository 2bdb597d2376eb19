// Filters that compare elements: sort, groupby, min, max, and the sum.
#include <algorithm>

#include "runtime/jinja/attribute_path.h"

namespace kvrun::jinja {
namespace {

Result<std::vector<Value>> InOrder(const std::vector<Value>& elements, const std::vector<size_t>& order) {
  std::vector<Value> sorted;
  for (const size_t i : order) sorted.push_back(elements[i]);
  return sorted;
}

Result<Value> FilterSort(Run& run, const Value& self, const Args& args) {
  KVRUN_ASSIGN_OR_RETURN(const std::vector<AttributePath> paths, AttributePath::AllOf(args[2]));
  KVRUN_ASSIGN_OR_RETURN(const std::vector<Value> elements, ElementsOf(run, self));
  std::vector<Value> keys;
  for (const Value& element : elements) {
    std::vector<Value> parts;
    for (const AttributePath& path : paths) {
      KVRUN_ASSIGN_OR_RETURN(Value part, KeyOf(run, path, element, args.IsTrueOr(1, false)));
      parts.push_back(std::move(part));
    }
    KVRUN_ASSIGN_OR_RETURN(Value key, MakeList(run, std::move(parts)));
    keys.push_back(std::move(key));
  }
  KVRUN_ASSIGN_OR_RETURN(const std::vector<size_t> order, SortedOrder(run, keys, args.IsTrueOr(0, false)));
  KVRUN_ASSIGN_OR_RETURN(std::vector<Value> sorted, InOrder(elements, order));
  return MakeList(run, std::move(sorted));
}

Result<Value> FilterDictSort(Run& run, const Value& self, const Args& args) {
  const bool is_by_value = args.Has(1) && args[1].is_string() && args[1].bytes() == "value";
  if (args.Has(1) && !is_by_value && !(args[1].is_string() && args[1].bytes() == "key")) {
    return Wrong("dictsort sorts by 'key' or 'value'");
  }
  if (self.is_undefined()) return Wrong(self.why_undefined());
  if (!self.Is(Kind::kDict)) return Wrong("dictsort wants a dict, and not a " + std::string(TypeName(self)));
  std::vector<Value> keys;
  std::vector<Value> pairs;
  for (const auto& [key, value] : self.dict().entries) {
    KVRUN_ASSIGN_OR_RETURN(Value by,
                           KeyOf(run, AttributePath(), is_by_value ? value : key, args.IsTrueOr(0, false)));
    keys.push_back(std::move(by));
    KVRUN_ASSIGN_OR_RETURN(Value pair, MakeTuple(run, {key, value}));
    pairs.push_back(std::move(pair));
  }
  KVRUN_ASSIGN_OR_RETURN(const std::vector<size_t> order, SortedOrder(run, keys, args.IsTrueOr(2, false)));
  KVRUN_ASSIGN_OR_RETURN(std::vector<Value> sorted, InOrder(pairs, order));
  return MakeList(run, std::move(sorted));
}

template <bool is_max>
Result<Value> FilterExtreme(Run& run, const Value& self, const Args& args) {
  KVRUN_ASSIGN_OR_RETURN(const AttributePath path, AttributePath::Of(args[1]));
  KVRUN_ASSIGN_OR_RETURN(const std::vector<Value> elements, ElementsOf(run, self));
  if (elements.empty()) return Value::Undefined("there is no item");
  Value best = elements[0];
  KVRUN_ASSIGN_OR_RETURN(Value best_key, KeyOf(run, path, best, args.IsTrueOr(0, false)));
  for (size_t i = 1; i < elements.size(); ++i) {
    KVRUN_ASSIGN_OR_RETURN(Value key, KeyOf(run, path, elements[i], args.IsTrueOr(0, false)));
    KVRUN_ASSIGN_OR_RETURN(const bool is_better,
                           is_max ? IsLess(run, best_key, key) : IsLess(run, key, best_key));
    if (!is_better) continue;
    best = elements[i];
    best_key = std::move(key);
  }
  return best;
}

// What groups are made by: of the element at `i`, with its case or without it.
Result<Value> GroupKey(Run& run, const AttributePath& path, const Args& args, const Value& element,
                       bool has_case) {
  KVRUN_ASSIGN_OR_RETURN(Value key, path.In(run, element, args[1].Is(Kind::kNone) ? Value() : args[1]));
  return has_case ? Result<Value>(std::move(key)) : WithoutCase(run, key);
}

Result<Value> FilterGroupBy(Run& run, const Value& self, const Args& args) {
  KVRUN_ASSIGN_OR_RETURN(const AttributePath path, AttributePath::Of(args[0]));
  KVRUN_ASSIGN_OR_RETURN(const std::vector<Value> elements, ElementsOf(run, self));
  const bool has_case = args.IsTrueOr(2, false);
  std::vector<Value> keys;
  for (const Value& element : elements) {
    KVRUN_ASSIGN_OR_RETURN(Value key, GroupKey(run, path, args, element, has_case));
    keys.push_back(std::move(key));
  }
  KVRUN_ASSIGN_OR_RETURN(const std::vector<size_t> order, SortedOrder(run, keys, false));
  std::vector<Value> groups;
  for (size_t begin = 0; begin < order.size();) {
    std::vector<Value> group;
    size_t end = begin;
    for (; end < order.size(); ++end) {
      KVRUN_ASSIGN_OR_RETURN(const bool is_same, AreEqual(run, keys[order[begin]], keys[order[end]]));
      if (!is_same) break;
      group.push_back(elements[order[end]]);
    }
    // Not equal to itself: not a number.
    if (end == begin) group.push_back(elements[order[end++]]);
    KVRUN_ASSIGN_OR_RETURN(Value name, GroupKey(run, path, args, group[0], true));
    KVRUN_ASSIGN_OR_RETURN(Value list, MakeList(run, std::move(group)));
    KVRUN_ASSIGN_OR_RETURN(Value pair, MakeTuple(run, {std::move(name), std::move(list)}));
    static_cast<Sequence&>(*pair.shared()).is_group = true;
    groups.push_back(std::move(pair));
    begin = end;
  }
  return MakeList(run, std::move(groups));
}

Result<Value> FilterSum(Run& run, const Value& self, const Args& args) {
  KVRUN_ASSIGN_OR_RETURN(const AttributePath path, AttributePath::Of(args[0]));
  KVRUN_ASSIGN_OR_RETURN(const std::vector<Value> elements, ElementsOf(run, self));
  Value sum = args.Has(1) ? args[1] : Value::Int(0);
  if (sum.is_string()) return Wrong("sum adds no texts");
  for (const Value& element : elements) {
    KVRUN_ASSIGN_OR_RETURN(const Value next, path.In(run, element));
    KVRUN_ASSIGN_OR_RETURN(sum, Sum(run, sum, next));
  }
  return sum;
}

constexpr FunctionDef kFilters[] = {
    {"sort", FilterSort, "reverse,case_sensitive,attribute", 0},
    {"dictsort", FilterDictSort, "case_sensitive,by,reverse", 0},
    {"min", FilterExtreme<false>, "case_sensitive,attribute", 0},
    {"max", FilterExtreme<true>, "case_sensitive,attribute", 0},
    {"groupby", FilterGroupBy, "attribute,default,case_sensitive", 1},
    {"sum", FilterSum, "attribute,start", 0},
};

}  // namespace

std::span<const FunctionDef> OrderFilters() { return kFilters; }

Result<std::vector<size_t>> SortedOrder(Run& run, const std::vector<Value>& keys, bool descends) {
  std::vector<size_t> order(keys.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::vector<size_t> merged(keys.size());
  // Merges runs: a comparison that fails ends it, which std::sort does not know.
  for (size_t width = 1; width < order.size(); width *= 2) {
    for (size_t begin = 0; begin < order.size(); begin += 2 * width) {
      const size_t middle = std::min(begin + width, order.size());
      const size_t end = std::min(begin + 2 * width, order.size());
      size_t left = begin;
      size_t right = middle;
      for (size_t to = begin; to < end; ++to) {
        bool takes_right = left == middle;
        if (!takes_right && right < end) {
          const Value& a = keys[order[left]];
          const Value& b = keys[order[right]];
          KVRUN_ASSIGN_OR_RETURN(takes_right, descends ? IsLess(run, a, b) : IsLess(run, b, a));
        }
        merged[to] = order[takes_right ? right++ : left++];
      }
    }
    order.swap(merged);
  }
  return order;
}

}  // namespace kvrun::jinja
