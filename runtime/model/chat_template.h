// Chat forms. kvrun does not interpret Jinja: it recognises the template that the model carries
// (tokenizer.chat_template) as one of the known forms and applies that.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "platform/base/status.h"
#include "runtime/model/gguf.h"

namespace kvrun {

enum class ChatForm : uint8_t { kChatMl, kLlama2, kLlama3, kZephyr, kMistral, kQwen };

struct ChatMessage {
  std::string role;  // "system", "user", "assistant"
  std::string content;
};

class ChatTemplate {
 public:
  // No template, or one that is not recognised: kUnsupported, with how to go on (run without --chat).
  static Result<ChatTemplate> Recognize(const GgufFile& file);
  static Result<ChatTemplate> FromSource(std::string_view jinja);

  ChatForm form() const { return form_; }
  std::string_view name() const;  // "chatml", "llama-3", ...

  // Text to encode with parse_special. Includes the form's own BOS text only where the template writes one
  // beyond what the tokenizer adds. `continued`: the messages follow others that are already in the context
  // (no default system prompt, no BOS). With `add_assistant` it ends where the assistant's answer begins.
  Result<std::string> Apply(const std::vector<ChatMessage>& messages, bool add_assistant,
                            bool continued = false) const;

 private:
  ChatForm form_ = ChatForm::kChatMl;
  std::string default_system_;  // what the template inserts where the first message is not a system message
};

}  // namespace kvrun
