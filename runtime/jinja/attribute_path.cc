#include "runtime/jinja/attribute_path.h"

#include <algorithm>

#include "runtime/jinja/text_edit.h"

namespace kvrun::jinja {
namespace {

std::vector<MarkedText> SplitAt(const MarkedText& text, char separator) {
  std::vector<MarkedText> parts;
  size_t begin = 0;
  for (size_t end = 0; end <= text.size(); ++end) {
    if (end < text.size() && text.bytes()[end] != separator) continue;
    parts.push_back(text.Slice(begin, end));
    begin = end + 1;
  }
  return parts;
}

Value PartOfPath(MarkedText part) {
  const std::string_view bytes = part.bytes();
  const bool is_index =
      !bytes.empty() && bytes.size() < 18 && bytes.find_first_not_of("0123456789") == bytes.npos;
  return is_index ? Value::Int(std::stoll(std::string(bytes))) : Value::String(std::move(part));
}

}  // namespace

Result<AttributePath> AttributePath::Of(const Value& attribute) {
  AttributePath path;
  if (attribute.is_missing() || attribute.Is(Kind::kNone)) return path;
  if (!attribute.is_string()) {
    path.parts_.push_back(attribute);
    return path;
  }
  for (MarkedText& part : SplitAt(attribute.text(), '.')) path.parts_.push_back(PartOfPath(std::move(part)));
  return path;
}

Result<std::vector<AttributePath>> AttributePath::AllOf(const Value& attribute) {
  std::vector<Value> attributes = {attribute};
  if (attribute.is_string()) {
    attributes.clear();
    for (MarkedText& part : SplitAt(attribute.text(), ','))
      attributes.push_back(Value::String(std::move(part)));
  }
  std::vector<AttributePath> paths;
  for (const Value& one : attributes) {
    KVRUN_ASSIGN_OR_RETURN(AttributePath path, Of(one));
    paths.push_back(std::move(path));
  }
  return paths;
}

Result<Value> AttributePath::In(Run& run, Value element, const Value& otherwise) const {
  for (const Value& part : parts_) {
    KVRUN_ASSIGN_OR_RETURN(element, ItemOf(run, element, part));
    if (element.is_undefined() && !otherwise.is_missing()) element = otherwise;
  }
  return element;
}

Result<Value> WithoutCase(Run& run, const Value& value) {
  if (!value.is_string()) return value;
  return run.MakeString(WithCase(value.text(), Case::kLower));
}

Result<Value> KeyOf(Run& run, const AttributePath& path, const Value& element, bool is_case_sensitive) {
  KVRUN_ASSIGN_OR_RETURN(Value key, path.In(run, element));
  return is_case_sensitive ? Result<Value>(std::move(key)) : WithoutCase(run, key);
}

Result<bool> LateList::Next(Run& run, Value* element) {
  if (!is_made_) {
    is_made_ = true;
    KVRUN_ASSIGN_OR_RETURN(elements_, make_(run, self_, args_));
  }
  if (next_ == elements_.size()) return false;
  *element = elements_[next_++];
  return true;
}

}  // namespace kvrun::jinja
