// Recognises a Jinja chat template by its marks and reads the texts that it writes. Internal to the chat
// templates.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runtime/chat/chat_form.h"

namespace kvrun {

class ChatFormReader {
 public:
  // `jinja` must outlive the reader.
  ChatFormReader(std::string_view jinja, ChatTokenTexts tokens);

  Result<ChatForm> Read() const;

 private:
  bool Has(std::string_view mark) const { return jinja_.find(mark) != std::string_view::npos; }
  bool HasCompact(std::string_view code) const { return compact_.find(code) != std::string::npos; }
  bool IsChatMl() const;
  bool IsLlama3() const;
  bool IsZephyr() const;
  bool IsInstructed() const;
  bool IsDeepSeek() const;
  bool TrimsContent() const;
  std::string AssignedLiteral(std::string_view variable_part) const;
  void ReadDefaultSystem(ChatForm* result) const;

  ChatForm ReadChatMl() const;
  ChatForm ReadLlama3() const;
  ChatForm ReadZephyr() const;
  ChatForm ReadLlama2() const;
  ChatForm ReadMistral() const;
  ChatForm ReadDeepSeek() const;

  std::string_view jinja_;
  ChatTokenTexts tokens_;
  // The code, a line for each block, without white space outside of strings, which stand in single quotes;
  // ['content'] reads .content.
  std::string compact_;
  std::vector<std::string> literals_;  // the code's strings, unescaped, and the text outside of it, in order
};

}  // namespace kvrun
