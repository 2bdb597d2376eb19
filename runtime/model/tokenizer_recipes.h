// Which patterns cut a text into words, by the name in tokenizer.ggml.pre. Internal to the tokenizers.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "platform/base/status.h"

namespace kvrun {

struct PreTokenizerRecipe {
  std::vector<std::string> patterns;  // of PCRE2; each cuts the words of the one before further
  bool takes_whole_words = false;
  bool adds_bos_by_default = false;
};

// kUnsupported for a name that is not known.
Result<PreTokenizerRecipe> FindPreTokenizerRecipe(std::string_view name);
std::vector<std::string_view> PreTokenizerNames();

}  // namespace kvrun
