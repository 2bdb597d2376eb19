// Cuts a text into the words that byte-level BPE works on, with the patterns that a vocabulary was trained
// with. Internal to the tokenizers.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "platform/base/status.h"

namespace kvrun {

// Immutable; safe from several threads.
class PreTokenizer {
 public:
  // `name` as in tokenizer.ggml.pre. kUnsupported names the known ones.
  static Result<std::unique_ptr<PreTokenizer>> Create(std::string_view name);
  ~PreTokenizer();

  // Where each word ends; the last one ends at the end of `text`. Any bytes, below 2^32 of them.
  Result<std::vector<uint32_t>> Split(std::string_view text) const;

  // A word that the vocabulary has as a whole is that token, whatever the merges say.
  bool takes_whole_words() const { return takes_whole_words_; }
  // Where the file has no tokenizer.ggml.add_bos_token.
  bool adds_bos_by_default() const { return adds_bos_by_default_; }

 private:
  class Pattern;

  PreTokenizer();

  std::vector<std::unique_ptr<Pattern>> patterns_;  // each cuts the words of the one before further
  bool takes_whole_words_ = false;
  bool adds_bos_by_default_ = false;
};

}  // namespace kvrun
