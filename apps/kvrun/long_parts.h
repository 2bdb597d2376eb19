// --long split: a document asked in parts, and their answers joined.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "apps/common/api.h"
#include "apps/common/progress.h"
#include "apps/kvrun/generation.h"
#include "apps/kvrun/long_document.h"

namespace kvrun::cli {

// Of some documents, each of them a text, and a question about them.
using EncodeQuestion =
    std::function<std::vector<int32_t>(const std::vector<Document>& documents, const std::string& question)>;

struct PartsJob {
  const Model& model;
  const Session& session;
  const GenerationOptions& generation;
  const EncodeQuestion& encode;
  const std::string& question;
  PromptSpace space;
  bool parse_special = false;
  bool shows_reasoning = true;
  bool quiet = false;
  Progress* progress = nullptr;
};

struct AskedParts {
  Json answers;              // of each part, as AnswerJson says it
  std::vector<int32_t> ids;  // the prompt whose answer is the whole's
};

// Asks each part in turn and tells on standard error which; then joins answers, several at a time, until
// those that are left fit into one prompt. An Interruption if one of them is interrupted.
AskedParts AskParts(const PartsJob& job, const std::vector<std::string>& parts);

}  // namespace kvrun::cli
