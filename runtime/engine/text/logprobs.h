// Log-probabilities of tokens, by the model alone: of raw logits, before penalties, temperature and all else
// that sampling does.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "runtime/model/tokenizer.h"

namespace kvrun {

inline constexpr uint32_t kMaxLogprobs = 20;

struct TokenLogprob {
  TokenId id = 0;
  float logprob = 0.0F;  // natural; 0 or less
};

// The `n` likeliest of finite logits, the likeliest first, of equal ones the lower id; then, in one place
// more, the token `taken`. Fewer where the vocabulary has no more.
std::vector<TokenLogprob> LikeliestAnd(std::span<const float> logits, size_t n, TokenId taken);

}  // namespace kvrun
