// What clients of an OpenAI server ask for, from their JSON. Nothing here knows a model.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "apps/kvserve/openai_error.h"

namespace kvrun::serve {

// Of one answer. Where something is not given, the server's default stands (the model file's advice, as kvrun
// chat has it).
struct SamplingRequest {
  std::optional<float> temperature;  // 0 to 2
  std::optional<float> top_p;
  std::optional<uint32_t> top_k;  // 0: off
  std::optional<float> min_p;
  std::optional<float> presence_penalty;   // -2 to 2
  std::optional<float> frequency_penalty;  // -2 to 2
  std::optional<float> repeat_penalty;     // also "repetition_penalty"
  std::optional<uint64_t> seed;            // of a negative one its 64 bits
  std::map<int32_t, float> logit_bias;     // -100 to 100; ids need not be in the vocabulary
};

struct CompletionRequest {
  bool is_chat = false;
  std::string model;  // as given; "": the one that there is

  // Of a chat: as kvrun_chat_options.variables takes them, at least one. Each is an object with "role" and
  // "content", whose content is text (parts of type "text" are joined, others are refused), and with whatever
  // else the client gave it that is not null, as templates may read it: the arguments of tool_calls, which
  // clients send as a text of JSON, are the object.
  Json messages = Json::array();
  // What the client asks of the template, which may not read all of it: reasoning_effort ("none" is
  // enable_thinking false), then enable_thinking, then chat_template_kwargs; the later count.
  Json template_variables = Json::object();
  // Of a completion: texts, or lists of tokens.
  struct Prompt {
    std::string text;
    std::vector<int32_t> ids;  // where the prompt is one of tokens
    bool is_ids = false;
  };
  std::vector<Prompt> prompts;  // 1 to 16, none of them empty
  bool echo = false;            // never with n_logprobs, which would have to be the prompt's, too

  SamplingRequest sampling;
  std::vector<std::string> stop;       // at most 4 in OpenAI's API, 16 here; not empty, no zero bytes
  std::optional<uint32_t> max_tokens;  // 1 or more; max_completion_tokens counts more, and -1 is none
  uint32_t n = 1;                      // 1 to 16
  bool stream = false;
  bool include_usage = false;          // stream_options, which nothing but a stream may have
  bool return_progress = false;        // of this server: progress in an extra field of events
  std::optional<uint32_t> n_logprobs;  // 0: the chosen token's alone; at most KVRUN_MAX_LOGPROBS
};

// From the body. Throws an ApiError (400) that names the field: of what is not JSON, missing, of a wrong type
// or out of range; of what is known and cannot be done (tools, tool_choice other than "none" and "auto",
// functions, response_format other than text, audio, images, suffix, best_of other than n, ...). Null counts
// as missing, 3.0 as 3, and unknown fields are ignored. Beyond the limits of json_fields.h a body is refused.
CompletionRequest ParseChatRequest(const std::string& body);
CompletionRequest ParseCompletionRequest(const std::string& body);

struct TokenizeRequest {
  std::string content;
  bool parse_special = false;
  bool add_special = false;  // the beginning token, where the model has one
};
TokenizeRequest ParseTokenizeRequest(const std::string& body);
// {"tokens": [..]}; there may be none.
std::vector<int32_t> ParseDetokenizeRequest(const std::string& body);

}  // namespace kvrun::serve
