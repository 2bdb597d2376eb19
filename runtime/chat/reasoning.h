// What a model thinks, told from what it answers, while the answer comes.
//
// A reasoning model writes its thoughts first: "<think>" thoughts "</think>" answer; or the prompt has opened
// them already, and the answer's text begins inside. gpt-oss writes messages of several channels: "analysis"
// is thought, all others ("final", "commentary") are answer.
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
  // The opening is plain words, which an answer may begin with: only a prompt's end opens such thoughts.
  bool only_in_prompts = false;
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
// answer. (gpt-oss may think again before each of its messages; two messages of one kind have an empty line
// between them.) Text that may be the beginning of a mark is held back until it is known, and so is white
// space that may stand before one. How a text is cut into calls makes no difference to the whole.
//
// Not thread-safe. `tokenizer` must outlive it.
class ReasoningSplitter {
 public:
  // `prompt`: what the model answers to; its last tokens say whether it begins inside of thoughts.
  ReasoningSplitter(const Tokenizer& tokenizer, const std::vector<TokenId>& prompt);

  // The next token and the text that came with it, as a session's callback is given them (token -1: text
  // alone). Marks may be control tokens, which have no text, or text. A control token's place is behind the
  // text: where a session holds text back for a stop string that never comes, a mark may come before it.
  ReasoningPieces Next(TokenId token, std::string_view text);
  // What was held back. Thoughts that never ended stay thoughts.
  ReasoningPieces End();

 private:
  enum class Place : uint8_t {
    kStart,     // thoughts may begin
    kThoughts,  // until marks_->close
    kAnswer,    // the rest
    kHeader,    // of a message: until "<|message|>"
    kMessage,   // until a mark that ends a message
  };
  // Text, and what control tokens would spell.
  struct Held {
    std::string bytes;
    std::vector<bool> is_control;  // of each byte

    void Append(std::string_view text, bool of_control);
    std::string Take(size_t n_bytes);  // removes them, and answers those of text
    void DropSpace();                  // that it begins with
  };

  // Each goes on from its place as far as is known. False: nothing more is.
  bool Advance(ReasoningPieces* pieces);
  bool AdvanceStart();
  bool AdvanceThoughts(ReasoningPieces* pieces);
  bool AdvanceHeader();
  bool AdvanceMessage(ReasoningPieces* pieces);

  bool IsPartOfHeader() const;
  // Where a mark of messages is; npos: nowhere. One that is a control token is no text.
  size_t FindMessageMark(std::string_view mark) const;
  void Begin(Place place);
  void Emit(size_t n_bytes, bool is_reasoning, ReasoningPieces* pieces);

  const Tokenizer& tokenizer_;
  const bool has_messages_;  // the vocabulary can say them
  const bool message_marks_are_control_;
  Place place_ = Place::kStart;
  const ReasoningMarks* marks_ = nullptr;  // in kThoughts
  bool is_reasoning_ = false;              // in kMessage
  bool drops_space_ = false;               // a mark stands before what comes
  bool begins_message_ = false;            // another than the first, and nothing of it was handed out
  bool has_thoughts_ = false;              // some were handed out
  bool has_answer_ = false;
  Held held_;
};

}  // namespace kvrun
