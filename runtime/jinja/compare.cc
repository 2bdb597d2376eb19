// Equality, order and hashes of values.
#include <algorithm>
#include <cmath>
#include <functional>

#include "runtime/jinja/evaluate.h"

namespace kvrun::jinja {
namespace {

// -1, 0 or 1; 2 where one of them is no number (NaN).
int CompareNumbers(const Value& a, const Value& b) {
  if (a.is_integer() && b.is_integer()) return a.integer() < b.integer() ? -1 : a.integer() > b.integer();
  if (std::isnan(a.real()) || std::isnan(b.real())) return 2;
  if (a.real() != b.real() || a.Is(b.kind())) return a.real() < b.real() ? -1 : a.real() > b.real();
  // An integer above 2^53 may be near a float but not equal to it.
  const double real = a.Is(Kind::kFloat) ? a.real() : b.real();
  const int64_t integer = a.Is(Kind::kFloat) ? b.integer() : a.integer();
  if (std::abs(real) >= 9223372036854775808.0) return a.Is(Kind::kFloat) == (real > 0) ? 1 : -1;
  const auto other = static_cast<int64_t>(real);
  const int order = integer < other ? -1 : integer > other;
  return a.Is(Kind::kFloat) ? -order : order;
}

Result<bool> AreEqualSequences(Run& run, const std::vector<Value>& a, const std::vector<Value>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    KVRUN_ASSIGN_OR_RETURN(const bool is_same, AreEqual(run, a[i], b[i]));
    if (!is_same) return false;
  }
  return true;
}

Result<bool> AreEqualDicts(Run& run, const Dict& a, const Dict& b) {
  if (a.entries.size() != b.entries.size()) return false;
  for (const auto& [key, value] : a.entries) {
    KVRUN_ASSIGN_OR_RETURN(const Value* const other, FindKey(run, b, key));
    if (other == nullptr) return false;
    KVRUN_ASSIGN_OR_RETURN(const bool is_same, AreEqual(run, value, *other));
    if (!is_same) return false;
  }
  return true;
}

bool AreEqualRanges(const Range& a, const Range& b) {
  return a.n == b.n && (a.n == 0 || (a.start == b.start && (a.n == 1 || a.step == b.step)));
}

uint64_t Mixed(uint64_t hash, uint64_t next) { return (hash ^ next) * 0x9e3779b97f4a7c15ULL + (hash >> 29); }

}  // namespace

Result<bool> AreEqual(Run& run, const Value& a, const Value& b) {
  KVRUN_RETURN_IF_ERROR(run.Step());
  if (a.is_number() && b.is_number()) return CompareNumbers(a, b) == 0;
  if (!a.Is(b.kind())) return false;
  if (a.object() != nullptr && a.object() == b.object()) return true;
  switch (a.kind()) {
    case Kind::kUndefined:
    case Kind::kNone: return true;
    case Kind::kString:
      KVRUN_RETURN_IF_ERROR(run.Step(std::min(a.bytes().size(), b.bytes().size()) / 256));
      return a.bytes() == b.bytes();
    case Kind::kList:
    case Kind::kTuple: return AreEqualSequences(run, a.items(), b.items());
    case Kind::kDict: return AreEqualDicts(run, a.dict(), b.dict());
    case Kind::kRange: return AreEqualRanges(a.range(), b.range());
    case Kind::kCallable:
      return a.callable().function != nullptr && a.callable().function == b.callable().function &&
             a.callable().self.object() == b.callable().self.object();
    default: return false;
  }
}

Result<bool> IsLess(Run& run, const Value& a, const Value& b) {
  KVRUN_RETURN_IF_ERROR(run.Step());
  if (a.is_number() && b.is_number()) return CompareNumbers(a, b) == -1;
  for (const Value* value : {&a, &b}) {
    if (value->is_undefined()) return Wrong(value->why_undefined());
  }
  if (a.is_string() && b.is_string()) {
    KVRUN_RETURN_IF_ERROR(run.Step(std::min(a.bytes().size(), b.bytes().size()) / 256));
    return a.bytes() < b.bytes();
  }
  if (a.is_sequence() && a.Is(b.kind())) {
    for (size_t i = 0; i < std::min(a.items().size(), b.items().size()); ++i) {
      KVRUN_ASSIGN_OR_RETURN(const bool is_same, AreEqual(run, a.items()[i], b.items()[i]));
      if (!is_same) return IsLess(run, a.items()[i], b.items()[i]);
    }
    return a.items().size() < b.items().size();
  }
  return Wrong("a " + std::string(TypeName(a)) + " and a " + std::string(TypeName(b)) + " have no order");
}

Result<uint64_t> HashOf(Run& run, const Value& value) {
  KVRUN_RETURN_IF_ERROR(run.Step());
  switch (value.kind()) {
    case Kind::kBool:
    case Kind::kInt: return std::hash<double>()(value.real());
    case Kind::kFloat: return std::hash<double>()(value.real());
    case Kind::kString:
      KVRUN_RETURN_IF_ERROR(run.Step(value.bytes().size() / 256));
      return std::hash<std::string_view>()(value.bytes());
    case Kind::kTuple: {
      uint64_t hash = value.items().size();
      for (const Value& item : value.items()) {
        KVRUN_ASSIGN_OR_RETURN(const uint64_t next, HashOf(run, item));
        hash = Mixed(hash, next);
      }
      return hash;
    }
    case Kind::kList:
    case Kind::kDict: return Wrong("a " + std::string(TypeName(value)) + " can be no key");
    case Kind::kView:  // values are what they are; keys and items would be compared as sets
      if (value.view().part == View::Part::kValues) return uint64_t{1};
      return Wrong("a view of a dict can be no key");
    case Kind::kUndefined:
    case Kind::kNone: return static_cast<uint64_t>(value.kind());
    case Kind::kRange: return static_cast<uint64_t>(value.range().n);
    default: return std::hash<const void*>()(value.object());
  }
}

}  // namespace kvrun::jinja
