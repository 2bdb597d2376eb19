// What an OpenAI server answers, as JSON.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "apps/common/api.h"

namespace kvrun::serve {

using cli::Json;

// A token's text need not be valid UTF-8 by itself: its JSON shows such bytes as "\\xe2", and in a chat there
// is the list of all bytes beside it. A logprob that is not finite becomes -9999, as JSON has no such number.
struct TokenLogprob {
  std::string text;
  float logprob = 0.0F;
};
struct StepLogprobs {
  TokenLogprob taken;
  std::vector<TokenLogprob> likeliest;  // as many as were asked for, the likeliest first
};
// As text_offset counts: of several texts that make up one it is the sum, also where a character is in two.
uint64_t CountCharacters(std::string_view text);

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
  std::string reasoning;               // of a chat
  std::string finish_reason;           // "stop", "length"
  std::vector<StepLogprobs> logprobs;  // where they were asked for
  bool has_logprobs = false;
};
// The whole answer: object "chat.completion" or "text_completion".
Json ReplyJson(const ReplyHead& head, const std::vector<Choice>& choices, const Usage& usage);

// A part of an answer: object "chat.completion.chunk" or "text_completion". `has_usage`: the request asked
// for usage, which is null until UsageChunk. Of a choice the first says the role, and the last, which may
// have no text, why it ends.
struct Piece {
  uint32_t index = 0;
  bool is_first = false;
  std::string_view text;
  std::string_view reasoning;      // of a chat
  std::string_view finish_reason;  // "": it goes on
  const StepLogprobs* logprobs = nullptr;
  uint64_t text_offset = 0;  // of a completion with logprobs: characters of the tokens before
};
Json PieceJson(const ReplyHead& head, const Piece& piece, bool has_usage);
// The last event before [DONE], without choices.
Json UsageChunk(const ReplyHead& head, const Usage& usage);
// While a prompt is read: no choices, and "prompt_progress": {"total", "cache", "processed", "time_ms"}.
Json ProgressChunk(const ReplyHead& head, uint64_t total, uint64_t cached, uint64_t processed,
                   uint64_t time_ms);

Json ModelJson(const std::string& id, int64_t created_s);
// The list that has this one.
Json ModelsJson(const std::string& id, int64_t created_s);

}  // namespace kvrun::serve
