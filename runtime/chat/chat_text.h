// Messages, and the text of a chat in parts. What people or the model wrote is kept apart from what the form
// writes: only the form may name control tokens.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/jinja/jinja_text.h"

namespace kvrun {

struct ChatMessage {
  std::string role;  // "system", "user", "assistant"
  std::string content;
};

using ChatSegment = JinjaPiece;
using ChatText = JinjaText;

// Whether the model thinks before it answers, where its template has a switch for that.
enum class Thinking : uint8_t { kDefault, kOn, kOff };

// What stands before the messages.
enum class ChatStart : uint8_t {
  kNothing,
  kMessages,  // others, complete: no default system prompt, no BOS
  kAnswer,    // others, and of the last one, an assistant's, all but the end of its turn
};

struct ChatTextOptions {
  ChatStart start = ChatStart::kNothing;
  bool add_assistant = true;  // to the place where the assistant's answer begins
  Thinking thinking = Thinking::kDefault;
};

// The special tokens that templates name instead of spelling them out.
struct ChatTokenTexts {
  std::string bos = "<s>";
  std::string eos = "</s>";
};

}  // namespace kvrun
