// What a model thinks, told from what it answers, while the answer comes.
//
// A reasoning model writes its thoughts first: "<think>" thoughts "</think>" answer; or the prompt has opened
// them already, and the answer's text begins inside. gpt-oss writes messages of several channels: "analysis"
// is thought, "final" the answer.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/model/tokenizer.h"

namespace kvrun {

struct ReasoningMarks {
  std::string_view open;   // "<think>"
  std::string_view close;  // "</think>"
};

// The marks that `text` (a template's source) closes thoughts with; null: none that is known.
const ReasoningMarks* FindReasoningMarks(std::string_view text);

struct ReasoningPiece {
  std::string text;  // without the marks, and without white space beside them
  bool is_reasoning = false;
};
// Neighbours differ in is_reasoning; no piece is empty.
using ReasoningPieces = std::vector<ReasoningPiece>;

// Splits one answer. Thoughts are looked for at its start alone: an answer that speaks of "<think>" stays an
// answer. Text that may be the beginning of a mark is held back until it is known.
//
// Not thread-safe. `tokenizer` must outlive it.
class ReasoningSplitter {
 public:
  // `prompt`: what the model answers to; its last tokens say whether it begins inside of thoughts.
  ReasoningSplitter(const Tokenizer& tokenizer, const std::vector<TokenId>& prompt);

  // The next token and the text that came with it, as a session's callback is given them (token -1: text
  // alone). Marks may be control tokens, which have no text, or text.
  ReasoningPieces Next(TokenId token, std::string_view text);
  // What was held back. Thoughts that never ended stay thoughts.
  ReasoningPieces End();
};

}  // namespace kvrun
