// The lines of a batch: what each asks for, and how its answer is sampled.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "apps/common/api.h"
#include "apps/common/failure.h"
#include "apps/kvrun/generation.h"

namespace kvrun::cli {

struct BatchLine {
  size_t index = 0;               // among the lines that are not blank
  std::string where;              // "prompts.jsonl: line 3"
  std::string id_key;             // "id" or "custom_id"; "": it has none
  Json id;                        // a string or a number
  std::string prompt;             // unless there are messages
  Json messages = Json::array();  // as EncodeConversation takes them
  Json tools;                     // that the template reads; null: the line names none
  GenerationOptions generation;   // the command line's, and in their place the line's own
  std::optional<Failure> error;   // why it cannot be answered; it says where

  // With what the answer begins, of whatever kind: index, and the line's own id.
  Json Beginning() const;
};

// What a line has that says nothing else.
struct UsualGeneration {
  const GenerationOptions& of_prompts;
  const GenerationOptions& of_messages;
};

// The lines of a file ("-": standard input), blank ones left out; a Failure if there are none. What is wrong
// with a line is its `error`. Says which keys are not known, unless `quiet`.
std::vector<BatchLine> ReadBatchLines(const std::string& path, const UsualGeneration& usual, bool quiet);

}  // namespace kvrun::cli
