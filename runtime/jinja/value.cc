#include "runtime/jinja/value.h"

#include <algorithm>
#include <functional>

#include "runtime/jinja/run.h"

namespace kvrun::jinja {
namespace {

constexpr size_t kFewEntries = 8;

template <typename T>
const T& As(const std::shared_ptr<Object>& object) {
  return static_cast<const T&>(*object);
}

uint32_t DepthOf(const std::vector<Value>& items) {
  uint32_t depth = 0;
  for (const Value& item : items) depth = std::max(depth, item.depth());
  return depth + 1;
}

Status CheckDepth(Run& run, uint32_t depth) {
  if (depth <= run.limits().max_depth) return Status::Ok();
  return Wrong("values stand more than " + std::to_string(run.limits().max_depth) + " deep in each other");
}

Result<Value> MakeSequence(Run& run, Kind kind, std::vector<Value> items) {
  auto sequence = std::make_shared<Sequence>();
  sequence->depth = DepthOf(items);
  KVRUN_RETURN_IF_ERROR(CheckDepth(run, sequence->depth));
  KVRUN_RETURN_IF_ERROR(run.Take(32 + items.size() * sizeof(Value)));
  sequence->items = std::move(items);
  return Value(kind, std::move(sequence));
}

Result<size_t> FindIndex(Run& run, const Dict& dict, const Value& key, uint64_t hash) {
  if (dict.index.empty()) {
    for (size_t i = 0; i < dict.entries.size(); ++i) {
      KVRUN_ASSIGN_OR_RETURN(const bool is_it, AreEqual(run, dict.entries[i].first, key));
      if (is_it) return i;
    }
    return dict.entries.size();
  }
  auto at = std::lower_bound(dict.index.begin(), dict.index.end(), std::pair<uint64_t, size_t>{hash, 0});
  for (; at != dict.index.end() && at->first == hash; ++at) {
    KVRUN_ASSIGN_OR_RETURN(const bool is_it, AreEqual(run, dict.entries[at->second].first, key));
    if (is_it) return at->second;
  }
  return dict.entries.size();
}

// The one of `candidates` with the same key as this entry, or the entry itself.
Result<size_t> FirstEqual(Run& run, const std::vector<Pair>& entries, const std::vector<size_t>& candidates,
                          size_t entry) {
  for (const size_t candidate : candidates) {
    KVRUN_ASSIGN_OR_RETURN(const bool is_same, AreEqual(run, entries[candidate].first, entries[entry].first));
    if (is_same) return candidate;
  }
  return entry;
}

}  // namespace

Value Value::Bool(bool value) {
  Value result(Kind::kBool);
  result.number_.integer = value ? 1 : 0;
  return result;
}

Value Value::Int(int64_t value) {
  Value result(Kind::kInt);
  result.number_.integer = value;
  return result;
}

Value Value::Float(double value) {
  Value result(Kind::kFloat);
  result.number_.real = value;
  return result;
}

Value Value::String(MarkedText text) {
  auto object = std::make_shared<Text>();
  object->text = std::move(text);
  return {Kind::kString, std::move(object)};
}

Value Value::Undefined(std::string why) {
  auto reason = std::make_shared<Reason>();
  reason->why = std::move(why);
  return {Kind::kUndefined, std::move(reason)};
}

const MarkedText& Value::text() const { return As<Text>(object_).text; }
const std::string& Value::why_undefined() const { return As<Reason>(object_).why; }
const std::vector<Value>& Value::items() const { return As<Sequence>(object_).items; }
const Dict& Value::dict() const { return As<Dict>(object_); }
const View& Value::view() const { return As<View>(object_); }
const Range& Value::range() const { return As<Range>(object_); }
Generator& Value::generator() const { return static_cast<Generator&>(*object_); }
Namespace& Value::name_space() const { return static_cast<Namespace&>(*object_); }
Cycler& Value::cycler() const { return static_cast<Cycler&>(*object_); }

std::string_view TypeName(const Value& value) {
  switch (value.kind()) {
    case Kind::kMissing:
    case Kind::kUndefined: return "Undefined";
    case Kind::kNone: return "NoneType";
    case Kind::kBool: return "bool";
    case Kind::kInt: return "int";
    case Kind::kFloat: return "float";
    case Kind::kString: return "str";
    case Kind::kList: return "list";
    case Kind::kTuple: return "tuple";
    case Kind::kDict: return "dict";
    case Kind::kView: return "dict view";
    case Kind::kRange: return "range";
    case Kind::kGenerator: return "generator";
    case Kind::kNamespace: return "Namespace";
    case Kind::kLoop: return "LoopContext";
    case Kind::kCallable: return "function";
    case Kind::kCycler: return "Cycler";
  }
  return "object";
}

bool IsTrue(const Value& value) {
  switch (value.kind()) {
    case Kind::kMissing:
    case Kind::kUndefined:
    case Kind::kNone: return false;
    case Kind::kBool:
    case Kind::kInt: return value.integer() != 0;
    case Kind::kFloat: return value.real() != 0;
    case Kind::kString: return !value.bytes().empty();
    case Kind::kList:
    case Kind::kTuple: return !value.items().empty();
    case Kind::kDict: return !value.dict().entries.empty();
    case Kind::kView: return !value.view().entries().empty();
    case Kind::kRange: return value.range().n != 0;
    default: return true;
  }
}

Result<Value> MakeList(Run& run, std::vector<Value> items) {
  return MakeSequence(run, Kind::kList, std::move(items));
}

Result<Value> MakeTuple(Run& run, std::vector<Value> items) {
  return MakeSequence(run, Kind::kTuple, std::move(items));
}

Result<Value> MakeDict(Run& run, const std::vector<Pair>& entries) {
  auto dict = std::make_shared<Dict>();
  KVRUN_RETURN_IF_ERROR(run.Take(64 + entries.size() * (sizeof(Pair) + 16)));
  std::vector<std::pair<uint64_t, size_t>> hashes;
  for (size_t i = 0; i < entries.size(); ++i) {
    KVRUN_ASSIGN_OR_RETURN(const uint64_t hash, HashOf(run, entries[i].first));
    hashes.emplace_back(hash, i);
  }
  std::sort(hashes.begin(), hashes.end());
  // Of keys that are equal, which stand side by side here, the first place gets the last value.
  std::vector<size_t> place(entries.size());
  std::vector<size_t> different;  // keys of the same hash
  for (size_t i = 0; i < hashes.size(); ++i) {
    if (i > 0 && hashes[i - 1].first != hashes[i].first) different.clear();
    const size_t entry = hashes[i].second;
    KVRUN_ASSIGN_OR_RETURN(place[entry], FirstEqual(run, entries, different, entry));
    if (place[entry] == entry) different.push_back(entry);
  }
  std::vector<size_t> index_of(entries.size());
  for (size_t i = 0; i < entries.size(); ++i) {
    if (place[i] != i) {
      dict->entries[index_of[place[i]]].second = entries[i].second;
      continue;
    }
    index_of[i] = dict->entries.size();
    dict->entries.push_back(entries[i]);
  }
  for (const auto& [key, value] : dict->entries) {
    dict->depth = std::max({dict->depth, key.depth(), value.depth()});
  }
  ++dict->depth;
  KVRUN_RETURN_IF_ERROR(CheckDepth(run, dict->depth));
  if (dict->entries.size() > kFewEntries) {
    for (const auto& [hash, i] : hashes) {
      if (place[i] == i) dict->index.emplace_back(hash, index_of[i]);
    }
  }
  return Value(Kind::kDict, std::move(dict));
}

Result<Value> MakeGenerator(Run& run, std::unique_ptr<Iterator> iterator, const Value& source) {
  auto generator = std::make_shared<Generator>();
  generator->depth = source.depth() + 1;
  KVRUN_RETURN_IF_ERROR(CheckDepth(run, generator->depth));
  KVRUN_RETURN_IF_ERROR(run.Take(128));
  generator->iterator = std::move(iterator);
  return Value(Kind::kGenerator, std::move(generator));
}

Value MakeRange(const Range& range) { return {Kind::kRange, std::make_shared<Range>(range)}; }

Result<const Value*> FindKey(Run& run, const Dict& dict, const Value& key) {
  KVRUN_ASSIGN_OR_RETURN(const uint64_t hash, HashOf(run, key));
  KVRUN_ASSIGN_OR_RETURN(const size_t i, FindIndex(run, dict, key, hash));
  return i == dict.entries.size() ? nullptr : &dict.entries[i].second;
}

const Value* FindKey(const Dict& dict, std::string_view key) {
  const auto is_it = [&](const Value& other) { return other.is_string() && other.bytes() == key; };
  if (dict.index.empty()) {
    for (const auto& [other, value] : dict.entries) {
      if (is_it(other)) return &value;
    }
    return nullptr;
  }
  const uint64_t hash = std::hash<std::string_view>()(key);
  auto at = std::lower_bound(dict.index.begin(), dict.index.end(), std::pair<uint64_t, size_t>{hash, 0});
  for (; at != dict.index.end() && at->first == hash; ++at) {
    const auto& [other, value] = dict.entries[at->second];
    if (is_it(other)) return &value;
  }
  return nullptr;
}

}  // namespace kvrun::jinja
