// Generated tokens as JSON.
#pragma once

#include <cstddef>

#include "apps/common/api.h"
#include "apps/kvrun/generation.h"

namespace kvrun::cli {

// {"token", "text", "logprob", "top": [{"token", "text", "logprob"}]}, the likeliest first.
Json LogprobsJson(const Model& model, const StepLogprobs& logprobs);
// Of an answer's tokens.
Json LogprobsJson(const Model& model, const std::vector<StepLogprobs>& logprobs);

// {"text", "reasoning" (if there is any, and it is to be shown), "tokens", "finish", "prompt_tokens"}.
Json AnswerJson(const Answer& answer, size_t n_prompt_tokens, bool shows_reasoning);

// {"text", "reasoning" (true; absent: it is the answer), "token" (null: only text that was held back)}; where
// they were asked for also "logprob" and "top".
Json PieceJson(const Model& model, const GeneratedPiece& piece);

}  // namespace kvrun::cli
