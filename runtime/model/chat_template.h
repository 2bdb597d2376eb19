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

enum class ChatForm : uint8_t { kChatMl, kLlama2, kLlama3, kZephyr, kMistral, kQwen, kDeepSeek };

struct ChatMessage {
  std::string role;  // "system", "user", "assistant"
  std::string content;
};

// A chat's text in parts. What people or the model wrote is kept apart from what the form writes: only the
// form may name control tokens.
struct ChatSegment {
  std::string text;
  bool is_content = false;
};
using ChatText = std::vector<ChatSegment>;

// Whether the model thinks before it answers, where its form has a switch for that.
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

// "chatml", "llama-2", ...: the forms that ChatTemplate::Choose knows by name. Ends with null.
const char* const* ChatTemplateNames();

class ChatTemplate {
 public:
  // No template, or one that is not recognised: kUnsupported, with how to go on (run without --chat).
  static Result<ChatTemplate> Recognize(const GgufFile& file);
  static Result<ChatTemplate> FromSource(std::string_view jinja);
  // What a person chose for a file: the name of a known form (ChatTemplateNames), or a Jinja template of one.
  // kUnsupported lists the names.
  static Result<ChatTemplate> Choose(const GgufFile& file, std::string_view name_or_jinja);

  ChatForm form() const { return form_; }
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
  friend class ChatTemplateReader;

  Status CheckOrder(const std::vector<ChatMessage>& messages, ChatStart start) const;
  Status CheckThinking(Thinking thinking) const;
  ChatText WriteAll(const std::vector<ChatMessage>& messages, const ChatTextOptions& options) const;
  void WriteTagged(const std::vector<ChatMessage>& messages, bool starts, ChatText* text) const;
  void WriteInstructed(const std::vector<ChatMessage>& messages, bool starts, ChatText* text) const;
  void WriteThoughtful(std::string_view content, bool after_last_question, bool last, ChatText* text) const;
  std::string StartOf(std::string_view role) const;
  std::string EndOf(std::string_view role) const;
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
