// What an OpenAI server answers, as JSON.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "apps/common/api.h"

namespace kvrun::serve {

using cli::Json;

struct TokenLogprob {
  std::string text;  // of the token, which need not be valid UTF-8 by itself
  float logprob = 0.0F;
};
struct StepLogprobs {
  TokenLogprob taken;
  std::vector<TokenLogprob> likeliest;
};

struct Usage {
  uint64_t prompt_tokens = 0;
  uint64_t completion_tokens = 0;
  uint64_t cached_tokens = 0;     // of the prompt, that were not read again
  uint64_t reasoning_tokens = 0;  // of the completion, that the model thought
};
// {"prompt_tokens", "completion_tokens", "total_tokens", "prompt_tokens_details": {"cached_tokens"},
// "completion_tokens_details": {"reasoning_tokens"}}
Json UsageJson(const Usage& usage);

// What all JSON of one request has in common.
struct ReplyHead {
  bool is_chat = false;
  std::string id;  // "chatcmpl-..." or "cmpl-..."
  int64_t created_s = 0;
  std::string model;
};
// An id of 24 random letters and digits after the prefix that goes with it.
std::string NewReplyId(bool is_chat);

// One of the n answers.
struct Choice {
  uint32_t index = 0;
  std::string text;
  std::string reasoning;
  std::string finish_reason;           // "stop", "length"
  std::vector<StepLogprobs> logprobs;  // where they were asked for
  bool has_logprobs = false;
};
// The whole answer: object "chat.completion" or "text_completion".
Json ReplyJson(const ReplyHead& head, const std::vector<Choice>& choices, const Usage& usage);

// A part of an answer: object "chat.completion.chunk" or "text_completion". `has_usage`: the request asked
// for usage, which is null until UsageChunk.
struct Piece {
  uint32_t index = 0;
  bool is_first = false;  // of this choice: says the role
  std::string_view text;
  std::string_view reasoning;
  std::string_view finish_reason;  // "": it goes on
  const StepLogprobs* logprobs = nullptr;
};
Json PieceJson(const ReplyHead& head, const Piece& piece, bool has_usage);
// The last event before [DONE], without choices.
Json UsageChunk(const ReplyHead& head, const Usage& usage);
// While a prompt is read: no choices, and "prompt_progress": {"total", "cache", "processed", "time_ms"}.
Json ProgressChunk(const ReplyHead& head, uint64_t total, uint64_t cached, uint64_t processed,
                   uint64_t time_ms);

Json ModelsJson(const std::string& id, int64_t created_s);

}  // namespace kvrun::serve
