// Many prompts from a file of JSON lines, up to 16 computed together.
#pragma once

#include <string>

#include "apps/common/shared_options.h"
#include "apps/kvrun/generation.h"

namespace kvrun::cli {

struct BatchJob {
  const SharedOptions& shared;
  const GenerationOptions& generation;
  const std::string& path;
  bool chat;
  const std::string& system;
  const PromptForm& form;
  bool json_lines = false;
};

// One JSON object per prompt on standard output, in order: index, text, tokens, finish, prompt_tokens; with
// --json also the statistics of the group it was computed in. With json_lines there is an object for each
// token before: index and what PieceJson says. The answer is the exit code.
int RunBatch(const BatchJob& job);

}  // namespace kvrun::cli
