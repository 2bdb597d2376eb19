// Many prompts from a file of JSON lines, up to 16 computed together.
#pragma once

#include <string>

#include "apps/common/shared_options.h"
#include "apps/kvrun/batch_lines.h"
#include "apps/kvrun/generation.h"

namespace kvrun::cli {

struct BatchJob {
  const SharedOptions& shared;
  UsualGeneration generation;
  const std::string& path;
  bool chat;
  const std::string& system;
  const PromptForm& form;
  bool json_lines = false;
};

// One JSON object per line of the file on standard output, in order: index, the line's id, and what
// AnswerJson says; with --json also the statistics of the group it was computed in. With json_lines
// there is an object for each token before: index, id and what PieceJson says. A line that cannot be answered
// is one of index, id and error {status, message}, and the others are answered all the same. The answer is
// the exit code: kExitFailure where there is such a line.
int RunBatch(const BatchJob& job, const Model& model);

}  // namespace kvrun::cli
