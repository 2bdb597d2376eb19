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

// One JSON object per line of the file on standard output, in order, each as soon as those before it are
// there: index, the line's id, and what AnswerJson says; with --json also the statistics of its request. With
// json_lines there is an object for each token before, those of several lines in turn: index, id and what
// PieceJson says. Each line is a request of the scheduler, in a session of its own, and is answered as alone.
// A line that cannot be answered, or fails while it is computed, is one of index, id and error {status,
// message}, and the others are answered all the same. The answer is the exit code: kExitFailure where there
// is such a line, kExitInterrupted where Ctrl-C ended it: lines that were being answered then have the finish
// "cancelled", and those that were not begun are left out.
int RunBatch(const BatchJob& job, const Model& model);

}  // namespace kvrun::cli
