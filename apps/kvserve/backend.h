// What a server's answers come from.
#pragma once

#include <kvrun/scheduler.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "apps/common/api.h"

namespace kvrun::serve {

using cli::Json;

// What it points to outlives the service.
struct Backend {
  const cli::Model* model = nullptr;
  kvrun_scheduler* scheduler = nullptr;
  std::string model_name;                     // "SmolLM2-135M-Instruct"
  int64_t created_s = 0;                      // of the model's file
  uint32_t n_ctx = 0;                         // tokens of the longest prompt with its answer
  uint32_t most_answer = 0;                   // tokens of an answer, where a request says nothing
  kvrun_generate_options defaults = {};       // of a chat, where a request says nothing
  kvrun_generate_options text_defaults = {};  // of a text that goes on, likewise
  bool has_seed = false;                      // in both; else each request has one of its own
  // As the model's chat form writes them. `variables`: of the template, besides the command line's. They
  // throw a Failure.
  std::function<std::vector<int32_t>(const Json& messages, const Json& variables)> encode_chat;
  std::function<std::vector<int32_t>(const std::string& text)> encode_text;
};

}  // namespace kvrun::serve
