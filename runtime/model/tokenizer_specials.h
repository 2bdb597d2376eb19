// Finds the tokens that are recognised in the text as a whole. Internal to the tokenizers.
#pragma once

#include <bitset>
#include <cstdint>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "runtime/model/tokenizer_vocab.h"

namespace kvrun {

struct TextFragment {
  size_t begin = 0;
  size_t end = 0;
  TokenId token = -1;  // -1: plain text
};

// Points into the vocabulary's texts.
class SpecialTokens {
 public:
  explicit SpecialTokens(const Vocab& vocab);

  // Cuts `text` at user-defined tokens and, with `parse_special`, at control, unknown and end-of-generation
  // tokens. Where they overlap the longest wins, then the leftmost. `barred` are not looked for.
  std::vector<TextFragment> Partition(std::string_view text, bool parse_special,
                                      std::span<const TokenId> barred = {}) const;
  // The same, cut only at tokens that no content gives, and `others`.
  std::vector<TextFragment> PartitionForm(std::string_view text, std::span<const TokenId> others) const;

 private:
  struct Set {
    std::unordered_map<std::string_view, TokenId> by_text;
    std::vector<size_t> lengths;         // distinct, longest first
    std::bitset<65536> first_two_bytes;  // of some token

    void Add(std::string_view text, TokenId id);
    void SortLengths();
    bool MayStartAt(std::string_view text, size_t position) const;
    std::vector<size_t> Candidates(std::string_view text) const;
    std::vector<TextFragment> Matches(std::string_view text,
                                      std::span<const TokenId> barred) const;  // in order, not overlapping
  };

  static std::vector<TextFragment> Cut(std::string_view text, const std::vector<TextFragment>& matches);

  const Vocab& vocab_;
  Set user_defined_;
  Set all_;
};

}  // namespace kvrun
