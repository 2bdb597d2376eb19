// Searching texts in a time that grows with their sum, whatever they hold. Internal to the templates'
// interpreter.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "runtime/jinja/run.h"

namespace kvrun::jinja {

// Finds one text again and again, each time from where a caller says.
class TextSearch {
 public:
  explicit TextSearch(std::string_view wanted);

  // npos where there is none at `begin` or after it.
  size_t Find(std::string_view text, size_t begin) const;

 private:
  std::string_view wanted_;
  // For each length of a matched part: how much of it is a beginning again. Empty for short texts.
  std::vector<size_t> beginnings_;
};

// All places without overlap, from the left; at most `most`, and all where that is negative.
Result<std::vector<size_t>> FindAll(Run& run, std::string_view text, std::string_view wanted, int64_t most);
// The same from the right; places ascend.
Result<std::vector<size_t>> FindAllFromRight(Run& run, std::string_view text, std::string_view wanted,
                                             int64_t most);
Result<bool> HasText(Run& run, std::string_view text, std::string_view wanted);

}  // namespace kvrun::jinja
