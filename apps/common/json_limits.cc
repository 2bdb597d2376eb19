#include "apps/common/json_limits.h"

#include <fmt/format.h>

#include <vector>

namespace kvrun::cli {
namespace {

class JsonMeasure {
 public:
  explicit JsonMeasure(const JsonLimits& limits) : limits_(limits) {}

  // A character that is not in a string.
  void Take(char c) {
    if (c == '{' || c == '[') {
      n_members_of_.push_back(0);
      ++n_values_;
    } else if ((c == '}' || c == ']') && !n_members_of_.empty()) {
      n_members_of_.pop_back();
    } else if (c == ',') {
      ++n_values_;
    } else if (c == ':' && !n_members_of_.empty()) {
      ++n_members_of_.back();
      ++n_members_;
    } else {
      return;
    }
    Compare();
  }

  const std::string& why() const { return why_; }

 private:
  void Compare() {
    if (n_members_of_.size() > limits_.depth)
      why_ = fmt::format("is nested more than {} deep", limits_.depth);
    if (!n_members_of_.empty() && n_members_of_.back() > limits_.members_of_an_object)
      why_ = fmt::format("has an object of more than {} members", limits_.members_of_an_object);
    if (n_members_ > limits_.members)
      why_ = fmt::format("has more than {} members in its objects", limits_.members);
    if (n_values_ > limits_.values) why_ = fmt::format("has more than {} values", limits_.values);
  }

  const JsonLimits& limits_;
  std::vector<size_t> n_members_of_;  // each list and object that is open
  size_t n_members_ = 0;
  size_t n_values_ = 0;
  std::string why_;
};

size_t EndOfString(std::string_view text, size_t begin) {
  size_t i = begin + 1;
  while (i < text.size() && text[i] != '"') i += text[i] == '\\' ? 2 : 1;
  return i;
}

}  // namespace

std::string BeyondLimits(std::string_view text, const JsonLimits& limits) {
  JsonMeasure measure(limits);
  for (size_t i = 0; i < text.size() && measure.why().empty(); ++i) {
    if (text[i] == '"') {
      i = EndOfString(text, i);
    } else {
      measure.Take(text[i]);
    }
  }
  return measure.why();
}

}  // namespace kvrun::cli
