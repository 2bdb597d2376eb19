#include "runtime/engine/text/repeat_watch.h"

namespace kvrun {

bool RepeatWatch::Note(TokenId id) {
  if (limit_ == 0) return false;
  bool repeats = false;
  for (uint64_t length = 1; length <= kLongestText; ++length) {
    const bool is_equal = n_noted_ >= length && last_[(n_noted_ - length) % kLongestText] == id;
    uint32_t& n_equal = n_equal_[length - 1];
    n_equal = is_equal ? n_equal + 1 : 0;
    const uint64_t n_repeated = n_equal + length;  // with the first of the texts
    repeats = repeats || (n_repeated >= limit_ * length && n_repeated >= kMeantTokens);
  }
  last_[n_noted_++ % kLongestText] = id;
  return repeats;
}

}  // namespace kvrun
