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
  // What stands between an assistant's answer and the next message, its end-of-turn token included.
  const std::string& answer_end() const { return answer_end_; }

  // Text to encode with parse_special. Includes the form's own BOS text only where the template writes one
  // beyond what the tokenizer adds. `continued`: the messages follow others that are already in the context
  // (no default system prompt, no BOS). With `add_assistant` it ends where the assistant's answer begins.
  Result<std::string> Apply(const std::vector<ChatMessage>& messages, bool add_assistant,
                            bool continued = false) const;

 private:
  friend class ChatTemplateReader;

  Status CheckOrder(const std::vector<ChatMessage>& messages, bool continued) const;
  std::string ApplyTagged(const std::vector<ChatMessage>& messages, bool continued) const;
  std::string ApplyInstructed(const std::vector<ChatMessage>& messages, bool continued) const;
  void AppendTagged(std::string_view role, std::string_view content, std::string* text) const;
  std::string ThoughtfulAnswer(std::string_view content, bool after_last_question, bool last) const;
  // One message after another, each with its role's tag; else "[INST]", the system message within a turn.
  bool is_tagged() const { return form_ != ChatForm::kLlama2 && form_ != ChatForm::kMistral; }

  ChatForm form_ = ChatForm::kChatMl;
  std::string default_system_;   // what the template inserts where the first message is not a system message
  bool inserts_system_ = false;  // whether it does; the text may be empty
  bool trims_content_ = false;
  std::string answer_end_;

  // Tagged forms: before_role, role, after_role, content, answer_end.
  std::string before_role_;
  std::string after_role_;
  std::string answer_start_;
  std::string system_preface_;         // before the text of the system message (Llama 3.1 and later: dates)
  bool drops_old_thoughts_ = false;    // of answers before the last question (Qwen 3)
  bool writes_last_thoughts_ = false;  // of answers after it, even if there are none

  // Forms with "[INST]".
  std::string user_start_;
  std::string user_end_;
  std::string answer_prefix_;
  std::string turn_start_;  // of every turn but the first
  std::string system_start_;
  std::string system_end_;
  bool system_in_last_turn_ = false;
};

}  // namespace kvrun
