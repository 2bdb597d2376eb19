// Answers that repeat themselves: a small model's loop, which has no end of its own.
#pragma once

#include <array>
#include <cstdint>

#include "runtime/model/tokenizer.h"

namespace kvrun {

// Whether the end of an answer is one text several times in a row, token by token. Costs kLongestText
// comparisons a token, and allocates nothing.
class RepeatWatch {
 public:
  // Longer texts are not seen to repeat.
  static constexpr uint32_t kLongestText = 256;
  // A row of dashes, a table of zeros: so many tokens of repetition may be meant.
  static constexpr uint32_t kMeantTokens = 128;

  // `limit`: how many times in a row end an answer; 0: none does.
  explicit RepeatWatch(uint32_t limit) : limit_(limit) {}

  // The answer goes on with `id`. True if it has come to repeat itself: `limit` times the same text, and
  // kMeantTokens at least.
  bool Note(TokenId id);

 private:
  uint64_t limit_;
  uint64_t n_noted_ = 0;
  std::array<TokenId, kLongestText> last_ = {};      // token i of the answer is at i % kLongestText
  std::array<uint32_t, kLongestText> n_equal_ = {};  // [p - 1]: how many in a row were as the one p before
};

}  // namespace kvrun
