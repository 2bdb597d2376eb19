// What clients of an OpenAI server ask for, from their JSON. Nothing here knows a model.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "apps/common/api.h"

namespace kvrun::serve {

using cli::Json;

// An answer that is an error: an HTTP status, and what OpenAI's form has.
class ApiError : public std::runtime_error {
 public:
  ApiError(unsigned http_status, std::string message, std::string parameter = "", std::string error_code = "")
      : std::runtime_error(std::move(message)),
        status(http_status),
        param(std::move(parameter)),
        code(std::move(error_code)) {}

  unsigned status;
  std::string param;  // "": null
  std::string code;   // "": null
};

// {"error": {"message", "type", "param", "code"}}; the type follows from the status, as OpenAI's do.
Json ErrorJson(const ApiError& error);

// Of one answer. Where something is not given, the server's default stands (the model file's advice, as kvrun
// chat has it).
struct SamplingRequest {
  std::optional<float> temperature;  // 0 to 2
  std::optional<float> top_p;
  std::optional<uint32_t> top_k;
  std::optional<float> min_p;
  std::optional<float> presence_penalty;   // -2 to 2
  std::optional<float> frequency_penalty;  // -2 to 2
  std::optional<float> repeat_penalty;     // also "repetition_penalty"
  std::optional<uint64_t> seed;
  std::map<int32_t, float> logit_bias;  // -100 to 100
};

struct CompletionRequest {
  bool is_chat = false;
  std::string model;  // as given; "": the one that there is

  // Of a chat: as the template takes them, at least one; each an object with "role" and "content", whose
  // content is text (parts of type "text" are joined; others are refused).
  Json messages = Json::array();
  Json template_variables =
      Json::object();  // chat_template_kwargs, with reasoning_effort and enable_thinking
  // Of a completion: texts, or lists of tokens.
  struct Prompt {
    std::string text;
    std::vector<int32_t> ids;  // where the prompt is one of tokens
    bool is_ids = false;
  };
  std::vector<Prompt> prompts;
  bool echo = false;

  SamplingRequest sampling;
  std::vector<std::string> stop;       // at most 4 in OpenAI's API, 16 here
  std::optional<uint32_t> max_tokens;  // also max_completion_tokens
  uint32_t n = 1;                      // 1 to 16
  bool stream = false;
  bool include_usage = false;          // stream_options
  bool return_progress = false;        // of this server: progress in an extra field of events
  std::optional<uint32_t> n_logprobs;  // 0: the chosen token's alone; at most KVRUN_MAX_LOGPROBS
};

// From the body. Throws an ApiError (400) that names the field: of what is not JSON, missing, of a wrong type
// or out of range; of what is known and cannot be done (tools, tool_choice other than "none", functions,
// response_format other than text, audio, images, suffix, best_of above n, ...), with code
// "unsupported_parameter". Unknown fields are ignored.
CompletionRequest ParseChatRequest(const std::string& body);
CompletionRequest ParseCompletionRequest(const std::string& body);

struct TokenizeRequest {
  std::string content;
  bool parse_special = false;
  bool add_special = false;  // the beginning token, where the model has one
};
TokenizeRequest ParseTokenizeRequest(const std::string& body);
std::vector<int32_t> ParseDetokenizeRequest(const std::string& body);  // {"tokens": [..]}

}  // namespace kvrun::serve
