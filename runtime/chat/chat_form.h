// The chat forms that kvrun knows by itself: it recognises a template by its marks and writes what that
// would. They stand in where a template fails, and for files that carry none (chat_template.h).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "platform/base/status.h"
#include "runtime/chat/chat_text.h"

namespace kvrun {

enum class KnownChatForm : uint8_t { kChatMl, kLlama2, kLlama3, kZephyr, kMistral, kQwen, kDeepSeek };

// "chatml", "llama-2", ...: the forms that are known by name. Ends with null.
const char* const* ChatFormNames();

class ChatForm {
 public:
  // The form whose marks the template has: kUnsupported where it has none's.
  static Result<ChatForm> FromSource(std::string_view jinja, ChatTokenTexts tokens = {});

  KnownChatForm form() const { return form_; }
  std::string_view name() const;  // "chatml", "llama-3", ...
  // What stands between an assistant's answer and the next message, its end-of-turn token included.
  const std::string& answer_end() const { return answer_end_; }

  // Includes the form's own BOS text only where the template writes one beyond what the tokenizer adds. For
  // ChatStart::kAnswer the text begins with the end of the answer's turn. kInvalidArgument says which message
  // the form cannot take, kUnsupported that it has no switch for thinking.
  Result<ChatText> Write(const std::vector<ChatMessage>& messages, const ChatTextOptions& options) const;
  // The same as one text. To be encoded with parse_special only where all contents are trusted.
  Result<std::string> Apply(const std::vector<ChatMessage>& messages, bool add_assistant,
                            bool continued = false) const;

  // Every text that the form itself writes: the tokens in them are never a content's.
  std::vector<std::string> FormTexts() const;
  bool has_thinking_switch() const { return !empty_thoughts_.empty(); }

 private:
  friend class ChatFormReader;

  Status CheckOrder(const std::vector<ChatMessage>& messages, ChatStart start) const;
  Status CheckThinking(Thinking thinking) const;
  ChatText WriteAll(const std::vector<ChatMessage>& messages, const ChatTextOptions& options) const;
  void WriteTagged(const std::vector<ChatMessage>& messages, bool starts, ChatText* text) const;
  void WriteInstructed(const std::vector<ChatMessage>& messages, bool starts, ChatText* text) const;
  void WriteThoughtful(std::string_view content, bool after_last_question, bool last, ChatText* text) const;
  std::string StartOf(std::string_view role) const;
  std::string EndOf(std::string_view role) const;
  // One message after another, each with its role's tag; else "[INST]", the system message within a turn.
  bool is_tagged() const { return form_ != KnownChatForm::kLlama2 && form_ != KnownChatForm::kMistral; }

  KnownChatForm form_ = KnownChatForm::kChatMl;
  std::string default_system_;   // what the template inserts where the first message is not a system message
  bool inserts_system_ = false;  // whether it does; the text may be empty
  bool trims_content_ = false;
  std::string answer_end_;

  // Tagged forms: before_role, role, after_role, content, answer_end.
  std::string before_role_;
  std::string after_role_;
  std::string answer_start_;
  std::string system_preface_;         // before the text of the system message (Llama 3.1 and later: dates)
  std::string empty_thoughts_;         // after answer_start_, where the model is not to think; "": no switch
  bool drops_old_thoughts_ = false;    // of answers before the last question (Qwen 3), or of all (DeepSeek)
  bool writes_last_thoughts_ = false;  // of answers after it, even if there are none

  // Forms with "[INST]"; of these DeepSeek's has user_start_ and answer_prefix_.
  std::string user_start_;
  std::string user_end_;
  std::string answer_prefix_;
  std::string turn_start_;  // of every turn but the first
  std::string system_start_;
  std::string system_end_;
  bool system_in_last_turn_ = false;
};

}  // namespace kvrun
